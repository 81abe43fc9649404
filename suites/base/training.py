"""Training runs, checked by the engine before a job is submitted, and trained points of a series."""

import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import cache
from io import StringIO
from typing import Any, NamedTuple

import reframe as rfm
from reframe.core.builtins import parameter, run_after, variable
from reframe.core.exceptions import ReframeError
from reframe.core.runtime import runtime
from reframe.utility import typecheck as typ

import systems
from engine.cli.main import main as engine
from engine.options import option_names, option_words
from engine.peers.comparison import both_sides
from engine.result import metrics
from engine.training_record import OptimConfig, PrecisionName, TrainingOptions
from suites.base.engine_test import EngineTest, command
from suites.base.figures import Figures, counted_times_s, percent
from suites.base.series import AUTO, EACH_BLOCK, Point, points

SYNTHETIC = "synthetic"
NOTHING_RECOMPUTED = "0"
"""Value of -S checkpoint_every that keeps all activations, as series have it."""


class Refused(ReframeError):
    """Error of the engine about a run that can't work, in its own sentence."""


@cache
def checked_grid(words: tuple[str, ...]) -> str:
    """Return the grid that `engine check` gives, which tests of the same training ask for once. Raises Refused."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = engine(["check", *words, "--brief", "--json"])
    if code:
        raise Refused(err.getvalue().strip().split("\n")[-1])
    return str(json.loads(out.getvalue())["grid"])


class PlannedGrid(NamedTuple):
    """Fastest grid of a plan."""

    grid: str
    micro_batch: int
    schedule: str | None
    """of a pipeline, as a plan's document has it"""


@cache
def planned_grid(words: tuple[str, ...]) -> PlannedGrid | None:
    """Return the fastest grid that `par4d plan` gives; None where the machine's facts don't do for one."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
        code = engine(["plan", *words, "--top", "1", "--json"])
    if code:
        return None
    row = json.loads(out.getvalue())["rows"][0]
    return PlannedGrid(row["grid"], row["micro_batch"], row.get("schedule"))


def _kinds(options: Any) -> dict[str, type]:
    """Say what -S makes of an option's word: a switch, a number, or the word, which the engine reads."""
    switch_or_number = {bool: typ.Bool, int: int, float: float}
    return {name: switch_or_number.get(type(getattr(options, name)), str) for name in option_names(type(options))}


OVERRIDES = _kinds(TrainingOptions()) | _kinds(OptimConfig())
"""Variables of trainings that are options of the engine: None leaves one as the series has it."""
del OVERRIDES["checkpoint_activations"]  # a variable of its own, which is on or off


