"""A training run as a test: checked by the engine before a job is submitted, measured from its result."""

import json
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from io import StringIO

from reframe.core.builtins import performance_function, run_after, run_before, variable
from reframe.core.exceptions import ReframeError
from reframe.utility import typecheck as typ

from engine.cli.main import main as engine
from engine.result import metrics
from suites.base.engine_test import EngineTest
from suites.base.steps import counted_times_s

SYNTHETIC = "synthetic"


class Refused(ReframeError):
    """The engine says that this run can't work; the message is its own sentence."""


@cache
def checked_grid(words: tuple[str, ...]) -> str:
    """The grid of that `engine check`, which tests of the same training ask for once. Raises Refused."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        code = engine(["check", *words, "--json"])
    if code:
        raise Refused(err.getvalue().strip().split("\n")[-1])
    return str(json.loads(out.getvalue())["grid"])


@cache
def planned_grid(words: tuple[str, ...]) -> str | None:
    """The fastest grid of that `par4d plan`; None where the machine's facts don't do for one."""
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()):
        code = engine(["plan", *words, "--top", "1", "--json"])
    return None if code else str(json.loads(out.getvalue())["rows"][0]["grid"])


class Training(EngineTest):
    """`engine train`. num_tasks is the number of ranks; grid "auto" is resolved by the engine before submission.

    model: a published size of any architecture. overlap: the engine's --overlap, "" for what the engine does unasked.
    breakdown: whether to tell compute from communication, which on CUDA takes timing events. energy: whose is measured,
    as the engine's --energy takes it; each component that has a counter is a figure. checkpoint_activations: whether
    blocks are computed again in the backward, as in published runs; a small network can do without. data: a corpus of
    `engine data prepare`, or synthetic. Where no file tells what matrix products reach in the precision, the run finds
    it out first, on all of its ranks at once. A figure that can't be had is absent, not zero.
    """

    model = variable(str, value="", loggable=True)
    grid = variable(str, value="auto", loggable=True)
    overlap = variable(str, value="", loggable=True)
    data = variable(str, value=SYNTHETIC, loggable=True)
    breakdown = variable(typ.Bool, value=True)
    energy = variable(str, value="auto", loggable=True)
    iterations = variable(int, value=10)
    warmup = variable(int, value=2)
    learning_rate = variable(float, type(None), value=None)
    checkpoint_activations = variable(typ.Bool, value=True)
    sequences: int
    micro_batch: int | None = None
    precision: str

    @property
    def recompute_options(self) -> list[str]:
        return ["--checkpoint-activations"] if self.checkpoint_activations else []

    def corpus(self) -> str:
        """What --data is given."""
        return self.data

    def plan_options(self, data: str) -> list[str]:
        """Options of every command that trains, and of check."""
        node = self.system.node
        words = [
            "--model",
            self.model,
            "--grid",
            self.grid,
            "--batch-size",
            str(self.sequences),
            "--data",
            data,
        ]
        words += ["--precision", self.precision]
        words += ["--device", self.device]
        words += self.recompute_options
        if self.breakdown:
            words.append("--breakdown")
        if self.overlap:
            words += ["--overlap", self.overlap]
        if self.micro_batch:
            words += ["--micro-batch", str(self.micro_batch)]
        if self.learning_rate:
            words += ["--learning-rate", f"{self.learning_rate:g}"]
        if self.ranks_of_a_node:
            words += ["--devices-per-node", str(self.ranks_of_a_node)]
        words += self.device_memory_options
        if node.nic_bytes_per_s:
            nics = node.nics.value if node.nics else 1
            words += ["--link-bytes-per-s", f"{nics * node.nic_bytes_per_s.value:g}"]
        if node.intra_node_bytes_per_s:
            words += ["--intra-node-bytes-per-s", f"{node.intra_node_bytes_per_s.value:g}"]
        return words

    def own_options(self) -> list[str]:
        """Options that only train and check take."""
        words = ["--iterations", str(self.iterations), "--warmup", str(self.warmup), "--energy", self.energy]
        return [*words, *self.peak_options(self.precision)]

    def options(self) -> list[str]:
        return ["train", *self.plan_options(self.corpus()), *self.own_options()]

    @run_after("setup")
    def settle_grid(self) -> None:
        """Ask the engine for the grid, and whether it can work at all, before any job is submitted. Raises Refused."""
        data = SYNTHETIC if self.is_dry_run() else self.corpus()  # a dry run prepares no corpus
        self.grid = checked_grid((*self.plan_options(data), *self.own_options(), "--ranks", str(self.num_tasks)))

    @run_before("performance")
    def choose_figures(self) -> None:
        """A percentage of an unknown peak or a breakdown not made is not measured, and a dry run measures nothing."""
        if self.is_dry_run():
            self.perf_variables.clear()
            return
        if self.record["summary"]["hfu"] is None:
            del self.perf_variables["percent_of_advertised_peak"]
        if self.record["summary"]["of_empirical"] is None:
            del self.perf_variables["percent_of_empirical_peak"]
        breakdown = self.record["breakdown"]
        if breakdown is None:
            del self.perf_variables["compute"], self.perf_variables["exposed_communication"]
        if breakdown is None or breakdown["share_hidden"] is None:
            del self.perf_variables["communication_hidden"]
        if breakdown is None or breakdown["bound"] is None:
            del self.perf_variables["step_by_bound"]
        parts = (self.record["energy"] or {"components": ()})["components"]
        self.add_figures({f"tokens_per_joule_{p['component']}": (p["tokens_per_joule"], "token/J") for p in parts})

    @performance_function("s")
    def time_per_iteration(self) -> float:
        return float(self.record["summary"]["time_per_iteration_s"])

    @performance_function("s")
    def faster_half(self) -> float:
        """Of the steps, on average: what tells one night from another, as other work on the machine hardly moves it."""
        return metrics.faster_half(counted_times_s(self.record))

    @performance_function("flop/s")
    def hardware_flops_per_s(self) -> float:
        return float(self.record["summary"]["hardware_flops_per_s"])

    @performance_function("%")
    def percent_of_advertised_peak(self) -> float:
        return 100 * float(self.record["summary"]["hfu"])

    @performance_function("%")
    def percent_of_empirical_peak(self) -> float:
        return 100 * float(self.record["summary"]["of_empirical"])

    @performance_function("s")
    def compute(self) -> float:
        return float(self.record["breakdown"]["compute_s"])

    @performance_function("s")
    def exposed_communication(self) -> float:
        """Compute stands still for it, a mean iteration long."""
        return float(self.record["breakdown"]["collectives_s"])

    @performance_function("%")
    def communication_hidden(self) -> float:
        """Of the time with communication, that in which the rank computes too."""
        return 100 * float(self.record["breakdown"]["share_hidden"])

    @performance_function("x")
    def step_by_bound(self) -> float:
        """How many times as long a step is as the longer of its compute and its communication."""
        return float(self.record["breakdown"]["bound"]["step_by_bound"])
