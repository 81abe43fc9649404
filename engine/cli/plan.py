"""`plan` says which grid to train on, before anything is spent. No torch."""

import re
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from engine.batch import Batch
from engine.cli.common import Json
from engine.cli.grid import simulated
from engine.cli.train import PaceOptions
from engine.errors import UsageError
from engine.files import write_text
from engine.loading import loading
from engine.models.architecture import Architecture
from engine.models.choice import ModelChoice
from engine.models.mode_choice import MODES, ModeName
from engine.options import Bytes, File, check_file, word
from engine.output import complain, log_to_stderr, say
from engine.overlap.flags import Pace
from engine.planning.grids import SearchSpace
from engine.training.checks import check_cache
from engine.training.config import MODEL
from engine.training_record import OverlapOption, PrecisionName, Training, TrainingOptions

if TYPE_CHECKING:
    from engine.planning.document import GridPlan
    from engine.simulator.bandwidth import Bandwidths
    from systems import Device


SCALES = {"": 1, "k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def tokens(text: str) -> float:
    """Read "16.8M", "4M", "2T" or "16777216". Raises UsageError.

    >>> tokens("16.8M")
    16800000.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMBGT]?)", text)
    if match is None or not float(match[1]):
        raise UsageError(f"Tokens are written as 16.8M, 2T or 16777216, but {text!r} was given.")
    return float(match[1]) * SCALES[match[2]]


Tokens = Annotated[float | None, word(tokens, "TOKENS")]


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanConfig(TrainingOptions, OverlapOption):
    """Options of `plan`."""

    model: Annotated[ModelChoice, Parameter(name="*", group=MODEL)] = ModelChoice()
    system: Annotated[str | None, Parameter(metavar="NAME")] = None
    """whose facts count (default: this machine's)"""
    gpus: int | None = None
    """devices of the job"""
    pipe: Annotated[int | Literal["auto"], Parameter(metavar="STAGES")] = "auto"
    """stages of a pipeline (axis pipe); auto tries every number, 1 none"""
    batch_tokens: Tokens = None
    """of a batch, e.g. 16.8M: about as many, so that devices can share them; a U-Net's are pixels"""
    batch_size: Annotated[int | None, Parameter(metavar="SEQS")] = None
    """sequences, or images, of a batch: just as many"""
    micro_batch: Annotated[int | None, Parameter(metavar="SEQS")] = None
    """sequences a rank takes at once (default: the most that fit in memory)"""
    precision: PrecisionName | None = None  # type: ignore[assignment]
    """bf16 and fp16 keep fp32 masters; fp16 scales its loss (default: bf16, or fp16 without it; fp32 on a CPU)"""
    checkpoint_activations: Annotated[bool | None, Parameter(negative="--keep-activations")] = None  # type: ignore[assignment]
    """recompute each block in the backward, or none (default: as memory asks, in stages all or none; by --equations
    all)"""
    tensor_mode: Literal["any", ModeName] = "any"  # type: ignore[assignment]
    """any: for each grid the best of 4d, split and 2d; the others as of a training"""
    device_memory: Bytes | None = None
    """of one device (default: as the system's file says)"""
    token_budget: Tokens = None
    """to train on in all (default: of text, 20 a parameter)"""
    agnostic: bool = False
    """order as if every axis had the same bandwidth"""
    as_run: Annotated[bool, Parameter(show=False)] = False
    equations: bool = False
    """rank by the equations alone, without times"""
    exact: bool = False
    """trace the ten best as whole networks, not by few layers"""
    top: int = 10
    """grids to tell of"""

    @property
    def simulated(self) -> bool:
        """Whether grids are simulated."""
        return not (self.equations or self.agnostic)


def plan(
    *,
    config: PlanConfig = PlanConfig(),
    pace: PaceOptions = Pace(),
    explain: Annotated[int | None, Parameter(metavar="N", help="say why the N-th costs what it does")] = None,
    json: Json = False,
    out: Annotated[File | None, Parameter(help="write that document, for the report")] = None,
    validate: Annotated[bool, Parameter(help="predict what was published and measured instead")] = False,
    measured: Annotated[
        Path | None,
        Parameter(help="with --validate: results of suites/model_validation.py, of GPUs of bench gemm and matmul"),
    ] = None,
    refit: Annotated[bool, Parameter(help="with --validate: fit the machines' numbers anew, and print them")] = False,
) -> int:
    """Predict which grids of a job are the fastest of those that fit in memory, and how long a batch takes.

    Every grid is ranked by the papers' equations of communication. Of the best the engine's own step is
    traced, by few layers, and played on a model of the machine; --exact traces all layers of the ten best.

    A batch of so many tokens becomes sequences, or images, that the devices can share: within 5 % of them a
    power of two, or what most grids can share; else the nearest within 10 %. Of grids that cost the same, what
    clearly costs less as run comes first, then more data, then larger x.

      par4d plan --system frontier --model gpt-80b --gpus 8192 \\
          --batch-tokens 16.8M --explain 1
    """
    if explain is not None and not 1 <= explain <= config.top:
        raise UsageError(f"--explain is the number of a grid, from 1 to --top {config.top}, but {explain} was given.")
    if out is not None:
        check_file("--out", out)
    log_to_stderr(0)
    if validate:
        return validated(measured, refit=refit, json=json, out=out)
    if refit or measured:
        raise UsageError("--refit and --measured belong to --validate: add it.")
    from engine.planning.explain import explained, head, table

    found, links = _planned(replace(config, overlap=config.overlap.at(pace)), shown=config.top + 1)
    rows = found.rows
    found = found.model_copy(update={"rows": rows[: config.top]})
    if explain is not None and explain > len(rows):
        kind = "were simulated" if found.ordered_by == "simulated" else "fit"
        raise UsageError(f"--explain {explain} names a grid that there isn't: {len(rows)} {kind}.")
    if out is not None:
        write_text(out, found.to_json())
    if json:
        say(found.to_json(), kept=out is not None)
        return 0
    say(f"{head(found)}\n{table(found.rows)}", kept=out is not None)
    if explain is not None:
        after = rows[explain] if explain < len(rows) else None
        say(f"\n{explained(found, rows[explain - 1], after, links)}")
    return 0


def _planned(config: PlanConfig, shown: int) -> tuple["GridPlan", "Bandwidths"]:
    """Make the plan that the options ask for. Raises UsageError."""
    import systems
    from engine.planning.plan import make_plan

    devices = _check(config)
    model = config.model.resolve()
    check_cache(config.overlap, model)
    system = systems.named(config.system)
    system.check_size(devices)
    options, modes, least = _options(config, system.device)
    options.check(model)
    space = _search_space(config, model)
    training = Training.of(options, model, Batch(space.check(devices), config.micro_batch), overlap=config.overlap)
    return make_plan(
        training,
        space,
        devices,
        system,
        shown=shown,
        forecast=simulated(exact=config.exact) if config.simulated else None,
        device_memory=config.device_memory,
        token_budget=config.token_budget,
        placement_aware=not config.agnostic,
        modes=modes,
        recomputes_least=least,
    )


def _options(config: PlanConfig, device: "Device") -> tuple[TrainingOptions, tuple[ModeName, ...], bool]:
    """Return the options of training, the tensor modes of which each grid has the best, and whether no more blocks are
    recomputed than memory asks for: where grids are simulated, as far as these are left to the plan.
    """
    any_mode, whole = config.tensor_mode == "any", config.checkpoint_activations is None
    given = {option.name: getattr(config, option.name) for option in fields(TrainingOptions)}
    given |= {"precision": config.precision or _usual_precision(device)}
    given |= {"tensor_mode": "auto"} if any_mode else {}
    given |= {"checkpoint_activations": config.checkpoint_every is None} if whole else {}
    least = whole and config.simulated and {config.checkpoint_every, config.checkpoint_blocks} == {None}
    return TrainingOptions(**given), MODES if any_mode and config.simulated else (), least


def _usual_precision(device: "Device") -> PrecisionName:
    """Return the format of a training on such a device unless one is given: of GPUs bf16, or fp16 without it."""
    if device.kind == "cpu":
        return "fp32"
    known = {*device.peak_flops, *device.empirical_peak_flops}
    return "fp16" if "bf16" not in known and "fp16" in known else "bf16"


def _search_space(config: PlanConfig, shape: Architecture) -> SearchSpace:
    stages = 1 if not config.simulated else None if config.pipe == "auto" else config.pipe
    if config.batch_size is not None:
        return SearchSpace(shape, config.batch_size, exact=True, micro=config.micro_batch, stages=stages)
    assert config.batch_tokens is not None
    return SearchSpace(shape, config.batch_tokens / shape.sequence, micro=config.micro_batch, stages=stages)


def _check(config: PlanConfig) -> int:
    """Return the number of devices. Raises UsageError for an option that is missing or out of its range."""
    if config.as_run:
        raise UsageError("--as-run is gone, as a simulation counts latency and repetitions: leave it out.")
    if config.exact and not config.simulated:
        raise UsageError("--exact traces what is simulated: leave --equations and --agnostic out.")
    if config.gpus is None:
        raise UsageError("Say on how many devices, by --gpus.")
    if config.pipe != "auto" and config.pipe < 1:
        raise UsageError(f"--pipe is a number of stages from 1 up, or auto, but {config.pipe} was given.")
    if config.pipe not in ("auto", 1) and not config.simulated:
        raise UsageError("--pipe plans what is simulated: leave --equations and --agnostic out.")
    if (config.batch_tokens is None) == (config.batch_size is None):
        raise UsageError("Give the batch either by --batch-tokens or by --batch-size.")
    if config.micro_batch is not None and config.micro_batch < 1:
        raise UsageError(f"--micro-batch is a number from 1 up, but {config.micro_batch} was given.")
    if config.top < 1:
        raise UsageError(f"--top is a number from 1 up, but {config.top} was given.")
    if config.checkpoint_every is not None and config.checkpoint_activations is False:
        raise UsageError("--keep-activations leaves nothing to --checkpoint-every: give one of both.")
    if config.device_memory is not None and not 0 < config.device_memory < inf:
        raise UsageError(f"--device-memory is a positive number, but {config.device_memory:g} was given.")
    return config.gpus


def validated(measured: Path | None, *, refit: bool, json: bool, out: Path | None) -> int:
    """Print the comparison, and what was fitted anew as the files of systems/ have it."""
    from engine.validation.measured import MEASURED, as_yaml, campaigns, rows_in

    with loading():
        from engine.validation.run import run
        from engine.validation.table import as_text

    found, fits, rows = run(campaigns() if measured is None else [rows_in(measured, refit=refit)], refit=refit)
    if out is not None:
        write_text(out, found.to_json())
    say(found.to_json() if json else as_text(found), kept=out is not None)
    tell = complain if json else say
    for fit in fits if refit else ():
        tell(f"\n# systems/{fit.machine.name}.yaml\n{fit.as_yaml()}")
    for one in rows if refit or measured is not None else ():
        tell(f"\n# a file of {MEASURED}\n{as_yaml(one)}")
    return 0
