"""Checks of a run before anything starts, and notices of what is likely not meant. No torch."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from engine.data.dataset import Dataset, open_dataset
from engine.errors import UsageError, check_installed
from engine.footprint.fit import check_grid, check_memory, choose_schedule, fits_nodes
from engine.grid import Grid
from engine.models.architecture import MOST, Architecture
from engine.options import check_file, check_folder
from engine.overlap.flags import ALL, AUTO, Overlap, Pace
from engine.planning.rank import choose_grid
from engine.simulator.bandwidth import Bandwidths
from engine.training.config import TrainConfig, TuneMatmul
from engine.training.data_checks import MOST_NAMED, check_classes, check_tokenizer, open_evaluated
from engine.training_record import Training

if TYPE_CHECKING:
    from engine.checkpoint.manifest import Saved
    from engine.comm.funnel import Comm
    from engine.models.adapters.folder import Pretrained
    from engine.result.schema import Iteration
    from engine.result.schema.contest import Contest
    from engine.training.trainer import Trainer

RunKind = Literal["train", "ablation", "pipeline", "grids", "optimisations"]


class MakeTrainer(Protocol):
    """Maker of a trainer of these options. tune_matmul: whether its products are tuned first; as the run says if None.
    Collective.
    """

    def __call__(self, training: Training, comm: "Comm", *, tune_matmul: TuneMatmul | None = None) -> "Trainer": ...


@dataclass(frozen=True, slots=True)
class ContestSetup:
    """Parts of a run that its contest takes, once the ranks have met."""

    trainer: "Trainer"
    """Trains what the run says."""
    connect: "Callable[[Grid], Comm]"
    """Connects the ranks as another grid. Collective."""
    make: MakeTrainer
    iterations: "list[Iteration]"
    """Each step is added to them."""
    began: float
    """When the run did, on time.monotonic()'s clock."""
    link_bytes_per_s: float | None = None
    """Rate of a node's network, one way, where it is known."""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """Run that has passed every check that needs no process: what was asked for, and the training that it came to.

    saved: the checkpoint that it resumes. pretrained: the folder of --model hf:DIR.
    """

    kind: ClassVar[RunKind] = "train"
    config: TrainConfig
    training: Training
    grid: Grid
    dataset: Dataset
    saved: "Saved | None" = None
    pretrained: "Pretrained | None" = None
    evaluated: Dataset | None = None
    """data that is evaluated, if any is"""

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """List the overlaps that the run takes."""
        return (self.training.overlap,)

    @property
    def grids(self) -> tuple[Grid, ...]:
        """List the grids that the run takes, its own first."""
        return (self.grid,)

    @property
    def trainings(self) -> tuple[tuple[Training, Grid], ...]:
        """List the trainings that the run takes, each with its grid."""
        return ((self.training, self.grid),)

    def verify(self) -> None:
        """Read all data, and raise UsageError for what isn't as it was prepared."""
        self.dataset.verify()
        if self.evaluated is not None:
            self.evaluated.verify()

    def compare(self, setup: ContestSetup) -> "Contest | None":
        """Carry out the contest that the run is; None for a training. Collective. Raises Diverged."""
        return None

    def as_options(self) -> dict[str, Any]:
        """Give, for the record, every option as it came out, in JSON's types: a later default changes nothing of it."""
        training, overlap = self.training, self.training.overlap
        options = asdict(self.config)
        del options["labels"]
        options |= {"model": training.model.options, "grid": str(self.grid)}
        del options["pipe"]
        options["pipeline"] = None if self.grid.stages == 1 else self._pipeline()
        options |= training.options_on(self.grid)
        options["data_sha256"] = self.dataset.identity
        options["evaluation_sha256"] = self.evaluated and self.evaluated.identity
        options["batch"]["micro"] = training.batch.at_once(self.grid)
        del options["overlap"]
        options |= {pace.name: getattr(overlap, pace.name) for pace in fields(Pace)}
        options["overlap"] = str(overlap)
        if self.saved is not None:
            options["resume"] = self.saved.folder
        return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}

    def _pipeline(self) -> dict[str, Any]:
        staged = self.training.staged(self.grid)
        blocks = [[len(chunk) for chunk in stage] for stage in staged.cut.blocks]
        return {**asdict(staged.choice), "schedule": staged.choice.name, "blocks": blocks}


