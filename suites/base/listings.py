"""Output of ReFrame's command line on tests: lists, descriptions and dry runs with costs, and pipelines for GitLab.

Lists and descriptions say what jobs take of each partition at most, and so does the end of a dry run.
`reframe --ci-generate FILE` writes commands that run what this command would: ReFrame's own leave out --system and all
that says how tests run, and have a job for each fixture, of which no command selects one.
"""

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from reframe.core.exceptions import ReframeError
from reframe.core.runtime import runtime

from engine import published
from engine.errors import UsageError
from suites.base.series import Point, Series

PAPERS = tuple(path.stem for path in published.FOLDER.glob("*.yaml"))
"""Names of those that published something, with which the source of a series begins."""
REPEAT = re.compile(r" %\$repeat_no=\d+")
"""Words that --repeat adds to a test's name."""
SHOWN_OF_A_CASE = ("nodes", "time_limit_s", "node_hours")


def show_allocations(cli: Any) -> None:
    """Make ReFrame's lists end with what their tests cost at most, and tests described name what they take of each
    partition, and the jobs of their fixtures, which ReFrame leaves out.
    """
    list_checks, describe_checks = cli.list_checks, cli.describe_checks

    def list_all(testcases: Sequence[Any], printer: Any, *arguments: Any) -> None:
        _of_their_partitions(testcases)
        list_checks(testcases, printer, *arguments)
        checks = [case.check for case in testcases]
        for sentence in filter(None, (allocation(checks), *by_figure(checks), left_out(testcases))):
            printer.info(f"{sentence}\n")

    def describe_all(testcases: Sequence[Any], printer: Any) -> None:
        _of_their_partitions(testcases)
        ours = [(case, _as_data(case)) for case in testcases if _ours([case.check])]
        for case, _ in ours:
            check = case.check
            alike = [(one, data) for one, data in ours if one.check.unique_name == check.unique_name]
            check.cases = [data for _, data in alike]
            needed = {fixture for one, data in alike if not data["skipped"] for fixture in _ours(_needed(one))}
            fixtures = sorted((one for one in needed if one.is_fixture()), key=lambda one: str(one.unique_name))
            check.fixture_jobs = [{"unique_name": one.unique_name} | _costs(one) for one in fixtures]
        describe_checks(testcases, printer)

    cli.list_checks, cli.describe_checks = list_all, describe_all


def allocation(checks: Iterable[Any]) -> str | None:
    """Say what the test cases and fixtures that can run take together, in a sentence; None if none of them is ours.

    checks: one for each test case.
    """
    jobs = [check for check in _ours(checks) if check.nodes and not cannot_run(check)]
    if not jobs:
        return None
    tests = len({job.unique_name for job in jobs if not job.is_fixture()})
    nodes, hours = max(job.nodes for job in jobs), sum(job.node_hours for job in jobs)
    minutes = sum(job.time_limit_s for job in jobs) / 60
    return (
        f"{tests} test{'s' * (tests != 1)}, at most {hours:.1f} node-hours: up to {nodes} node{'s' * (nodes != 1)}, "
        f"{minutes:.0f} minutes one after the other"
    )


def by_figure(checks: Iterable[Any]) -> list[str]:
    """Say what the jobs of each series of a paper take together that a verdict asks for, in a sentence each."""
    once = {REPEAT.sub("", check.display_name): check for check in _ours(checks) if check.nodes}
    figures: dict[tuple[str, int], list[Any]] = {}
    for job in once.values():
        if (series := _series(job)) and not cannot_run(job):
            figures.setdefault((series.source.partition(";")[0], series.repeats), []).append(job)
    return [
        f"{figure}: {len(each)} test{'s' * (len(each) != 1)}, at most "
        f"{repeats * sum(job.node_hours for job in each):,.1f} node-hours with --repeat {repeats}"
        for (figure, repeats), each in figures.items()
    ]


def _series(check: Any) -> Series | None:
    """Return the series of a paper that a test is of; None of any other test."""
    point = getattr(check, "point", None)
    series = point.series if isinstance(point, Point) else None
    return series if series and series.source.startswith(PAPERS) else None


def left_out(testcases: Sequence[Any]) -> str | None:
    """Say how many test cases would be skipped, and why the first of them; None if none would."""
    found = [(check, reason) for check in _ours(case.check for case in testcases) if (reason := cannot_run(check))]
    if not found:
        return None
    check, reason = found[0]
    return f"{len(found)} will be skipped: {check.display_name}: {reason}"


def show_scripts(cli: Any) -> None:
    """Make a dry run end with where its job scripts lie, and what their jobs take at most."""

    class Runner(cli.Runner):
        def runall(self, testcases: Sequence[Any], restored_cases: Sequence[Any] | None = None) -> None:
            super().runall(testcases, restored_cases)
            checks = [task.check for task in self.stats.tasks(None) if task.result == "pass"]
            if sentence := written(check for check in checks if check.is_dry_run()):
                self._printer.info(sentence)

    cli.Runner = Runner


