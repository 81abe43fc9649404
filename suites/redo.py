"""Runs that redo published claims on a system: which tests a claim's selection has there, what they take, and ReFrame.

On the paper's machine the selection is the claim's own. Elsewhere it is the same suite: the paper's own points where
the system can run one of them, else the points of the system's own series, of U-Nets for claims about U-Nets and of
other networks for others.
"""

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import systems
from engine import processes
from engine.errors import UsageError
from engine.published.claims import Redo, costs, settings_words
from suites import costs as described
from suites.base.feasible import check_here
from suites.base.running import run_reframe
from suites.base.series import read

ROOT = Path(__file__).parents[1]
OF_IMAGES = "unet"
"""Word in the names of tests, or of their models, that train a U-Net."""
MODEL = "model_validation"
"""Suite whose results tell something beside the predictions of `par4d plan --validate`."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Tests of one suite on a system."""

    suite: str
    """File of suites/, without .py."""
    patterns: tuple[str, ...]
    """Patterns of their names, as ReFrame's -n takes them; all tests where there is none."""
    tests: Mapping[str, float]
    """Node-hours at most of a job of each, and of the fixtures that they need first, by name."""
    settings: tuple[str, ...] = ()
    """Variables of the tests, as ReFrame's -S takes them: with other ones a test is another."""

    @property
    def jobs(self) -> dict[tuple[object, ...], float]:
        """Node-hours of its tests by what tells them from those of other selections."""
        return {(self.suite, self.settings, name): hours for name, hours in self.tests.items()}

    @property
    def node_hours(self) -> float:
        """Node-hours of one job of each test, at most."""
        return sum(self.tests.values())

    def words(self, system: str, repeat: int) -> tuple[str, ...]:
        """Return the command that runs it, as it would be typed."""
        return ("reframe", *self._options(system, repeat, Path("suites")))

    def arguments(self, system: str, repeat: int) -> list[str]:
        """Return the arguments of ReFrame, in whatever folder it is started."""
        return ["--nocolor", *self._options(system, repeat, ROOT / "suites")]

    def _options(self, system: str, repeat: int, suites: Path) -> list[str]:
        named = [word for pattern in self.patterns for word in ("-n", pattern)]
        again = ["--repeat", str(repeat)] if repeat > 1 else []
        given = settings_words(self.settings)
        return ["--system", system, "-c", str(suites / f"{self.suite}.py"), *named, *given, *again, "-r"]


def at_home(redo: Redo, words: Sequence[str]) -> Selection:
    """Return what a claim's own command selects. Raises UsageError where that is nothing that can run.

    words: the command, whose costs are in the file of costs where its machine has partitions.
    """
    tests = costs().get(" ".join(words)) or described.node_hours(described.describe(words))
    if not tests:
        raise UsageError(f"{shlex.join(words)} has no test that can run")
    return Selection(redo.suite, (redo.pattern,) if redo.pattern else (), tests, redo.settings)


def elsewhere(redo: Redo, system: str, *, images: bool) -> Selection:
    """Return what stands for a claim's selection on another system. Raises UsageError where nothing there can run.

    images: whether the claim is about U-Nets.
    """
    every, said = _described(redo.suite, system, redo.settings)
    for pattern in dict.fromkeys((redo.pattern, _of_own_series(redo, images=images))):
        if tests := described.node_hours(test for test in every if re.search(pattern, _plain(test))):
            return Selection(redo.suite, (pattern,) if pattern else (), tests, redo.settings)
    skipped = [case["skipped"] for test in every for case in test["cases"] if case["skipped"]]
    why = next(iter(filter(None, (said, *skipped))), "")
    raise UsageError(f"{system} has no test of suites/{redo.suite}.py for it{why and f': {why}'}")


def together(selections: Iterable[Selection]) -> list[Selection]:
    """Join selections of the same suite and settings, so that a test which several of them have runs once. The cheapest
    go first.

    Those that add no test to larger ones are left out.
    """
    found: dict[tuple[str, tuple[str, ...]], Selection] = {}
    for one in sorted(selections, key=lambda one: (-len(one.tests), one.patterns)):
        key = (one.suite, one.settings)
        known = found.setdefault(key, one)
        if not set(one.tests) <= set(known.tests):
            tests = {**known.tests, **one.tests}
            found[key] = replace(known, patterns=known.patterns + one.patterns, tests=tests)
    return sorted(found.values(), key=lambda one: (one.node_hours, one.suite, one.settings))


def check(name: str) -> None:
    """Raise UsageError where no job of a system can be submitted from here."""
    check_here(systems.load(name), "measured")


def run(selection: Selection, system: str, *, repeat: int, folder: Path, timeout_s: float) -> int | None:
    """Run the jobs of a selection; returns ReFrame's exit code, or None if it took longer. Its words go to stderr.

    folder: where ReFrame runs, and keeps results below results/.
    """
    return run_reframe(selection.arguments(system, repeat), folder, timeout_s, sys.stderr, own_group=True)


def judged_by_model(system: str) -> str:
    """Say why results of that suite can't be set beside predictions; "" if they can."""
    known = systems.measured(system)
    calibrated = known is not None and known.performance is not None
    return "" if calibrated else f"{system} isn't calibrated: run par4d calibrate --system {system} first"


def validate(system: str, *, folder: Path, timeout_s: float) -> int | None:
    """Set the results of MODEL below a folder beside predictions, as verdicts on the model's grids need; as run()."""
    words = ["plan", "--validate", "--measured", "output", "--out", f"results/validation-{system}.json"]
    start = [sys.executable, "-P", "-m", "engine", *words]
    code, _ = processes.carry_out(start, sys.stderr.buffer, timeout_s=timeout_s, environment={}, folder=folder)
    return code


@cache
def _described(suite: str, system: str, settings: tuple[str, ...]) -> tuple[tuple[dict[str, Any], ...], str]:
    """Return all tests of a suite that a system has points for; without any, why there is none."""
    words = ("reframe", "--system", system, "-c", f"suites/{suite}.py", *settings_words(settings))
    try:
        return tuple(described.describe(words)), ""
    except UsageError as error:
        return (), str(error)


def _plain(test: Mapping[str, Any]) -> str:
    """Return a test's name as ReFrame's -n searches it."""
    return str(test["display_name"]).replace(" ", "")


def _of_own_series(redo: Redo, *, images: bool) -> str:
    """Return a selection's pattern without the paper's point, which stands before its first '.*'.

    Suites without series have no points, and keep theirs.
    """
    if redo.suite not in read():
        return redo.pattern
    _, _, rest = redo.only.partition(".*")
    parts = ".*".join(filter(None, (rest, redo.peer)))
    if images:
        return ".*".join(filter(None, (OF_IMAGES, parts)))
    return f"^(?!.*{OF_IMAGES})" + (f".*{parts}" if parts else "")
