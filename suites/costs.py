"""Node-hours that the commands of published claims take at most, as ReFrame describes their tests.

    python -m suites.costs          writes engine/published/claims/node_hours.json again: after a change of
                                    suites/series.yaml, of a time limit, or of the claims
    python -m suites.costs --check  says what isn't as in that file
    python -m suites.costs kernel_tuning    describes the commands of these suites alone, and keeps the others' costs

Nothing is run: a test's cost is its nodes by its time limit, of a test that its partition can run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import systems
from engine import files
from engine.errors import UsageError
from engine.output import complain
from engine.published.claims import COSTS, Claim, costs, figures
from suites.base.running import LAUNCHER

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600.0
"""Longest time that a command may take to describe its tests."""


def commands(claims: Iterable[Claim]) -> list[tuple[str, ...]]:
    """List the commands of claims whose machine has a file with partitions, each once."""
    known = [claim for claim in claims if claim.machine in systems.names()]
    return sorted({words for claim in known if systems.load(claim.machine).partitions for words in claim.commands})


def describe(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return ReFrame's description of the tests that a command selects. Raises UsageError where it has none."""
    asked = [*LAUNCHER, *words[1:], "--describe"]
    asked[asked.index("-c") + 1] = str(ROOT / words[words.index("-c") + 1])
    with TemporaryDirectory() as folder:
        try:
            done = subprocess.run(
                asked,
                cwd=folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"{' '.join(words)} --describe took more than {TIMEOUT_S:.0f} s.") from None
    begin = done.stdout.find("[\n")
    if done.returncode or begin < 0:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise UsageError(f"{' '.join(words)} selects no test that can be described: {said}")
    tests: list[dict[str, Any]] = json.loads(done.stdout[begin:])
    return tests


def node_hours(tests: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return what tests and the jobs of their fixtures take, by name; nothing of cases that would be skipped."""
    found: dict[str, float] = {}
    for test in tests:
        found[test["display_name"]] = sum(case["node_hours"] for case in test["cases"] if not case["skipped"])
        found |= {job["unique_name"]: job["node_hours"] for job in test["fixture_jobs"]}
    return {name: round(hours, 3) for name, hours in found.items() if hours}


def main(arguments: Sequence[str]) -> int:
    """Write the costs, or compare them with the file; returns 1 where they differ."""
    suites = [word for word in arguments if word != "--check"]
    every = {" ".join(words): words for words in commands(claim for figure in figures() for claim in figure.claims)}
    known = {_suite_of(words) for words in every.values()}
    if unknown := set(suites) - known:
        raise UsageError(f"{min(unknown)!r} is neither --check nor a suite of a claim: {', '.join(sorted(known))}.")
    kept = {said: tests for said, tests in costs().items() if said in every} if suites else {}
    asked = {said: words for said, words in every.items() if not suites or _suite_of(words) in suites}
    found = kept | {said: node_hours(describe(words)) for said, words in asked.items()}
    if "--check" not in arguments:
        files.write_text(COSTS, json.dumps(found, indent=1, sort_keys=True) + "\n")
        return 0
    differing = differences(found)
    for line in differing:
        complain(line)
    return 1 if differing else 0


def _suite_of(words: Sequence[str]) -> str:
    return Path(words[words.index("-c") + 1]).stem


def differences(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Say of each command whose cost isn't the file's what it is and was."""
    kept = costs()
    return [
        f"{words}: {_told(found.get(words))}, in {COSTS.name} {_told(kept.get(words))}."
        for words in sorted({*found, *kept})
        if found.get(words) != kept.get(words)
    ]


def _told(tests: Mapping[str, float] | None) -> str:
    return "missing" if tests is None else f"{len(tests)} jobs of {sum(tests.values()):.1f} node-hours"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        complain(str(error))
        sys.exit(2)
