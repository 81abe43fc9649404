"""What a training run is asked to do, checked as far as it can be before anything starts. No torch."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.data import open_dataset
from engine.errors import UsageError
from engine.fit import Batch, check_grid, choose_grid
from engine.grid import Grid
from engine.manifest import find, read_manifest
from engine.models import GPTConfig
from engine.models.layout import gpt_placements


@dataclass(frozen=True, slots=True)
class OptimConfig:
    """AdamW with decoupled weight decay on matrices, none on biases and norms; clip 0 means no clipping.

    decay_steps: the cosine reaches final_fraction of the rate there; 0 keeps the rate constant after the warm-up.
    """

    learning_rate: float = 3e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip: float = 1.0
    warmup_steps: int = 0
    decay_steps: int = 0
    final_fraction: float = 0.1


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Every option of `engine train`. grid None means "auto"; data is "synthetic" or the folder of a corpus.

    warmup: iterations that don't count in the reported time. learning-rate warm-up is optim.warmup_steps.
    """

    model: GPTConfig
    grid: Grid | None
    batch: Batch
    data: str
    out: Path
    iterations: int = 10
    warmup: int = 2
    precision: Literal["fp32", "fp64", "bf16"] = "fp32"
    reduce_dtype: Literal["fp32", "fp64", "bf16"] | None = None
    checkpoint_activations: bool = False
    optim: OptimConfig = OptimConfig()
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    timeout_s: float = 600.0
    save: Path | None = None
    save_every: int = 0
    resume: Path | None = None
    devices_per_node: int = 1
    device_memory: float | None = None
    peak_flops: float | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def as_options(self) -> dict[str, Any]:
        """For the record: every option in JSON's types."""
        options = asdict(self)
        del options["labels"]
        options["grid"] = "auto" if self.grid is None else str(self.grid)
        return {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}


def checked(config: TrainConfig, ranks: int) -> TrainConfig:
    """The same run with its grid chosen, after every check that needs no process. Raises UsageError."""
    if config.iterations < 1 or not 0 <= config.warmup < config.iterations:
        raise UsageError(
            f"A run needs at least one iteration after its warm-up, but {config.iterations} iterations with a warm-up "
            f"of {config.warmup} were asked for."
        )
    if config.timeout_s <= 0:
        raise UsageError(f"A time-out is a positive number of seconds, but {config.timeout_s} was given.")
    if (config.save is None) != (config.save_every == 0) or config.save_every < 0:
        raise UsageError("Saving needs both --save DIR and --save-every N with N at least 1.")
    grid = config.grid
    if grid is None:
        grid = choose_grid(
            config.model,
            ranks,
            config.batch,
            devices_per_node=config.devices_per_node,
            device_memory=config.device_memory,
        )
    if grid.size != ranks:
        raise UsageError(
            f"Grid {grid} has {grid.size} ranks, but {ranks} {'was' if ranks == 1 else 'were'} started: start "
            f"{grid.size}, or use --grid auto."
        )
    check_grid(config.model, grid, config.batch)
    open_dataset(config.data, vocabulary=config.model.vocabulary, sequence_length=config.model.sequence)
    if config.resume is not None:
        folder = find(config.resume)
        manifest = read_manifest(folder, config.model)
        if manifest.batch_size != config.batch.sequences or manifest.seed != config.seed:
            raise UsageError(
                f"The checkpoint {folder} was trained with --batch-size {manifest.batch_size} --seed {manifest.seed}: "
                f"resume it with the same, or its place in the data is lost."
            )
        config = replace(config, resume=folder)
    return replace(config, grid=grid)


def parameters_per_rank(config: GPTConfig, grid: Grid) -> int:
    """Elements that each rank stores."""
    return sum(placement.local_numel(grid) for placement in gpt_placements(config).values())
