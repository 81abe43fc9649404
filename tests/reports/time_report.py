"""Measure how long a report of many results takes: `python tests/reports/time_report.py [NUMBER]` (10,000 if not said).

Result files of five systems with five points each, and some that are harder on the report: every result on a system of
its own, every result a point of its own in one series, and all variants of the overlap study on many layouts.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sample_ablation import ablation
from sample_results import FRONTIER, train

from engine.result.schema import Result
from reports.site import build

POINTS = list(FRONTIER.items())
SYSTEMS = ("frontier", "perlmutter", "alps", "one", "two")


def usual(number: int) -> Result:
    """Many jobs of 25 points."""
    ranks, (model, grid, time_s) = POINTS[number % 5]
    system = SYSTEMS[number // 5 % 5]
    return train(ranks=ranks, model=model, grid=grid, time_s=time_s, job=number, system=system)


def lonely(number: int) -> Result:
    """A system for each result."""
    return train(job=number, system=f"system{number}", name=f"model{number}")


def wide(number: int) -> Result:
    """A device count for each result."""
    return train(job=number, ranks=number + 1, name=f"model{number}")


def ablated(number: int) -> Result:
    """A job of the overlap study on one of a thousand layouts, each told by its model."""
    (run,) = ablation(job=number, rounds=6)
    assert run.model
    model = run.model.model_copy(update={"name": f"model{number % 1000}"})
    return run.model_copy(update={"model": model})


def measure(name: str, make: Callable[[int], Result], number: int) -> None:
    """Write the results, build the report, say how long the build took."""
    with tempfile.TemporaryDirectory() as folder:
        for n in range(number):
            Path(folder, f"{n:06d}.json").write_text(make(n).to_json())
        start = time.perf_counter()
        page, loaded = build([Path(folder)], Path(folder, "site"))
        taken = time.perf_counter() - start
        written = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
        sys.stdout.write(f"{name:8} {len(loaded.runs):,} results  {taken:.1f} s  {written / 1e6:.1f} MB written\n")


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    for label, maker in (("usual", usual), ("lonely", lonely), ("wide", wide), ("ablated", ablated)):
        measure(label, maker, count)
