"""What all tests share: one engine command as one job, and its result.json as the test's outcome."""

import json
import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reframe as rfm
from reframe.core.builtins import run_after, run_before, sanity_function, variable
from reframe.core.exceptions import PerformanceError, SanityError
from reframe.core.logging import getlogger
from reframe.utility import typecheck as typ
from reframe.utility.sanity import make_performance_function

from suites.base import staging
from suites.base.allocation import Allocation
from suites.base.night import Worth
from suites.base.transport import mismatch
from systems import SystemFileError, references

RESULT = "result.json"
ENDED_BY_THE_SCHEDULER = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
SCHEDULERS_WORDS = re.compile(
    r"^(?:srun|slurmstepd\S*): error: (.*(?:DUE TO |Node failure|launch .*failed|oom).*)$", re.MULTILINE
)


def last_words(stderr: str) -> str:
    """The last line a program wrote before torchrun reports, at length, that it failed."""
    own = re.split(r"^[EW]\d{4} .*torch/distributed/", stderr, maxsplit=1, flags=re.MULTILINE)[0]
    for text in (own, stderr):
        if lines := [line for line in text.splitlines() if line.strip()]:
            return lines[-1].strip()
    return "nothing on its standard error"


def scheduler_says(state: str | None, stderr: str) -> str | None:
    """Why the scheduler ended a job, in its own words or by the job's state; None if it did not."""
    if words := SCHEDULERS_WORDS.findall(stderr):
        return str(min(words, key=lambda line: "CANCELLED" in line)).strip("* ")  # which follows from another, if any
    return state if state in ENDED_BY_THE_SCHEDULER else None