class TrainingTest(EngineTest):
    """`engine train`. num_tasks is the number of ranks; grid "auto" is resolved by the engine before submission.

    Where no file has the empirical peak of the precision, the run measures it first, on all of its ranks at once.
    """

    model = variable(str, value="", loggable=True)
    grid = variable(str, value=AUTO, loggable=True)
    schedule = variable(str, value=AUTO, loggable=True)
    overlap = variable(str, value="", loggable=True)
    data = variable(str, value=SYNTHETIC, loggable=True)
    """a corpus of `engine data prepare`, or synthetic"""
    breakdown = variable(typ.Bool, value=True)
    """whether to part compute and communication, which on CUDA takes timing events"""
    energy = variable(str, value=AUTO, loggable=True)
    """each component that has a counter is a figure"""
    iterations = variable(int, value=10)
    warmup = variable(int, type(None), value=2)
    tune_matmul = variable(typ.Bool, type(None), value=None)
    """whether each layer's products take the fastest of their modes"""
    checkpoint_activations = variable(typ.Bool, value=True)
    """whether blocks are computed again in the backward, as in published runs"""
    training = EACH_BLOCK
    """the engine's options of training"""
    optim = OptimConfig()
    """the engine's options of the optimizer"""
    for _name, _kind in OVERRIDES.items():
        vars()[_name] = variable(_kind, type(None), value=None)
    learning_rate: Any
    precision: Any
    checkpoint_every: str | None
    micro_batch = variable(int, type(None), value=None)
    """sequences that a rank takes at once: as the series has it, or as many as the engine says, unless set"""
    sequences: int

    @property
    def asked(self) -> TrainingOptions:
        """Options of training; -S checkpoint_activations=no keeps activations whatever the series says."""
        asked = self.training if self.checkpoint_activations else self.training.recomputing(0)
        return asked.changed(self._given(TrainingOptions))

    @property
    def optimizer_words(self) -> list[str]:
        """Options of the optimizer that aren't as by default."""
        return option_words(replace(self.optim, **self._given(OptimConfig)))

    def _given(self, options: type) -> dict[str, Any]:
        """Return those of the options that -S gives, or a subclass."""
        names = OVERRIDES.keys() & option_names(options).keys()
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def training_words(self, options: TrainingOptions) -> list[str]:
        """Write options: the precision in any case, then the device, then what isn't as by default."""
        others = replace(options, precision=TrainingOptions().precision).words()
        return ["--precision", options.precision, "--device", self.device, *others]

    @property
    def contest_words(self) -> list[str]:
        """Options of training that bench peers takes, but for the precision."""
        return replace(both_sides(self.asked), precision=TrainingOptions().precision).words()

    @property
    def contest_options(self) -> list[str]:
        """Options of bench peers that say what is trained, and on which device."""
        trained = command("", model=self.model, batch_size=self.sequences, precision=self.precision, device=self.device)
        return [*trained, *self.device_memory_options, *self.node_options(), *self.contest_words]

    def node_options(self) -> list[str]:
        """Return what a contest has to know of a node."""
        return []

    def corpus(self) -> str:
        return self.data

    @property
    def grid_options(self) -> list[str]:
        stages = 1 if self.grid == AUTO else None  # as published; a study of pipelines names their grids
        return command("", grid=self.grid, pipe=stages)

    def plan_options(self, data: str) -> list[str]:
        """Return the options of every command that trains, and of check."""
        node = self.system.node
        nics = node.nics.value if node.nics else 1
        return [
            *command("", model=self.model),
            *self.grid_options,
            *command("", batch_size=self.sequences, data=data),
            *self.training_words(self.asked),
            *command(
                "",
                breakdown=self.breakdown,
                overlap=self.overlap,
                schedule=None if self.schedule == AUTO else self.schedule,
                micro_batch=self.micro_batch,
            ),
            *self.optimizer_words,
            *command("", tune_matmul=self.tune_matmul, devices_per_node=self.ranks_of_a_node),
            *self.device_memory_options,
            *command(
                "",
                link_bytes_per_s=node.nic_bytes_per_s and float(nics * node.nic_bytes_per_s.value),
                intra_node_bytes_per_s=node.intra_node_bytes_per_s and float(node.intra_node_bytes_per_s.value),
            ),
        ]

    def own_options(self) -> list[str]:
        """Return the options that only train and check take."""
        words = command("", iterations=self.iterations, warmup=self.warmup, energy=self.energy)
        return [*words, *self.peak_options(self.precision)]

    def options(self) -> list[str]:
        return ["train", *self.plan_options(self.corpus()), *self.own_options()]

    @run_after("setup")
    def settle_grid(self) -> None:
        """Ask the engine for the grid, and whether it can work at all, before any job is submitted. Raises Refused."""
        self.grid = self.find_grid(SYNTHETIC if self.is_dry_run() else self.corpus())  # a dry run prepares no corpus

    def find_grid(self, data: str) -> str:
        """Return the grid that the engine gives the training. Raises Refused."""
        return checked_grid((*self.plan_options(data), *self.own_options(), "--ranks", str(self.num_tasks)))

    def figures(self) -> Figures:
        """Return the figures of a training: the faster half of the steps shows best how nights differ.

        exposed_communication: compute stands still for it, a mean iteration long. communication_hidden: the part of the
        time with communication in which the rank computes too. step_by_bound: how many times as long a step is as the
        longer of its compute and its communication.
        """
        summary, breakdown = self.record["summary"], self.record["breakdown"] or {}
        found: Figures = {
            "time_per_iteration": (summary["time_per_iteration_s"], "s"),
            "faster_half": (metrics.faster_half(counted_times_s(self.record)), "s"),
            "hardware_flops_per_s": (summary["hardware_flops_per_s"], "flop/s"),
            "percent_of_advertised_peak": (percent(summary["hfu"]), "%"),
            "percent_of_empirical_peak": (percent(summary["of_empirical"]), "%"),
            "compute": (breakdown.get("compute_s"), "s"),
            "exposed_communication": (breakdown.get("collectives_s"), "s"),
            "communication_hidden": (percent(breakdown.get("share_hidden")), "%"),
            "step_by_bound": ((breakdown.get("bound") or {}).get("step_by_bound"), "x"),
        }
        for part in (self.record["energy"] or {"components": ()})["components"]:
            if self.record["model"]["vocabulary"] is None:
                joules = part["joules_per_iteration"]
                found[f"images_per_joule_{part['component']}"] = (joules and self.sequences / joules, "image/J")
            else:
                found[f"tokens_per_joule_{part['component']}"] = (part["tokens_per_joule"], "token/J")
        return found


