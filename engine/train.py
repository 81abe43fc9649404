"""Training: a 4D model, its data and its optimizer, stepped for a fixed number of iterations."""

import logging
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine import checkpoint, flops
from engine.comm import Comm
from engine.config import TrainConfig
from engine.data import batch, open_dataset, rows
from engine.errors import RunError
from engine.manifest import Manifest, read_manifest, shape_of
from engine.models.gpt import GPT
from engine.optim import adamw, clip_gradients, gradient_norm, learning_rate
from engine.parallelize import ParallelModel, parallelize
from engine.precision import Precision
from engine.progress import RENEWED
from engine.recorder import Recorder, Tally
from engine.result import Iteration

log = logging.getLogger(__name__)


class Diverged(RunError):
    """The loss is no longer a number; every rank sees it in the same step."""


@dataclass(slots=True)
class Measured:
    """What a run has measured so far. collectives: sums over the counted iterations of this rank."""

    iterations: list[Iteration] = field(default_factory=list)
    collectives: dict[tuple[str, str], Tally] = field(default_factory=dict)


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
        self.model: ParallelModel = parallelize(serial, comm, precision=precision, seed=config.seed, device=comm.device)
        self.optimizer = adamw(self.model.local_parameters(), self.model.placements, config.optim)
        self.done = 0
        """Optimizer steps done, those before a resume included."""
        if config.resume is not None:
            manifest = read_manifest(config.resume, config.model)
            checkpoint.load(config.resume, manifest, self.model, self.optimizer)
            self.done = manifest.step

    def step(self) -> tuple[float, float, float]:
        """One optimizer step on the next global batch; returns (mean loss in nats, gradient norm, learning rate)."""
        config = self.config
        total_tokens = config.batch.sequences * config.model.sequence
        self.model.start_step()
        loss_sum = torch.zeros((), dtype=torch.float64, device=self.comm.device)
        for sequences, tokens_BS, targets_BS in self._micro_batches():
            self._place(sequences)
            loss = self.model.loss(tokens_BS, targets_BS) / total_tokens
            loss.backward()
            loss_sum += loss.detach()
        self.model.finish_step()
        norm = gradient_norm(self.model)
        if config.optim.clip:
            clip_gradients(self.model, norm, config.optim.clip)
        rate = learning_rate(config.optim, self.done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.done += 1
        return self.model.sum_over_batch(loss_sum).item(), norm.item(), rate

    def _micro_batches(self) -> list[tuple[range, Tensor, Tensor]]:
        """This rank's share of the step's batch: (sequences, tokens [B, S], targets [B, S])."""
        config, comm = self.config, self.comm
        share = rows(comm.grid, comm.coords, config.batch.sequences)
        size = config.batch.micro or len(share)
        found: list[tuple[range, Tensor, Tensor]] = []
        for start in range(share.start, share.stop, size):
            part = range(start, start + size)
            tokens_BS, targets_BS = batch(
                self.dataset,
                seed=config.seed,
                step=self.done,
                batch_size=config.batch.sequences,
                rows=part,
                sequence_length=config.model.sequence,
            )
            to_device = [torch.from_numpy(array).to(comm.device) for array in (tokens_BS, targets_BS)]
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


def run_iterations(trainer: Trainer, measured: Measured) -> None:
    """Train for the configured iterations, appending each to measured as it ends.

    Raises Diverged, naming the step, when the loss is no longer a number.
    """
    config, recorder = trainer.config, trainer.recorder
    clock = recorder.clock
    for index in range(config.iterations):
        if index == config.warmup:
            recorder.clear()
        start = clock.stamp()
        loss, norm, rate = trainer.step()
        time_s = clock.seconds(start, clock.stamp())
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
        recorder.settle()
        log.info("%s", describe(iteration, config), extra=RENEWED)
        if index + 1 == config.iterations:
            measured.collectives = recorder.read()
        if config.save is not None and trainer.done % config.save_every == 0:
            trainer.save()


def describe(iteration: Iteration, config: TrainConfig) -> str:
    """One line for a person who waits."""
    flops_per_s = flops.hardware_flops(config.model, config.batch.sequences, recompute=config.checkpoint_activations)
    return (
        f"iteration {iteration.index + 1}/{config.iterations}{' (warm-up)' if iteration.warmup else ''}"
        f"  {iteration.time_s:.3f} s  loss {iteration.loss:.4f}  gradient {iteration.grad_norm:.3f}"
        f"  {flops_per_s / iteration.time_s / 1e9:,.1f} Gflop/s"
    )