class EngineTest(Allocation, rfm.RunOnlyRegressionTest):
    """Runs `python -m engine ...` with one rank a device. A subclass gives the study's name and the options.

    device: cpu or cuda; unless set, what the system's devices are. ranks_per_node: at most, unless its devices are
    fewer. staged: whether ranks run from a folder of their own node (staging.py). record: the whole result, so that
    ReFrame's run report and database suffice to rebuild a report. worth: to a night, as suites/base/night.py has it.
    compare: whether what is slower than usual fails. referenced: the figures of which is known what is usual.
    """

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    python = variable(str, value=sys.executable)
    device = variable(str, value="")
    ranks_per_node = variable(int, type(None), value=None)
    staged = variable(typ.Bool, value=False)
    record = variable(dict, value={}, loggable=True)
    worth = variable(int, value=Worth.NOTHING, loggable=True)
    compare = variable(typ.Bool, value=True)
    keep_files = [RESULT]
    study = ""
    reference: dict[str, Any]
    referenced: tuple[str, ...] = ()

    @run_after("init")
    def take_the_systems_device(self) -> None:
        self.device = self.device or self.system.device.kind

    def options(self) -> list[str]:
        """The engine's words for this test, from its command on, without labels and --out."""
        raise NotImplementedError

    def labels(self) -> dict[str, str]:
        """What a report tells this result from others by."""
        return {
            "study": self.study,
            "system": self.current_system.name,
            "partition": self.current_partition.name,
        }

    def peak_options(self, precision: str) -> list[str]:
        """The peaks of a device in that number format; the empirical one is measured where its file has none."""
        device, words = self.system.device, list[str]()
        if precision in device.peak_flops:
            words += ["--peak-flops", f"{device.peak_flops[precision].value:g}"]
        if precision in device.empirical_peak_flops:
            return [*words, "--empirical-peak-flops", f"{device.empirical_peak_flops[precision].value:g}"]
        return [*words, "--measure-peak"]

    @property
    def device_memory_options(self) -> list[str]:
        """Bytes of a device, where its file tells."""
        memory = self.system.device.memory_bytes
        return ["--device-memory", f"{memory.value:.0f}"] if memory else []

    @property
    def ranks_of_a_node(self) -> int | None:
        """As many as may be there; where they don't divide the ranks, as many as do. None for an unknown node."""
        devices = self.system.node.devices
        if devices is None:
            return None
        most = min(devices.value, self.ranks_per_node or devices.value)
        return max(number for number in range(1, most + 1) if self.num_tasks % number == 0)

    @property
    def fills_its_nodes(self) -> bool:
        """Whether there is a rank for each of their devices."""
        devices = self.system.node.devices
        return devices is not None and self.ranks_of_a_node == devices.value

    @run_before("run")
    def spread_over_nodes(self) -> None:
        if fits := self.ranks_of_a_node:
            self.num_tasks_per_node = fits
            self.num_gpus_per_node = fits if self.system.device.kind == "cuda" else None

    @run_before("run")
    def write_launch_line(self) -> None:
        """The engine's command line, with every option spelled out."""
        extras = self.current_partition.extras
        self.num_cpus_per_task = extras.get("cpus_per_task")
        full = extras.get("full_node_options", []) if self.fills_its_nodes else []
        self.job.launcher.options = [*extras.get("launcher_options", []), *full]
        words = [*self.options(), *self.timeout_options]
        for name, value in self.labels().items():
            words += ["--label", f"{name}={value}"]
        self.executable = shlex.quote(self.python)
        self.executable_opts = ["-m", "engine", *map(shlex.quote, words), "--out", RESULT]

    @run_before("run")
    def run_from_the_nodes_own_folder(self) -> None:
        """Where that is asked for. Raises CantStage."""
        if self.staged:
            self.prerun_cmds += [staging.command(self.partition, dry=self.is_dry_run())]
            self.executable = staging.PYTHON

    @sanity_function
    def the_result_is_good(self) -> bool:
        """The engine says ok; if it failed, or never ran, the reason is the scheduler's, and its own."""
        file, errors = Path(self.stagedir, RESULT), Path(self.stagedir, self.stderr.evaluate())
        said = errors.read_text(errors="replace") if errors.exists() else ""
        if file.exists():
            self.record = json.loads(file.read_text())
            failure = f"the run failed: {self.record['reason']}" if self.record["status"] != "ok" else None
        else:
            failure = f"the engine wrote no {RESULT}; its last words: {last_words(said)}"
        if failure:
            ended = scheduler_says(self.job.state, said)
            raise SanityError(f"the scheduler ended the job: {ended}; {failure}" if ended else failure)
        if wrong := mismatch(self.system.name, self.partition, self.record):
            raise SanityError(wrong)
        self.judge()
        return True

    @run_before("performance", always_last=True)
    def take_references(self) -> None:
        """What these jobs usually measure on this machine, where that is known, in place of published targets.

        A fixture has none: where it failed for being slow, ReFrame would run no test that needs it.
        """
        if self.is_fixture() or not self.compare or self.is_dry_run():
            return
        try:
            known = references.references(self.system.name)
        except SystemFileError as error:
            getlogger().warning(f"{error} Until then nothing is compared.")
            return
        key = references.key_of(
            partition=self.partition.name,
            display_name=self.display_name,
            ranks=self.num_tasks,
            words=self.executable_opts,
            record=self.record,
        )
        series = known.by_key().get(key) if known else None
        if series:
            self.referenced = tuple(series.figures)
            usual = {name: one.as_reframe() for name, one in series.figures.items()}
            self.reference = {f"{self.system.name}:{self.partition.name}": usual}

    @run_after("performance")
    def miss_no_figure(self) -> None:
        """A figure with a reference that is no longer measured is told, and not green. Raises PerformanceError."""
        measured = {name.split(":")[-1] for name in self.perfvalues}
        if missing := sorted({*self.referenced} - measured):
            raise PerformanceError(
                f"not measured, though it has a reference: {', '.join(missing)}. Find out why, or make the references "
                f"anew by `par4d reference make --system {self.system.name}`"
            )

    def add_figures(self, found: Mapping[str, tuple[float | None, str]]) -> None:
        """Add (value, unit) by name to what the test measures; None is not measured, and absent."""
        for name, (value, unit) in found.items():
            if value is not None:
                self.perf_variables[name] = make_performance_function(lambda value=value: float(value), unit)

    def judge(self) -> None:
        """What else the record of a good run has to show. Raises SanityError."""
