"""A training step can be taken in ways that change nothing of what it computes: each alone, and all at once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.comm.funnel import Comm
from engine.layers.matmul import Kernels, Mode
from engine.measure.recorder import Recorder
from engine.peers.comparison import Case
from engine.training.trainer import Trainer
from engine.training_record import PrecisionName, Training
from engine.tuning.shapes import products

TUNED = Kernels(True, Mode.NN, Mode.NT, Mode.TN)
"""A tuner may choose a weight stored by columns, and the modes in which its products copy no operand."""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to take a step. words: stand behind what is trained. micro_batch: how many sequences are computed at once.

    sums: the format in which gradients are summed; None for that of the computation. tuned: whether all layers that may
    be are TUNED.
    """

    words: str = ""
    micro_batch: int | None = None
    recompute: bool = False
    sums: PrecisionName | None = None
    tuned: bool = False

    def trainer(self, case: Case, comm: Comm) -> Trainer:
        recompute = case.checkpoint_activations or self.recompute
        usual = replace(case, batch=replace(case.batch, micro=self.micro_batch), checkpoint_every=int(recompute))
        own = replace(usual, reduce_dtype=self.sums or case.reduce_dtype)
        data, recorder = case.model.task.data.synthetic(), comm.recorder or Recorder()
        return Trainer(own, data, comm, recorder, self._kernels(usual, comm))

    def _kernels(self, of: Training, comm: Comm) -> Mapping[str, Kernels]:
        if not self.tuned:
            return {}
        found = products(of, comm.grid, comm.device)
        return {layer: TUNED for one in found if one.movable for layer in one.layers}


USUAL = Way()
IN_FP32 = Way(", sums in fp32", sums="fp32")
EACH = (
    Way(" in micro-batches", micro_batch=1),
    Way(", recomputed", recompute=True),
    IN_FP32,
    Way(", weights by columns", tuned=True),
)
AT_ONCE = Way(", all of these at once", micro_batch=1, recompute=True, sums="fp32", tuned=True)
WAYS = (USUAL, *EACH, AT_ONCE)
