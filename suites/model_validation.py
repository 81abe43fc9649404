"""Does the performance model find the fastest grids? Every valid grid of a few jobs, measured (axonn-sc24 Fig. 2).

    reframe -c suites/model_validation.py --system vcluster -r
    reframe -c suites/model_validation.py --system perlmutter         a dry run elsewhere: GPT-20B on 32, GPT-40B on 64
    reframe -c suites/model_validation.py --system vcluster -n wide.*8x1x1x1 -r

The report sets the times beside the order that the model gives; `par4d plan --validate` prints it.
"""

import reframe as rfm

from suites.base.point_training import SYSTEM, PointTraining, points_of


@rfm.simple_test
class ModelValidation(PointTraining):
    """A training of one job on one grid. Activations are computed again where the published runs do so."""

    descr = "time per batch of one grid"
    study = "model_validation"
    point = points_of("model_validation")
    checkpoint_activations = SYSTEM.device.kind == "cuda"
    energy = "off"
