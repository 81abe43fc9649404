"""Trainer: steps a 4D model with its data and its optimizer."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from engine.checkpoint.manifest import Manifest, Scale
from engine.comm.funnel import Comm
from engine.data import sampler
from engine.data.dataset import Dataset
from engine.data.sampler import to_device
from engine.grid import CUTTING_STAGES
from engine.layers.counter_random import BatchRows
from engine.layers.matmul import Kernels
from engine.measure.memory import free_bytes, give_memory_back
from engine.measure.recorder import Recorder
from engine.models.adapters.files import weights_of
from engine.overlap.flags import AUTO, Overlap
from engine.parallel.model import ParallelModel, clip_scale
from engine.parallel.parallelize import parallelize
from engine.parallel.runner import MicroBatch, Runner
from engine.precision import Precision
from engine.training.optim import OPTIMIZERS, MakeOptimizer, Optimizer
from engine.training_record import FIRST_LOSS_SCALE, Training

if TYPE_CHECKING:
    from engine.checkpoint.manifest import Saved
    from engine.checkpoint.store import Destination
    from engine.models.adapters.folder import Pretrained

log = logging.getLogger(__name__)


EVALUATION_SEED = 0
"""Seed of the order of samples that are evaluated, and of what is masked of them, whatever a training's is."""
SCALE_INTERVAL = 2000
"""Good steps in a row after which the scale doubles: GradScaler's growth_interval."""


@dataclass(frozen=True, slots=True)
class LossScale:
    """Scale of the loss in fp16, for gradients of its small range (Micikevicius et al. 2018, section 3.2).

    Gradients below 2^-24 would vanish, and those above 65,504 overflow. So the loss is multiplied by a scale, which is
    as large as no gradient overflows: where one does, the step is skipped and the scale halves, and after many good
    steps it doubles. The numbers are those of torch.amp.GradScaler.
    """

    value: float = FIRST_LOSS_SCALE
    good_steps: int = 0
    """in a row, at this scale"""
    skipped: int = 0
    """of all steps"""
    interval: int = SCALE_INTERVAL

    def after(self, *, taken: bool) -> "LossScale":
        """Return the scale of the next step, once this one was taken or skipped."""
        if not taken:
            return replace(self, value=self.value / 2, good_steps=0, skipped=self.skipped + 1)
        if self.good_steps + 1 >= self.interval:
            return replace(self, value=self.value * 2, good_steps=0)
        return replace(self, good_steps=self.good_steps + 1)


class Step(NamedTuple):
    """Outcome of a step."""

    loss: float
    """mean over the batch, in nats"""
    gradient_norm: float
    """before clipping, and without the loss scale"""
    learning_rate: float
    time_s: float
    loss_scale: float | None = None
    """of fp16 alone"""

    @property
    def skipped(self) -> bool:
        """Whether the step was skipped, as a gradient had overflowed at that loss scale."""
        return self.loss_scale is not None and not math.isfinite(self.gradient_norm)


class Evaluated(NamedTuple):
    """Outcome of an evaluation."""

    loss: float
    """mean, in nats"""
    right: float | None
    """share of tokens or images whose target has the highest logit; None where nothing is right or wrong"""
    samples: int
    time_s: float