def checked(config: TrainConfig, ranks: int, *, needs_weights: bool = True) -> CheckedRun:
    """Check what the run comes to on so many ranks, as far as that needs no process. Raises UsageError.

    needs_weights: whether those of --model hf:DIR have to be there already.
    """
    if ranks < 1:
        raise UsageError(f"--ranks is a number of processes from 1 up, but {ranks} was given.")
    if config.iterations < 1 or not 0 <= config.warmup < config.iterations:
        raise UsageError(
            f"A run needs at least one iteration after its warm-up, but {config.iterations} iterations with a warm-up "
            f"of {config.warmup} were asked for."
        )
    _check_numbers(config)
    _check_places(config)
    _check_profile(config, ranks)
    pretrained = config.model.pretrained() if needs_weights or config.model.has_weights() else None
    model = pretrained.architecture if pretrained is not None else config.model.resolve()
    _check_pretrained(config, pretrained)
    check_cache(config.overlap, model)
    config.check(model)
    if (config.save is None) != (config.save_every == 0) or config.save_every < 0:
        raise UsageError("Saving needs both --save DIR and --save-every N with N at least 1.")
    training, device = config.training(model), config.device_kind
    grid = _grid(config) or choose_grid(
        training,
        ranks,
        device=device,
        devices_per_node=config.devices_per_node,
        device_memory=config.device_memory,
        bandwidths=_bandwidths(config),
    )
    if grid.size != ranks:
        otherwise = "use --grid auto" if grid.stages == 1 else "give another --pipe"
        raise UsageError(
            f"Grid {grid} has {grid.size} ranks, but {ranks} {'was' if ranks == 1 else 'were'} started: start "
            f"{grid.size}, or {otherwise}."
        )
    check_grid(model, grid, config.batch)
    training.check_mode(grid)
    if config.tune_matmul and training.mode(grid).square:
        raise UsageError(
            f"--tune-matmul times whole products, but --tensor-mode {training.tensor_mode} multiplies panels: leave "
            "one of both out."
        )
    if config.device_memory is not None:
        training = choose_schedule(training, grid, config.device_memory, device)
        check_memory(training, grid, config.device_memory, device)
    training.staged(grid)
    dataset = open_dataset(config.data, model.task.data)
    saved, evaluated = _saved(config, model, dataset), open_evaluated(config, model, dataset)
    if pretrained is not None:
        check_tokenizer(pretrained, dataset)
        check_classes(pretrained, dataset)
    training = training.with_bucket(grid, config.link_bytes_per_s, config.devices_per_node)
    return CheckedRun(config, training, grid, dataset, saved, pretrained, evaluated)


def _grid(config: TrainConfig) -> Grid | None:
    """Give the grid that was asked for, with its stages; None for auto."""
    grid, pipe = config.grid, config.pipe
    if pipe is None:
        return grid
    if grid is None and pipe != 1:
        raise UsageError(
            f"--pipe {pipe} needs the grid of a stage, where no system's facts choose one: give --grid XxYxZxDATA, or "
            "--system NAME."
        )
    return grid and grid.with_stages(pipe)


def _bandwidths(config: TrainConfig) -> Bandwidths | None:
    """Give the bandwidths of the machine, if they are known."""
    inter, within = config.link_bytes_per_s, config.intra_node_bytes_per_s
    return None if inter is None or within is None else Bandwidths(config.devices_per_node, inter, within)


def check_cache(overlap: Overlap, model: Architecture) -> None:
    """Raise UsageError for a cache of more blocks than there are."""
    if overlap.cache != AUTO and overlap.cache > model.layers:
        raise UsageError(
            f"--overlap cache={overlap.cache} keeps the weights of {overlap.cache} blocks, but {model.name} has "
            f"{model.layers}: use cache={model.layers} or fewer."
        )


