"""Tests that run one engine command as one job, whose result.json is the test's outcome."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, cast

import reframe as rfm
from reframe.core.builtins import run_after, run_before, sanity_function, variable
from reframe.core.exceptions import PerformanceError, SanityError
from reframe.core.logging import getlogger
from reframe.utility import typecheck as typ
from reframe.utility.sanity import make_performance_function

from suites.base import feasible
from suites.base.allocation import Allocation
from suites.base.figures import Figures
from suites.base.launch import STAGED_PYTHON, Launched, staging_command
from suites.base.running import Worth
from systems import Dtype, Partition, SystemFileError, references

RESULT = "result.json"
CANARY_PROGRAM, CANARY_OUT = Path(__file__).with_name("canary.py"), "canary.txt"
LONGEST_CANARY_S = 300
ENDED_BY_THE_SCHEDULER = {"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
SCHEDULERS_WORDS = re.compile(
    r"^(?:srun|slurmstepd\S*): error: (.*(?:DUE TO |Node failure|launch .*failed|oom).*)$", re.MULTILINE
)


def mismatch(system: str, partition: Partition, record: dict[str, Any]) -> str | None:
    """Say why a result isn't over the network that its system expects between nodes; None if it is, or has one node.

    A network that isn't known is wrong too: nobody could tell the result from one over another network.
    """
    expected = partition.transport
    if expected is None or len(record["provenance"]["hosts"]) < 2:
        return None
    wanted = f"{system} expects {' or '.join(expected.networks.value)}"
    transport = record.get("transport")
    if transport is None:
        return f"the result doesn't say which network was taken, but {wanted}: run it again"
    for network in transport["networks"]:
        ranks = network["ranks"]
        where = f"on {ranks} rank{'s' * (ranks > 1)} (the first on {network['host']})"
        if network["name"] is None:
            return f"it isn't known which network NCCL took {where}: {network['unread']}; {wanted}"
        if network["name"] not in expected.networks.value:
            return f"NCCL took {network['name']} {where}, but {wanted}: {expected.remedy}"
        provider = network.get("provider")
        if expected.provider and provider and provider != expected.provider:
            return (
                f"NCCL took {network['name']} over libfabric's {provider} {where}, but {system} expects "
                f"{expected.provider}: {expected.remedy}"
            )
    return None


def command(name: str, **options: object) -> list[str]:
    """Write a command with its options: none that is None, False or "", the name alone of one that is True, a list's
    option for each of its values, and a number in as many digits as tell it from others.
    """
    words = name.split()
    for option, given in options.items():
        for value in given if isinstance(given, list | tuple) else [given]:
            if value is not None and value is not False and value != "":
                words.append(f"--{option.replace('_', '-')}")
                words += [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
    return words


def last_words(stderr: str) -> str:
    """Return the last line a program wrote before torchrun reports, at length, that it failed."""
    own = re.split(r"^[EW]\d{4} .*torch/distributed/", stderr, maxsplit=1, flags=re.MULTILINE)[0]
    for text in (own, stderr):
        if lines := [line for line in text.splitlines() if line.strip()]:
            return lines[-1].strip()
    return "nothing on its standard error"


def scheduler_says(state: str | None, stderr: str) -> str | None:
    """Say why the scheduler ended a job, in its own words or by the job's state; None if it didn't."""
    if words := SCHEDULERS_WORDS.findall(stderr):
        return str(min(words, key=lambda line: "CANCELLED" in line)).strip("* ")  # which follows from another, if any
    return state if state in ENDED_BY_THE_SCHEDULER else None


class EngineTest(Launched, Allocation, rfm.RunOnlyRegressionTest):
    """Run of `python -m engine ...` with one rank a device. A subclass gives the study's name and the options."""

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    device = variable(str, value="")
    """cpu or cuda; by default that of the system"""
    ranks_per_node = variable(int, type(None), value=None)
    """the most that a node gets"""
    staged = variable(typ.Bool, value=False)
    """whether ranks run from a folder of their own node (launch.py)"""
    record = variable(dict, value={}, loggable=True)
    """the whole result, so that ReFrame's run report and database suffice to rebuild a report"""
    worth = variable(int, value=Worth.NOTHING, loggable=True)
    compare = variable(typ.Bool, value=True)
    """whether what is slower than usual fails"""
    keep_files = [RESULT]
    study = ""
    out = RESULT
    """value of the engine's --out; where that isn't the result, the result lies beside it"""
    reference: dict[str, Any]
    referenced: tuple[str, ...] = ()
    """figures whose usual values are known"""

    @run_after("init")
    def take_the_systems_device(self) -> None:
        self.device = self.device or self.system.device.kind

    def options(self) -> list[str]:
        """Return the engine's words for this test, from its command on, without labels and --out."""
        raise NotImplementedError

    def labels(self) -> dict[str, str]:
        """Return the labels by which a report knows this result from others."""
        return {"study": self.study, "system": self.current_system.name, "partition": self.current_partition.name}

    def peak_options(self, precision: str) -> list[str]:
        """Return the peaks of a device in that number format; the empirical one is measured where its file has none."""
        device = self.system.device
        dtype = cast("Dtype", precision)
        advertised, empirical = device.peak_flops.get(dtype), device.empirical_peak_flops.get(dtype)
        return command(
            "",
            peak_flops=advertised and float(advertised.value),
            empirical_peak_flops=empirical and float(empirical.value),
            measure_peak=empirical is None,
        )

    @property
    def device_memory_options(self) -> list[str]:
        """Memory of a device, where its file has it."""
        memory = self.system.device.memory_bytes
        return command("", device_memory=memory and f"{memory.value:.0f}")

    @property
    def wanted_device(self) -> str:
        return self.device or super().wanted_device

    @property
    def number_format(self) -> str | None:
        return getattr(self, "precision", None)

    def per_node(self, ranks: int) -> int | None:
        return feasible.per_node(self.system, ranks, self.ranks_per_node)

    @property
    def fills_its_nodes(self) -> bool:
        """Say whether there is a rank for each device of its nodes."""
        devices = self.system.node.devices
        return devices is not None and self.ranks_of_a_node == devices.value

    @run_before("run")
    def spread_over_nodes(self) -> None:
        if fits := self.ranks_of_a_node:
            self.num_tasks_per_node = fits
            self.num_gpus_per_node = fits if self.system.device.kind == "cuda" else None

    @run_before("run")
    def write_launch_line(self) -> None:
        """Return the engine's command line, with every option spelled out."""
        self.write_launcher(full=self.fills_its_nodes)
        words = self.engine_words(self.labels())
        self.executable = self.in_container(words)
        self.executable_opts = ["-m", "engine", *map(shlex.quote, words), "--out", self.out]

    def engine_words(self, labels: dict[str, str]) -> list[str]:
        """Return the engine's words for this test with these labels, without --out."""
        label = [f"{name}={value}" for name, value in labels.items()]
        return [*self.options(), *self.timeout_options, *command("", label=label)]

    @run_before("run")
    def run_from_the_nodes_own_folder(self) -> None:
        """Stage where that is asked for. Raises NotStaged."""
        if self.staged:
            self.prerun_cmds += [staging_command(self.partition, dry=self.is_dry_run())]
            self.executable = STAGED_PYTHON

    @run_before("run")
    def run_the_canary(self) -> None:
        """Run the frozen program on the same ranks. One that hangs is ended, and the job is as good without it."""
        if self.canary:
            launch = self.job.launcher.run_command(self.job)
            program = f"{self.executable} {shlex.quote(str(CANARY_PROGRAM))} {self.device}"
            self.postrun_cmds += [f"timeout {LONGEST_CANARY_S} {launch} {program} > {CANARY_OUT} || true"]

    def canary_s(self) -> float | None:
        """Return the seconds of the slowest rank; None where the canary didn't run."""
        file = Path(self.stagedir, CANARY_OUT)
        found = re.findall(r"^canary (\S+)$", file.read_text(), re.MULTILINE) if self.canary and file.exists() else []
        return max(map(float, found), default=None)

    @sanity_function
    def the_result_is_good(self) -> bool:
        """Check that the engine says ok; else the reason is the scheduler's, and its own."""
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

    @run_before("performance")
    def take_figures(self) -> None:
        """Hand the figures to ReFrame. A dry run measures nothing."""
        measured = {} if self.is_dry_run() else self.figures() | {references.CANARY: (self.canary_s(), "s")}
        for name, (value, unit) in measured.items():
            if value is not None:
                self.perf_variables[name] = make_performance_function(lambda value=value: float(value), unit)

    @run_before("performance", always_last=True)
    def take_references(self) -> None:
        """Compare with what these jobs usually measure on this machine, where that is known.

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
            figures = {name: one for name, one in series.figures.items() if self.canary or name != references.CANARY}
            self.referenced = tuple(figures)
            usual = {name: one.as_reframe() for name, one in figures.items()}
            self.reference = {feasible.place_of(self.system, self.partition): usual}

    @run_after("performance")
    def miss_no_figure(self) -> None:
        """Fail if a figure that has a reference is no longer measured. Raises PerformanceError."""
        measured = {name.split(":")[-1] for name in self.perfvalues}
        if missing := sorted({*self.referenced} - measured):
            raise PerformanceError(
                f"not measured, though it has a reference: {', '.join(missing)}. Find out why, or make the references "
                f"anew by `par4d reference make --system {self.system.name}`"
            )

    def judge(self) -> None:
        """Check what else the record of a good run has to show. Raises SanityError."""

    def figures(self) -> Figures:
        """Say what a good run measures; a figure that isn't known is absent from ReFrame's."""
        return {}


class WholeNodes(EngineTest):
    """Test on all devices of some nodes: as many as -S nodes says, or else the usual ones, or all of fewer."""

    usual_nodes: int
    most_ranks_here: int
    """on a machine that isn't a cluster, and whose file has no number of devices"""
    given_nodes = 0

    @run_after("init")
    def take_whole_nodes(self) -> None:
        self.given_nodes = self.nodes
        self.fit_partition()

    def fit_partition(self) -> None:
        most = feasible.most_nodes(self.system, self.partition)
        usual = self.usual_nodes if most is None else min(self.usual_nodes, most)
        devices = self.devices or 1
        if self.system.node.devices is None:
            devices = min(devices, self.most_ranks_here)
        self.num_tasks = (self.given_nodes or usual) * devices

    @property
    def devices(self) -> int | None:
        return feasible.devices_of_a_node(self.system, self.partition, self.wanted_device)

    def cannot_run(self) -> str | None:
        place = feasible.place_of(self.system, self.partition)
        if self.devices is None:
            return f"nothing says how many devices a node of {place} has (node: devices)"
        if self.num_tasks == 1:
            return f"{place} has a single device, which has no other to send to"
        return super().cannot_run()
