"""Training: a 4D model, its data and its optimizer, stepped for a fixed number of iterations."""

import logging
import math
import socket
import zlib
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from engine.checkpoint import store as checkpoint
from engine.checkpoint.manifest import Manifest, read_manifest, shape_of
from engine.comm.funnel import Comm
from engine.data.sampler import batch
from engine.data.tokens import open_dataset
from engine.errors import RunError
from engine.measure.memory import free_bytes
from engine.measure.recorder import Recorder, Recording
from engine.models.gpt import flops
from engine.models.gpt.model import GPT
from engine.overlap.flags import AUTO
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.precision import Precision
from engine.progress import RENEWED
from engine.result.schema import Iteration
from engine.training.config import TrainConfig
from engine.training.optim import adamw, clip_gradients, gradient_norm, learning_rate, step_only

log = logging.getLogger(__name__)

CACHE_SHARE = 0.5
"""Of the memory left after the first step, what cache="auto" may take unless a budget is given."""


class Diverged(RunError):
    """The loss is no longer a number; every rank sees it in the same step."""


class Step(NamedTuple):
    """What one step tells. loss: mean over the batch in nats; gradient_norm: before clipping."""

    loss: float
    gradient_norm: float
    learning_rate: float
    time_s: float


@dataclass(slots=True)
class Measured:
    """What a run has measured so far. recording: of the counted iterations, on this rank.

    prefetch_bytes, cache_bytes: the most that gathered weights took; cached_blocks: as Overlap.cache came out.
    """

    iterations: list[Iteration] = field(default_factory=list)
    recording: Recording = field(default_factory=Recording)
    prefetch_bytes: int = 0
    cached_blocks: int = 0
    cache_bytes: int = 0


class Trainer:
    """A model on its grid with its data and optimizer; step() is one iteration."""

    def __init__(self, config: TrainConfig, comm: Comm, recorder: Recorder) -> None:
        assert config.grid is not None
        self.config, self.comm, self.recorder = config, comm, recorder
        self.dataset = open_dataset(
            config.data, vocabulary=config.model.vocabulary, sequence_length=config.model.sequence
        )
        with torch.device("meta"):
            serial = GPT(config.model, checkpoint_activations=config.checkpoint_activations)
        precision = Precision.named(config.precision, config.reduce_dtype)
        self.model: ParallelModel = parallelize(
            serial, comm, precision=precision, seed=config.seed, overlap=config.overlap, device=comm.device
        )
        self.optimizer = adamw(self.model.local_parameters(), self.model.placements, config.optim)
        self._cache_unsized = config.overlap.cache == AUTO and self.model.can_cache
        self.done = 0
        """Optimizer steps done, those before a resume included."""
        if config.resume is not None:
            manifest = read_manifest(config.resume, config.model)
            checkpoint.load(config.resume, manifest, self.model, self.optimizer)
            self.done = manifest.step

    def step(self) -> Step:
        """One optimizer step on the next global batch."""
        config, recorder = self.config, self.recorder
        total_tokens = config.batch.sequences * config.model.sequence
        recorder.start_step("forward")
        micro_batches = self._micro_batches()
        self.model.start_step(len(micro_batches))
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.comm.device)
        for sequences, tokens_BS, targets_BS in micro_batches:
            recorder.mark("forward")
            self._place(sequences)
            loss = self.model.loss(tokens_BS, targets_BS) / total_tokens
            recorder.mark("backward")
            loss.backward()
            loss_sum += loss.detach()
        rate = learning_rate(config.optim, self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        recorder.mark("reduce")
        if config.optim.clip:  # by the norm of all gradients, so nothing can be stepped before they are all there
            self.model.finish_step()
            recorder.mark("optimizer")
            norm = gradient_norm(self.model)
            clip_gradients(self.model, norm, config.optim.clip)
            self.optimizer.step()
        else:
            self.model.finish_step(lambda parameters: step_only(self.optimizer, parameters))
            recorder.mark("optimizer")
            norm = gradient_norm(self.model)
        self.done += 1
        self.model.sum_over_batch(loss_sum)
        time_s = recorder.end_step()
        if self._cache_unsized:
            self._size_cache()
        return Step(loss_sum.item(), norm.item(), rate, time_s)

    def _size_cache(self) -> None:
        """Settle cache="auto", once a step has shown how much memory training takes. Collective."""
        self._cache_unsized = False
        budget = self.config.overlap.cache_bytes
        if budget is None:
            host = zlib.crc32(socket.gethostname().encode()) if self.comm.device.type == "cpu" else self.comm.rank
            sharing = self.comm.everyone(torch.tensor([host])).eq(host).sum().item()
            budget = free_bytes(self.comm.device) / sharing * CACHE_SHARE
        fits = min(int(budget / self.model.block_bytes()), self.config.model.layers)
        self.model.cache_blocks(int(self.comm.everyone(torch.tensor([fits])).min().item()))

    def _micro_batches(self) -> list[tuple[range, Tensor, Tensor]]:
        """This rank's share of the step's batch: (sequences, tokens [B, S], targets [B, S])."""
        config, comm = self.config, self.comm
        found: list[tuple[range, Tensor, Tensor]] = []
        for part in config.batch.micro_batches(comm.grid, comm.coords):
            tokens_BS, targets_BS = batch(
                self.dataset,
                seed=config.seed,
                step=self.done,
                batch_size=config.batch.sequences,
                rows=part,
                sequence_length=config.model.sequence,
            )
            to_device = [_to(comm.device, torch.from_numpy(array)) for array in (tokens_BS, targets_BS)]
            found.append((part, to_device[0], to_device[1]))
        return found

    def _place(self, sequences: range) -> None:
        """Tell the dropout masks which rows of the global batch come next."""
        position = self.model.module.position
        position.seed, position.step = self.config.seed, self.done
        position.sequences = torch.arange(sequences.start, sequences.stop, device=self.comm.device)

    def save(self) -> None:
        """Write a checkpoint of the present state."""
        config = self.config
        assert config.save is not None
        manifest = Manifest(
            step=self.done,
            seed=config.seed,
            batch_size=config.batch.sequences,
            dtype=config.precision,
            model=shape_of(config.model),
            files={},
        )
        path = checkpoint.save(config.save, manifest, self.model, self.optimizer)
        log.info("saved %s", path)


def _to(device: torch.device, host: Tensor) -> Tensor:
    """A copy that the host doesn't wait for."""
    return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)


