"""Iterations: steps that are checked, timed and noted; of some, energy and profiles are taken."""

import logging
import math
from contextlib import nullcontext
from dataclasses import dataclass, field

from engine.data.dataset import Dataset
from engine.energy.meter import Meter
from engine.errors import RunError
from engine.measure.recorder import Recording
from engine.models.tasks import Text
from engine.output import RENEWED
from engine.profiling.session import Profiling
from engine.result.schema import Evaluation, Iteration
from engine.result.schema.profile import Profile
from engine.result.schema.step import Breakdown, Energy
from engine.training.config import TrainConfig
from engine.training.trainer import Trainer
from engine.training_record import LEAST_LOSS_SCALE

log = logging.getLogger(__name__)


class Diverged(RunError):
    """The loss is no longer a number, or no gradient is; every rank sees it in the same step."""


@dataclass(slots=True)
class Measurements:
    """Measurements of a run so far."""

    iterations: list[Iteration] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)
    recording: Recording = field(default_factory=Recording)
    """of the counted iterations, on this rank"""
    prefetch_bytes: int = 0
    """the most that weights gathered ahead took"""
    cached_blocks: int = 0
    """number that Overlap.cache kept"""
    cache_bytes: int = 0
    """the most that they took"""
    peak_flops_per_s: float | None = None
    """of matrix products on each rank, all at once, where that was asked for"""
    energy: Energy | None = None
    breakdown: Breakdown | None = None
    profile: Profile | None = None


def take_iteration(trainer: Trainer, index: int, *, warmup: bool, profiled: bool = False) -> Iteration:
    """Take one step and check it. Raises Diverged, naming the step, when the loss is no longer a number, or no loss
    scale mends an overflow.
    """
    step = trainer.step()
    if not math.isfinite(step.loss) or not (math.isfinite(step.gradient_norm) or step.skipped):
        raise Diverged(
            f"The loss became {step.loss} and the gradient norm {step.gradient_norm} in step {trainer.done} "
            f"(iteration {index}): lower the learning rate or check the data."
        )
    if step.skipped and step.loss_scale is not None and step.loss_scale <= LEAST_LOSS_SCALE:
        raise Diverged(
            f"Gradients overflow fp16 even at a loss scale of {step.loss_scale:g} in step {trainer.done} (iteration "
            f"{index}): lower the learning rate, check the data or train in bf16 or fp32."
        )
    return Iteration(
        index=index,
        time_s=step.time_s,
        loss=step.loss,
        grad_norm=None if step.skipped else step.gradient_norm,
        learning_rate=step.learning_rate,
        warmup=warmup,
        profiled=profiled,
        loss_scale=step.loss_scale,
        skipped=step.skipped,
    )


def run_iterations(
    trainer: Trainer,
    config: TrainConfig,
    measurements: Measurements,
    meter: Meter,
    profiling: Profiling | None = None,
    evaluated: Dataset | None = None,
) -> None:
    """Train for the configured iterations, noting each as it ends, profiling some if asked to. Raises Diverged.

    meter: of energy, of the counted ones. evaluated: data of which the loss is wanted after some steps.
    """
    training, recorder = trainer.training, trainer.recorder
    flops = training.flops
    for index in range(config.iterations):
        if index == config.warmup:
            recorder.clear()
            meter.start()
        profiled = profiling is not None and index in profiling.request.iterations
        apart = meter.paused() if profiled and index >= config.warmup else nullcontext()
        with apart, profiling.record(index) if profiling is not None and profiled else nullcontext():
            iteration = take_iteration(trainer, index, warmup=index < config.warmup, profiled=profiled)
        measurements.iterations.append(iteration)
        log.info("%s", describe(iteration, config.iterations, flops), extra=RENEWED)
        measurements.recording = recorder.total
        counted = index >= config.warmup
        if counted:
            meter.between_steps()
        saves = config.save is not None and trainer.done % config.save_every == 0
        evaluates = evaluated is not None and (
            trainer.done % config.evaluate_every == 0 or index == config.iterations - 1
        )
        with meter.paused() if counted and (saves or evaluates) else nullcontext():
            if saves and config.save is not None:
                trainer.save(config.save)
            if evaluates and evaluated is not None:
                measurements.evaluations.append(_evaluate(trainer, evaluated))
    meter.stop()
    memory = trainer.model.gathered_memory
    measurements.prefetch_bytes, measurements.cache_bytes = memory.prefetch_bytes, memory.cache_bytes
    measurements.cached_blocks = trainer.model.cached_blocks


def _evaluate(trainer: Trainer, dataset: Dataset) -> Evaluation:
    found = trainer.evaluate(dataset)
    evaluation = Evaluation(
        step=trainer.done, loss=found.loss, right=found.right, samples=found.samples, time_s=found.time_s
    )
    of_text = isinstance(trainer.training.model.task.data, Text)
    log.info("after step %d: %s", trainer.done, evaluation.told(of_text=of_text))
    return evaluation


def describe(iteration: Iteration, iterations: int, flops: float) -> str:
    """Write one line for a person who waits. iterations: of the run; flops: of each."""
    apart = " (profiled)" if iteration.profiled else " (warm-up)" if iteration.warmup else ""
    norm = "overflows, skipped" if iteration.grad_norm is None else f"{iteration.grad_norm:.3f}"
    return (
        f"iteration {iteration.index + 1}/{iterations}{apart}"
        f"  {iteration.time_s:.3f} s  loss {iteration.loss:.4f}  gradient {norm}"
        f"  {flops / iteration.time_s / 1e9:,.1f} Gflop/s"
    )