SYSTEM = systems.load(runtime().system.name)


def points_of(study: str, which: Callable[[Point], bool] = lambda _: True) -> Any:
    """Return the parameter of a test that runs each of the study's points on this system, or which of them."""
    return parameter(list(filter(which, points(study, SYSTEM.name))), fmt=lambda point: str(point), loggable=True)


class OfSeries(rfm.RegressionTestPlugin):
    """EngineTest that runs its parameter `point`. What -S gives counts before what the series says."""

    study: str
    model: str
    time_limit: str | None
    point: Point
    precision: PrecisionName
    series = variable(str, value="", loggable=True)

    @run_after("init")
    def take_point(self) -> None:
        point, series = self.point, self.point.series
        self.num_tasks = point.devices
        self.precision = getattr(self, "precision", None) or series.precision
        other = self.model not in ("", point.model)  # then these are no points of the series as it is published
        self.series = f"{series.name} with {self.model}" if other else series.name
        self.model = self.model or point.model
        self.time_limit = self.time_limit or point.time_limit
        self.tags = {self.study, series.name, *series.tags}

    def labels(self) -> dict[str, str]:
        return super().labels() | {"series": self.series}


class PointTraining(OfSeries, TrainingTest):
    """Training of a point."""

    iterations = 0  # as many as the series says
    warmup = None
    micro_batch_by_hand = False
    """whether -S gives the micro-batch"""

    def steps_of_warmup(self) -> int:
        """Count the first steps, which don't count."""
        return self.point.series.warmup

    @run_after("init")
    def take_training(self) -> None:
        point, series = self.point, self.point.series
        self.sequences, self.micro_batch_by_hand = point.sequences, self.micro_batch is not None
        self.micro_batch = self.micro_batch if self.micro_batch_by_hand else point.micro_batch
        self.training = series.training
        if self.checkpoint_every is None:
            self.checkpoint_activations = self.checkpoint_activations and series.training.recomputed_together != 0
        else:
            self.checkpoint_activations = self.checkpoint_every != NOTHING_RECOMPUTED
        self.grid = point.grid if self.grid == AUTO else self.grid
        self.schedule = point.schedule if self.schedule == AUTO else self.schedule
        self.iterations = self.iterations or series.iterations
        self.warmup = self.steps_of_warmup() if self.warmup is None else self.warmup
        self.optim, self.overlap = series.optim, self.overlap or series.overlap
        self.tune_matmul = series.tune_matmul if self.tune_matmul is None else self.tune_matmul
        self.ranks_per_node = self.ranks_per_node or series.ranks_per_node
