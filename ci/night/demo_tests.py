"""What the demo runs every night: a training over a link, and one on two cores of a node, as short as can be."""

import reframe as rfm

from suites.training import Training


class Demo(Training):
    """A training whose steps take a tenth of a second. No peak is measured: that takes longer than all of it."""

    study = "nightly_demo"
    model, precision = "gpt-local-1", "fp32"
    checkpoint_activations = False
    iterations = 24
    valid_systems = ["vcluster"]

    def peak_options(self, precision: str) -> list[str]:
        return []


@rfm.simple_test
class Link(Demo):
    """Two nodes that send each other all gradients of few tokens: two thirds of a step are communication."""

    descr = "a training over a link"
    num_tasks, ranks_per_node, grid, sequences = 2, 1, "1x1x1x2", 2


@rfm.simple_test
class Node(Demo):
    """One rank of two threads."""

    descr = "a training on one node"
    num_tasks, grid, sequences = 1, "1x1x1x1", 4
    env_vars = {"OMP_NUM_THREADS": "2"}