def run_iterations(trainer: Trainer, measured: Measured) -> None:
    """Train for the configured iterations, appending each to measured as it ends.

    Raises Diverged, naming the step, when the loss is no longer a number.
    """
    config, recorder = trainer.config, trainer.recorder
    for index in range(config.iterations):
        if index == config.warmup:
            recorder.clear()
        loss, norm, rate, time_s = trainer.step()
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise Diverged(
                f"The loss became {loss} and the gradient norm {norm} in step {trainer.done} (iteration {index}): "
                f"lower the learning rate or check the data."
            )
        iteration = Iteration(
            index=index,
            time_s=time_s,
            loss=loss,
            grad_norm=norm,
            learning_rate=rate,
            warmup=index < config.warmup,
        )
        measured.iterations.append(iteration)
        log.info("%s", describe(iteration, config), extra=RENEWED)
        measured.recording = recorder.total
        if config.save is not None and trainer.done % config.save_every == 0:
            trainer.save()

    memory = trainer.model.gathered_memory
    measured.prefetch_bytes, measured.cache_bytes = memory.prefetch_bytes, memory.cache_bytes
    measured.cached_blocks = trainer.model.cached_blocks


def describe(iteration: Iteration, config: TrainConfig) -> str:
    """One line for a person who waits."""
    flops_per_s = flops.hardware_flops(config.model, config.batch.sequences, recompute=config.checkpoint_activations)
    return (
        f"iteration {iteration.index + 1}/{config.iterations}{' (warm-up)' if iteration.warmup else ''}"
        f"  {iteration.time_s:.3f} s  loss {iteration.loss:.4f}  gradient {iteration.grad_norm:.3f}"
        f"  {flops_per_s / iteration.time_s / 1e9:,.1f} Gflop/s"
    )