def _saved(config: TrainConfig, model: Architecture, dataset: Dataset) -> "Saved | None":
    """Find the checkpoint to resume. Raises UsageError if it is not of this run."""
    if config.resume is None:
        if config.other_data:
            raise UsageError("--other-data is of a checkpoint that is resumed: add --resume DIR.")
        return None
    from engine.checkpoint.manifest import Saved, find, read_manifest

    folder = find(config.resume)
    manifest = read_manifest(folder, model)
    if manifest.batch_size != config.batch.sequences or manifest.seed != config.seed:
        raise UsageError(
            f"The checkpoint {folder} was trained with --batch-size {manifest.batch_size} --seed {manifest.seed}: "
            f"resume it with the same, or its place in the data is lost."
        )
    known = manifest.data is not None and dataset.identity is not None
    if known and manifest.data != dataset.identity and not config.other_data:
        raise UsageError(
            f"The checkpoint {folder} was trained on other data than --data {config.data}: give what it was trained "
            "on, or --other-data to go on with these."
        )
    return Saved(folder, manifest)


def _check_numbers(config: TrainConfig) -> None:
    """Raise UsageError for an option that is out of its range."""
    optim = config.optim
    positive: dict[str, float | None] = {
        "--batch-size": config.batch.sequences,
        "--micro-batch": config.batch.micro,
        "--learning-rate": optim.learning_rate,
        "--devices-per-node": config.devices_per_node,
        "--device-memory": config.device_memory,
        "--peak-flops": config.peak_flops,
        "--empirical-peak-flops": config.empirical_peak_flops,
        "--link-bytes-per-s": config.link_bytes_per_s,
        "--intra-node-bytes-per-s": config.intra_node_bytes_per_s,
    }
    not_negative = {
        "--clip": optim.clip,
        "--weight-decay": optim.weight_decay,
        "--lr-warmup-steps": optim.warmup_steps,
        "--lr-decay-steps": optim.decay_steps,
    }
    for option, value in positive.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{option} is a positive number, but {value} was given.")
    for option, value in not_negative.items():
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"{option} is a number from 0 up, but {value} was given.")
    for option, value in (("--beta1", optim.beta1), ("--beta2", optim.beta2)):
        if not 0 <= value < 1:
            raise UsageError(f"{option} is a number from 0 up and below 1, but {value} was given.")
    if config.batch.sequences > MOST:
        raise UsageError(f"--batch-size is at most {MOST}, but {config.batch.sequences} was given.")


def _check_profile(config: TrainConfig, ranks: int) -> None:
    """Raise UsageError for a profile of what isn't there, or one that leaves nothing to count."""
    if config.profile is None:
        if config.profile_iterations or config.profile_ranks != (0,):
            raise UsageError("--profile-iterations and --profile-ranks say what of a run --profile DIR takes: add it.")
        return
    chosen, last = config.profiled_iterations, config.iterations - 1
    if chosen[-1] > last or chosen != tuple(range(chosen[0], chosen[-1] + 1)):
        raise UsageError(
            f"--profile-iterations are one stretch among 0 to {last}, such as {max(0, last - 1)}..{last}, but "
            f"{','.join(map(str, chosen))} were asked for."
        )
    if not set(range(config.warmup, config.iterations)) - set(chosen):
        raise UsageError(
            f"What is profiled doesn't count: of {config.iterations} iterations with a warm-up of {config.warmup} none "
            f"would be left, so use --iterations {config.iterations + 1} or more."
        )
    if strange := [rank for rank in config.profile_ranks if rank >= ranks]:
        raise UsageError(f"--profile-ranks names rank {strange[0]}, but there are {ranks}: they count from 0.")


def _check_pretrained(config: TrainConfig, pretrained: "Pretrained | None") -> None:
    """Raise UsageError unless what reads weights is there, a format to write them in, and a folder that is empty."""
    if pretrained is not None:
        check_installed("safetensors", "safetensors", "The weights of --model hf:DIR are read by safetensors")
    if config.export is None:
        return
    if config.model.folder is None:
        raise UsageError("--export DIR writes the network of --model hf:DIR in its format: give that, or --save DIR.")
    check_folder("--export", config.export.absolute().parent)
    if config.export.exists() and (not config.export.is_dir() or any(config.export.iterdir())):
        raise UsageError(f"--export {config.export} is not empty: name a new folder, nothing is written over.")