def written(checks: Iterable[Any]) -> str | None:
    """Say where the job scripts of these tests lie, and what their jobs take at most; None if there is none of ours.

    Node-hours are those of jobs that a scheduler is asked for: others run where ReFrame does.
    """
    jobs = {Path(check.stagedir, check.job.script_filename): check for check in _ours(checks)}
    if not jobs:
        return None
    queued = [check for check in jobs.values() if not (check.local or check.partition.is_local)]
    where = str(next(iter(jobs))) if len(jobs) == 1 else f"below {os.path.commonpath(jobs)}"
    said = f"{len(jobs):,} job script{'s' * (len(jobs) > 1)} {where}; "
    if queued:
        return f"{said}to run all takes at most {sum(check.node_hours for check in queued):,.1f} node-hours."
    return f"{said}all run where ReFrame does, so that no scheduler counts node-hours."


def _of_their_partitions(testcases: Sequence[Any]) -> None:
    """Give each test case a test of its own, as a run does, which knows its partition."""
    for case in testcases:
        case.prepare()
        for check in _ours([case.check]):
            check.fit_partition()
            check.count_nodes()


def _as_data(case: Any) -> dict[str, Any]:
    """Say what a test case takes of its partition: nothing where it can't run."""
    skipped = cannot_run(case.check)
    costs = _costs(case.check) | ({"node_hours": 0.0} if skipped else {})
    return {"partition": case.partition.name, "skipped": skipped or ""} | costs


def _costs(check: Any) -> dict[str, Any]:
    return {name: getattr(check, name) for name in SHOWN_OF_A_CASE}


def cannot_run(check: Any) -> str | None:
    """Say why the partition of a test can't run it; None if it can, as also what isn't ours may."""
    return str(reason) if _ours([check]) and (reason := check.cannot_run()) else None


def _ours(checks: Iterable[Any]) -> list[Any]:
    """Return the tests that say what they take of an allocation (allocation.py)."""
    return [check for check in checks if hasattr(check, "node_hours")]


def _needed(case: Any) -> set[Any]:
    """Return all tests and fixtures that come before a test case."""
    return {check for other in case.deps for check in (other.check, *_needed(other))}


CARRIED = {
    "vars": "--setvar",
    "job_options": "--job-option",
    "hooks": "--disable-hook",
    "module_mappings": "--map-module",
    "user_modules": "--module",
    "unload_modules": "--unload-module",
    "module_paths": "--module-path",
}
"""The options of ReFrame's that may be given several times, by the names of its parser."""
FLAGS = ("skip_performance_check", "skip_prgenv_check", "skip_sanity_check", "skip_system_check", "keep_stage_files")
GENERATED = ("parameterize", "repeat", "distribute")
"""These make tests which no name selects in another command."""


def carry_options(cli: Any) -> None:
    """Make the commands of a generated pipeline have the options of this one."""
    given: list[Any] = []
    emit = cli.ci.emit_pipeline

    class Parser(cli.argparse.ArgumentParser):
        def parse_args(self, *arguments: Any, **keywords: Any) -> Any:
            given[:] = [super().parse_args(*arguments, **keywords)]
            for name in GENERATED if given[0].ci_generate else ():
                if getattr(given[0], name):
                    raise UsageError(f"--ci-generate selects tests by name, but --{name} makes new ones: leave it out.")
            return given[0]

    def emit_with_options(out: IO[str], testcases: Sequence[Any], words: Sequence[str]) -> None:
        try:
            emit(out, _by_themselves(testcases), [*words, *carried(*given)])
        except ReframeError:
            Path(out.name).unlink(missing_ok=True)
            raise

    cli.argparse.ArgumentParser, cli.ci.emit_pipeline = Parser, emit_with_options


def carried(options: Any) -> list[str]:
    """Return the words for a shell that make another command run as this one. Raises ReframeError for a path that
    ReFrame's words would break.
    """
    config = runtime().site_config
    for path in (*config.sources[1:], *config.get("general/0/check_search_path")):
        if shlex.quote(str(path)) != str(path):
            raise ReframeError(f"--ci-generate can't write {str(path)!r} into a command: move it to a plain path")
    words = [f"--system={options.system or runtime().system.name}"]
    words += [f"{option}={value}" for name, option in CARRIED.items() for value in getattr(options, name) or ()]
    words += [f"--{name.replace('_', '-')}" for name in FLAGS if getattr(options, name)]
    return [shlex.quote(word) for word in words]


def _by_themselves(testcases: Sequence[Any]) -> list[Any]:
    """Leave fixtures to the commands of the tests that need them, and leave out tests that would be skipped. Raises
    ReframeError where none is left.
    """
    tests = [case for case in testcases if not case.check.is_fixture()]
    reasons = {id(case): cannot_run(case.check) for case in tests}
    kept = [case for case in tests if not reasons[id(case)]]
    if not kept:
        raise ReframeError(f"--ci-generate has no test to run: {reasons[id(tests[0])]}")
    for case in kept:
        case.deps[:] = [other for other in case.deps if other in kept]
    return kept