class Trainer:
    """Model on its grid with its data and optimizer; step() is one iteration.

    kernels: how layers multiply, by their names. overlaps: between which the run will switch. pretrained: whose weights
    it begins with; saved: the checkpoint that it resumes instead.
    """

    def __init__(
        self,
        training: Training,
        dataset: Dataset,
        comm: Comm,
        recorder: Recorder,
        kernels: Mapping[str, Kernels] = MappingProxyType({}),
        *,
        overlaps: Sequence[Overlap] = (),
        pretrained: "Pretrained | None" = None,
        saved: "Saved | None" = None,
        optimizer: MakeOptimizer | None = None,
    ) -> None:
        """optimizer: in the place of the one that the training names."""
        self.training, self.dataset, self.comm, self.recorder = training, dataset, comm, recorder
        fresh, staged = pretrained if saved is None else None, training.staged(comm.grid)
        with weights_of(fresh) if fresh is not None else nullcontext() as loader:
            self.model: ParallelModel = parallelize(
                training.model,
                comm,
                precision=Precision.parse(*training.formats),
                device=comm.device,
                kernels=kernels,
                loader=loader,
                cut=staged.cut,
                **training.for_model(comm.grid),
            )
        self.runner = Runner(self.model, staged.schedule)
        self.optimizer: Optimizer = (optimizer or OPTIMIZERS[training.optimizer])(self.model, training.optim)
        self._auto_blocks: int | None = None
        """Number of blocks that cache="auto" keeps, once a step has shown how much memory training takes."""
        self._unsized = self.model.can_cache and any(o.cache == AUTO for o in (training.overlap, *overlaps))
        self.done = 0
        """Number of optimizer steps that are done, those before a resume included."""
        self.loss_scale = LossScale() if training.precision == "fp16" else None
        self.reads_ahead = comm.device.type == "cuda"
        """Whether the next batch is read while the device is still busy with this one, as a processor never is."""
        self._ahead: tuple[int, Training, list[MicroBatch]] | None = None
        self._destination: Destination | None = None
        if saved is not None:
            from engine.checkpoint import store  # takes long to load, and few runs need it

            self.done = saved.manifest.step
            if self.loss_scale is not None and saved.manifest.loss_scale is not None:
                self.loss_scale = LossScale(**saved.manifest.loss_scale.model_dump())
            store.load(saved, self.model, self.optimizer.state)

    def step(self) -> Step:
        """Take one optimizer step on the next global batch. The host waits for the device once, at the end,
        and in fp16 for the norm.
        """
        scale = self.loss_scale
        self.recorder.start_step("forward")
        both = torch.stack(self.launch_step())
        if self.reads_ahead:
            self._ahead = self.done, self.training, self._micro_batches()
        time_s = self.recorder.end_step()
        loss, norm = both.tolist()
        self.comm.outstanding.mark_synchronised()
        if self._unsized:
            self._size_cache()
        return Step(loss, norm, self.optimizer.learning_rate, time_s, None if scale is None else scale.value)

    def switch(self, overlap: Overlap) -> None:
        """Use this overlap from the next step on."""
        self.model.switch(overlap)
        self._keep_auto()

    def _keep_auto(self) -> None:
        if self._auto_blocks is not None and self.model.schedule.overlap.cache == AUTO:
            self.model.cache_blocks(self._auto_blocks)

    def launch_step(self) -> tuple[Tensor, Tensor]:
        """Launch one optimizer step, for which the host waits in fp16 only: mean loss and gradient norm, in float64."""
        clip, model, recorder, scale = self.training.optim.clip, self.model, self.recorder, self.loss_scale
        micro_batches = self._next_batch()
        divisor = self._valid(micro_batches)
        if scale is not None:  # here, before a gradient is rounded; a number would be compiled in, again and again
            divisor = divisor * torch.full((), 1 / scale.value, dtype=torch.float64, device=self.comm.device)
        loss_sum = self.runner.run(micro_batches, divisor, recorder.mark)
        self.optimizer.start_step(self.done, skipped=0 if scale is None else scale.skipped)
        recorder.mark("reduce")
        if scale is not None:
            loss_sum /= scale.value
            norm = self._step_scaled(scale)
        elif clip:  # by the norm of all gradients, so nothing can be stepped before they are all there
            model.finish_step()
            recorder.mark("optimizer")
            norm = model.gradient_norm()
            self.optimizer.step(scale=clip_scale(norm, clip))
        else:
            model.finish_step(self.optimizer.step)
            recorder.mark("optimizer")
            norm = model.gradient_norm()
        self.done += 1
        return model.sum_losses(loss_sum), norm.double()

    def _step_scaled(self, scale: LossScale) -> Tensor:
        """Step, unless a gradient of any rank has overflowed, and choose the next scale; return the unscaled norm.

        An overflow makes the norm infinite or NaN, which all ranks share. The host waits for it, once more than in
        other formats, which is simpler than an optimizer that undoes a step on the device.
        """
        self.model.finish_step()
        self.recorder.mark("optimizer")
        norm = self.model.gradient_norm() / scale.value
        taken = norm.is_meta or math.isfinite(norm.item())
        if taken:
            self.optimizer.step(scale=clip_scale(norm, self.training.optim.clip or math.inf) / scale.value)
        self.loss_scale = scale.after(taken=taken)
        return norm

    def _size_cache(self) -> None:
        """Size cache="auto", once a step has shown how much memory training takes: each pass that is under way keeps
        a cached block's weights. Collective.
        """
        self._unsized = False
        overlap, free = self.training.overlap, 0.0
        if overlap.cache_bytes is None:
            free = free_bytes(self.comm.device) / self.comm.ranks_sharing_memory()
        passes = self.training.under_way(self.comm.grid, self.comm.coords[CUTTING_STAGES])
        needed = [passes * block_bytes for block_bytes in self.model.block_bytes()]
        fits = overlap.auto_blocks(free, needed)
        stage = self.comm.coords[CUTTING_STAGES]
        if fits == len(needed) < sum(map(len, self.model.cut.blocks[stage])):
            fits = self.training.model.layers  # a stage that recomputes few blocks, or none, holds back no other
        self._auto_blocks = int(self.comm.gather_rows(torch.tensor([fits])).min().item())
        self._keep_auto()

    def _valid(self, micro_batches: list[MicroBatch]) -> float | Tensor:
        """Count the things of the global batch over which the loss is a mean."""
        own = sum(self.training.model.task.valid(batch) for _, batch in micro_batches)
        if isinstance(own, Tensor):
            return self.model.sum_over_batch(own.double())
        return own * self.comm.grid.batch_split

    def evaluate(self, dataset: Dataset) -> Evaluated:
        """Evaluate the network on a dataset, as many whole batches of training as it has. Collective."""
        batch, start = self.training.batch.sequences, time.perf_counter()
        totals = torch.zeros(2, dtype=torch.float64, device=self.comm.device)
        count: float | Tensor = 0.0
        for number in range(batches := dataset.count // batch):
            micro_batches = self._read(dataset, number, EVALUATION_SEED)
            count = count + self._valid(micro_batches)
            totals += torch.stack(self.runner.evaluate(micro_batches))
        loss, right = (self.model.sum_losses(total) / count for total in totals)
        share = right.item()
        seconds = time.perf_counter() - start
        return Evaluated(loss.item(), None if math.isnan(share) else share, batches * batch, seconds)

    def _next_batch(self) -> list[MicroBatch]:
        """Return what was read ahead, if it is of this step; else read it."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead[0] == self.done and ahead[1] is self.training:
            return ahead[2]
        return self._micro_batches()

    def _micro_batches(self) -> list[MicroBatch]:
        """Make this rank's share of the step's batch."""
        return self._read(self.dataset, self.done, self.training.seed)

    def _read(self, dataset: Dataset, step: int, seed: int) -> list[MicroBatch]:
        """Make this rank's share of a step's batch of a dataset."""
        training, comm = self.training, self.comm
        found: list[MicroBatch] = []
        for part in training.batch.micro_batches(comm.grid, comm.coords):
            read = sampler.batch(
                dataset, training.model.task.batch, seed=seed, step=step, batch_size=training.batch.sequences, rows=part
            )
            sequences = torch.arange(part.start, part.stop, device=comm.device)
            rows = BatchRows(seed, step, sequences)
            found.append((rows, to_device(comm.device, read)))
        return found

    def drop(self) -> None:
        """Let go of the model and the optimizer, after which no step can be taken, and give their memory back."""
        del self.model, self.runner, self.optimizer
        self._ahead = None
        give_memory_back(self.comm.device)

    def claim(self, folder: Path) -> None:
        """Make a folder this run's, for its checkpoints. Collective. Raises UsageError on all ranks."""
        from engine.checkpoint import store

        self._destination = store.Destination.claimed(folder, self.comm)

    def release(self) -> None:
        """Let other runs have the folder of checkpoints."""
        if self._destination is not None:
            self._destination.release()
        self._destination = None

    def save(self, folder: Path) -> Path:
        """Write a checkpoint of the present state below this folder, claimed if need be; returns its own."""
        from engine.checkpoint import store

        if self._destination is None or self._destination.folder != folder:
            self.release()
            self.claim(folder)
        assert self._destination is not None
        training = self.training
        manifest = Manifest(
            step=self.done,
            seed=training.seed,
            batch_size=training.batch.sequences,
            dtype=training.precision,
            family=training.model.family,
            name=training.model.name,
            model=training.model.shape,
            files={},
            loss_scale=None if self.loss_scale is None else Scale(**asdict(self.loss_scale)),
            data=self.dataset.identity,
        )
        path = store.save(self._destination, manifest, self.model, self.optimizer.state)
        log.info("saved %s", path)
        return path
