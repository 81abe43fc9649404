"""Are split activations as fast as they have to be? Measured in turns with Algorithm 1, over gloo.

    python tests/engine/prove_modes.py                 all grids, six jobs each, on an idle machine
    python tests/engine/prove_modes.py --jobs 2 --only 1x4x1x1
    python tests/engine/prove_modes.py --modes split,2d --only 2x2x1x1

A job is `bench grids` of one grid in both modes, which take turns in the same processes, of a GPT of 2 layers, 512
features and 512 tokens in its vocabulary, on 4 sequences of 2,048 tokens, in fp32. The ratio is that of the medians of
a job's rounds; its interval, of confidence 0.95, speaks of other jobs on the machine. Jobs are kept as they end, so
that the same command goes on where it was stopped.

The exit code is 1 if the whole interval of a grid is above its limit, 3 if none is but one contains it, else 0.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tabulate import tabulate

from engine.grid import Grid
from engine.result.gate import Outcome, all_of, at_most, over_jobs
from engine.result.provenance import processor_name
from engine.result.schema import read
from engine.result.schema.contest import GridSide

ROOT = Path(__file__).parents[2]
MODEL = ("--layers", "2", "--hidden", "512", "--heads", "8", "--vocab", "512", "--seq", "2048", "--batch-size", "4")
LIMITS = {"1x2x1x1": 1.02, "1x4x1x1": 0.85, "2x2x1x1": 1.02, "1x4x2x1": 1.02}
"""Largest ratio of the time of split activations by that of Algorithm 1, on grids where they are the default."""
ROUNDS, JOBS, LONGEST_S = 4, 6, 900
FAILED, UNDECIDED = 1, 3


@dataclass(frozen=True, slots=True)
class Contest:
    """Grid on which two modes take turns."""

    grid: str
    checkpointing: bool
    modes: tuple[str, str]

    @property
    def name(self) -> str:
        return "-".join([self.grid, *self.modes, "checkpointed" if self.checkpointing else "plain"])

    @property
    def limit(self) -> float | None:
        return LIMITS.get(self.grid) if self.modes == ("4d", "split") else None

    def command(self, out: Path) -> list[str]:
        candidates = [word for mode in self.modes for word in ("--candidate", f"{self.grid},{mode}")]
        ranks = Grid.parse(self.grid).size
        return [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)),
            *("-m", "engine", "bench", "grids", *MODEL, "--data", "synthetic", "--device", "cpu", *candidates),
            *(["--checkpoint-activations"] if self.checkpointing else []),
            *("--rounds", str(ROUNDS), "--steps-per-round", "1", "--out", str(out)),
        ]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=JOBS, help="of each grid")
    options.add_argument("--modes", default="4d,split", metavar="FIRST,SECOND", help="that take turns")
    options.add_argument("--only", action="append", metavar="GRID", help="repeatable (default: those with a limit)")
    options.add_argument("--keep", type=Path, default=ROOT / "results" / ".prove-modes", metavar="DIR")
    given = options.parse_args()
    first, _, second = given.modes.partition(",")
    contests = [
        Contest(grid, checkpointing, (first, second))
        for grid in given.only or LIMITS
        for checkpointing in (False, True)
    ]
    for job in range(given.jobs):  # all grids before the next job, so that hours of a machine are shared out
        for contest in contests:
            out = given.keep / f"{contest.name}-{job}.json"
            if not out.exists():
                run(contest, out)
    rows, outcomes = [], list[Outcome]()
    for contest in contests:
        ratios = [ratio(given.keep / f"{contest.name}-{job}.json") for job in range(given.jobs)]
        row, outcome = judged(contest, ratios)
        rows.append(row)
        outcomes += [outcome] if contest.limit is not None else []
    heads = ["grid", "", "second by first", "of other jobs", "jobs", "limit", "outcome"]
    sys.stdout.write(f"{processor_name()}, {os.cpu_count()} processors: {second} by {first}\n")
    sys.stdout.write(tabulate(rows, heads, "plain", disable_numparse=True) + "\n")
    together = all_of(*outcomes) if outcomes else "pass"
    return {"pass": 0, "fail": FAILED, "undecided": UNDECIDED}[together]


def run(contest: Contest, out: Path) -> None:
    """Run a job, whose result has its name once it has ended. Raises CalledProcessError or TimeoutExpired."""
    out.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"{out.stem}\n")
    env, running = os.environ | {"OMP_NUM_THREADS": "1"}, out.with_suffix(".running")
    subprocess.run(contest.command(running), cwd=ROOT, env=env, check=True, timeout=LONGEST_S, capture_output=True)
    running.rename(out)


def ratio(file: Path) -> float:
    """Return the second mode's median time of a round by the first one's."""
    first, second = (median(sum(seconds) for seconds in side.rounds_s) for side in read(file).sides(GridSide))
    return second / first


def judged(contest: Contest, ratios: Sequence[float]) -> tuple[list[str], Outcome]:
    """Return a row of the table, and its outcome."""
    interval, limit = over_jobs(ratios), contest.limit
    outcome: Outcome = "undecided" if limit is None else at_most(interval, limit)
    kind = "checkpointed" if contest.checkpointing else "plain"
    told = ["", ""] if limit is None else [f"{limit:.2f}", outcome]
    span = f"{interval.low:.3f} to {interval.high:.3f}"
    return [contest.grid, kind, f"{median(ratios):.3f}", span, str(len(ratios)), *told], outcome


if __name__ == "__main__":
    sys.exit(main())