def _check_places(config: TrainConfig) -> None:
    """Raise UsageError unless the result, and checkpoints if any, can be written where they should go."""
    check_file("--out", config.out)
    if config.timeline is not None:
        check_file("--timeline", config.timeline)
    if config.save is not None:
        check_folder("--save", config.save)


WAITS = "--overlap data sums gradients early, but the optimizer waits for all of them: "
CLIPPED = WAITS + "clipping needs the norm of the whole gradient (--clip 0 steps each bucket as it is summed)."
SCALED = WAITS + "in fp16 a step is skipped where any gradient overflows."


def notices(run: CheckedRun) -> list[str]:
    """Say what of the run is likely not meant, a sentence each: a grid that ill suits the nodes, an overlap that was
    asked for by name and does nothing.
    """
    config, overlap, grid = run.config, run.training.overlap, run.grid
    found: list[str] = []
    if config.devices_per_node > 1 and not fits_nodes(grid, config.devices_per_node):
        found.append(
            f"Grid {grid} lays planes of x and y, {grid.plane} ranks each, across the border of nodes of "
            f"{config.devices_per_node} devices: their sums leave the node where grids of --grid auto don't."
        )
    if run.saved is not None and None in (run.saved.manifest.data, run.dataset.identity):
        found.append(
            f"Whether --data {config.data} is what {run.saved.folder} was trained on isn't known, as one of them is of "
            "an older Par4D, which kept no digests."
        )
    if run.pretrained is not None and run.pretrained.tokenizer is None and run.dataset.tokenizer is not None:
        found.append(
            f"Whether the tokens of --data {config.data} are those of {run.pretrained.folder} isn't known, as that has "
            "no tokenizer.json: --export writes the tokenizer of the data."
        )
    if config.model.folder is not None and run.pretrained is None:
        found.append(f"{config.model.folder} has no weights in safetensors yet, which train needs.")
    if config.export is not None and run.pretrained is not None:
        from engine.models.adapters.folder import list_unread  # loads numpy

        if names := list_unread(run.pretrained.folder):
            found.append(f"--export copies {', '.join(names)} as they are, which nothing here reads.")
    if run.pretrained is not None and run.dataset.classes and run.dataset.classes != run.pretrained.classes:
        found.append(
            f"The labels of --data {config.data} stand for {', '.join(run.dataset.classes[:MOST_NAMED])}, but those of "
            f"{run.pretrained.folder} for {', '.join(run.pretrained.classes[:MOST_NAMED]) or 'nothing that it names'}: "
            "an export keeps its id2label."
        )
    if run.saved is not None and not run.saved.manifest.sha256:
        found.append(
            f"Whether {run.saved.folder} is as it was written isn't known: it is of before there were digests."
        )
    if config.messages == "mpi" and not config.over_mpi(grid):
        found.append(f"--messages mpi carries nothing here: grid {grid} has one stage.")
    passes = run.training.passes(grid)
    if passes < grid.stages:
        found.append(
            f"{grid.stages} stages take turns with {passes} micro-batch{'es' if passes > 1 else ''} a step, so that "
            "most stand still: use a smaller --micro-batch or a larger --batch-size."
        )
    if str(overlap) == str(ALL):
        return found
    if overlap.cache and not run.training.checkpoint_activations:
        found.append(
            f"--overlap cache={overlap.cache} does nothing here: without --checkpoint-activations each weight is "
            "gathered only once."
        )
    if overlap.data and run.grid.model_replicas > 1:
        found += why_late(run.training)
    return found


def why_late(training: Training) -> list[str]:
    """Say why the optimizer steps no bucket of gradients before all are summed, if it doesn't."""
    return [SCALED] if training.precision == "fp16" else [CLIPPED] if training.optim.clip else []
