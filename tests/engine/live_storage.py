"""How much memory tensors take: every storage that an operation makes, for as long as it lives."""

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorage(TorchDispatchMode):
    """Counts bytes; peak is the most that lived at the end of any operation. An operation's own scratch isn't seen."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        known = len(self._alive)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        if len(self._alive) > known:
            self.peak = max(self.peak, self.now)
        return out

    @property
    def now(self) -> int:
        """Bytes alive."""
        self._alive = {key: kept for key, kept in self._alive.items() if not kept[0].expired()}
        return sum(size for _, size in self._alive.values())

    def _see(self, tensor: Tensor) -> None:
        storage: Any = tensor.untyped_storage()
        self._alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))


def peak_of_steps(plan: Any, rank: int = 0, steps: int = 2) -> int:
    """The most bytes that one rank's tensors take in some training steps, its state included; nothing is sent."""
    from fake_ranks import fake_group

    from engine.comm.funnel import Comm
    from engine.measure.recorder import Recorder
    from engine.training.trainer import Trainer

    with fake_group(plan.grid, rank), LiveStorage() as live:
        recorder = Recorder()
        trainer = Trainer(plan, Comm(plan.grid, recorder=recorder), recorder)
        live.peak = live.now
        for _ in range(steps):
            recorder.start_step("forward")
            trainer.launch_step()
            recorder.end_step()
    return live.peak
