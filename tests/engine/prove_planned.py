"""Does the planner order tensor modes and grids as they turn out? Twenty points on a virtual cluster.

    ci/cluster up                                          four nodes of two ranks, as root, on an idle machine
    par4d calibrate --system vcluster                      on another machine than systems/measured/vcluster.yaml's
    python tests/engine/prove_planned.py                   half an hour
    python tests/engine/prove_planned.py --only tall-4-16

A point is a GPT, a number of ranks and a batch; of each, candidates take turns in the same processes (bench grids), and
each is predicted by its traced step. Points and candidates were fixed before any was predicted or measured. Results are
kept as they end, so that the same command goes on where it was stopped.

* First two: on how many points is the fastest candidate among the predicted first two? At least 18 of 20.
* Order: Kendall's tau of all pairs of a point's candidates, but for pairs whose rounds overlap, over all points. At
  least 0.7, by an interval of confidence 0.95 from points drawn anew.

The exit code is 1 if either fails, 3 if one is undecided, else 0.
"""

import argparse
import os
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import median

from tabulate import tabulate

import systems
from engine.batch import Batch
from engine.contest.grids import GridChoice
from engine.models.choice import ModelChoice
from engine.overlap.flags import Overlap
from engine.result.gate import Interval, Outcome, all_of, at_least
from engine.result.provenance import processor_name
from engine.result.schema import read
from engine.result.schema.contest import GridSide
from engine.simulator.machine import MachineModel
from engine.tracing.predict import trace_network
from engine.training_record import Training, TrainingOptions

ROOT = Path(__file__).parents[2]
SYSTEM, NODE, PRECISION = "vcluster", 2, "fp32"
MODELS = {
    "tall": ModelChoice(layers=8, hidden=256, heads=8, vocab=512, seq=256),
    "wide": ModelChoice(layers=2, hidden=768, heads=8, vocab=512, seq=128),
    "long": ModelChoice(layers=2, hidden=256, heads=8, vocab=512, seq=1024),
    "wordy": ModelChoice(layers=2, hidden=256, heads=8, vocab=8192, seq=256),
    "small": ModelChoice(layers=4, hidden=128, heads=8, vocab=512, seq=512),
}
CANDIDATES = {
    4: ("4x1x1x1,4d", "1x4x1x1,4d", "1x4x1x1,split", "2x2x1x1,4d", "2x2x1x1,split", "2x2x1x1,2d", "1x1x4x1", "1x1x1x4"),
    8: (
        "8x1x1x1,4d",
        "2x4x1x1,split",
        "2x2x2x1,4d",
        "2x2x2x1,split",
        "2x2x2x1,2d",
        "1x2x4x1,split",
        "1x1x8x1",
        "2x1x1x4",
    ),
}
BATCHES = (16, 32)
ROUNDS, LONGEST_S = 4, 900
FEWEST_FIRST, LEAST_TAU = 18, 0.7
DRAWN, OUTSIDE = 2000, 0.025
FAILED, UNDECIDED = 1, 3


@dataclass(frozen=True, slots=True)
class Point:
    """Network on so many ranks with a batch."""

    model: str
    ranks: int
    sequences: int

    @property
    def name(self) -> str:
        return f"{self.model}-{self.ranks}-{self.sequences}"

    @property
    def options(self) -> list[str]:
        """Options of the network, and of its batch."""
        shape = MODELS[self.model]
        sizes = {
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "vocab": shape.vocab,
            "seq": shape.seq,
        }
        words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
        return [*words, "--batch-size", str(self.sequences)]

    def command(self, out: Path) -> list[str]:
        """Return the words that measure all candidates in turns."""
        nodes = self.ranks // NODE
        candidates = [word for candidate in CANDIDATES[self.ranks] for word in ("--candidate", candidate)]
        return [
            *(
                "srun",
                f"--nodes={nodes}",
                f"--ntasks={self.ranks}",
                f"--ntasks-per-node={NODE}",
                "--kill-on-bad-exit=1",
            ),
            *(
                sys.executable,
                "-m",
                "engine",
                "bench",
                "grids",
                *self.options,
                "--data",
                "synthetic",
                "--device",
                "cpu",
            ),
            *(
                "--precision",
                PRECISION,
                *candidates,
                "--rounds",
                str(ROUNDS),
                "--steps-per-round",
                "1",
                "--out",
                str(out),
            ),
        ]


POINTS = [Point(model, ranks, batch) for model in MODELS for ranks in CANDIDATES for batch in BATCHES]
Spread = Mapping[str, Sequence[float]]
"""Seconds of each round by candidate."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Candidates of a point, predicted and measured."""

    predicted_s: Mapping[str, float]
    rounds_s: Spread

    @property
    def fastest_is_among_two(self) -> bool:
        fastest = min(self.rounds_s, key=lambda name: median(self.rounds_s[name]))
        return fastest in sorted(self.predicted_s, key=self.predicted_s.__getitem__)[:2]

    @property
    def pairs(self) -> tuple[int, int]:
        """Pairs in the predicted order less those in the other, and all that rounds tell apart."""
        agree = told = 0
        for one, other in combinations(self.rounds_s, 2):
            mine, others = self.rounds_s[one], self.rounds_s[other]
            if max(mine) < min(others) or max(others) < min(mine):
                told += 1
                slower, predicted = median(mine) > median(others), self.predicted_s[one] > self.predicted_s[other]
                agree += 1 if slower == predicted else -1
        return agree, told


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", action="append", choices=[point.name for point in POINTS], metavar="POINT")
    options.add_argument("--keep", type=Path, default=ROOT / "results" / ".prove-planned", metavar="DIR")
    given = options.parse_args()
    points = [point for point in POINTS if not given.only or point.name in given.only]
    found: dict[str, Compared] = {}
    for point in points:
        out = given.keep / f"{point.name}.json"
        if not out.exists():
            run(point, out)
        found[point.name] = Compared(predict(point), measured(out))
    heads = ["point", "fastest", "predicted first", "among two", "pairs", "in order"]
    sys.stdout.write(f"{processor_name()}, {os.cpu_count()} processors\n")
    sys.stdout.write(
        tabulate([row(name, one) for name, one in found.items()], heads, "plain", disable_numparse=True) + "\n"
    )
    every = list(found.values())
    firsts, order, (tau, interval) = *judged(every), taus(every)
    among = sum(one.fastest_is_among_two for one in found.values())
    sys.stdout.write(f"first two: {among} of {len(found)}, at least {FEWEST_FIRST} of {len(POINTS)}: {firsts}\n")
    sys.stdout.write(f"tau {tau:.3f} ({interval.low:.3f} to {interval.high:.3f}), at least {LEAST_TAU}: {order}\n")
    return {"pass": 0, "fail": FAILED, "undecided": UNDECIDED}[all_of(firsts, order)]


def run(point: Point, out: Path) -> None:
    """Measure a point, whose result has its name once it has ended. Raises CalledProcessError or TimeoutExpired."""
    out.parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"{point.name}\n")
    running = out.with_suffix(".running")
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(point.command(running), cwd=ROOT, env=env, check=True, timeout=LONGEST_S, capture_output=True)
    running.rename(out)


def predict(point: Point) -> dict[str, float]:
    """Return the predicted seconds of a step of each candidate."""
    machine = MachineModel.of(systems.load(SYSTEM), PRECISION, systems.measured(SYSTEM), point.ranks)
    links, model, found = machine.bandwidths, MODELS[point.model].resolve(), {}
    for word in CANDIDATES[point.ranks]:
        choice = GridChoice.parse(word)
        options = TrainingOptions(precision=PRECISION, tensor_mode=choice.mode or "auto")
        training = Training.of(options, model, Batch(point.sequences), overlap=Overlap.parse("all"))
        training = training.with_bucket(choice.grid, links.inter, links.devices_per_node)
        found[word] = trace_network(training, choice.grid).on(machine).time_s
    return found


def measured(file: Path) -> Spread:
    """Return the seconds of a step in each round, by candidate, in their order."""
    result = read(file)
    sides, words = result.sides(GridSide), CANDIDATES[result.ranks]
    if len(sides) != len(words):
        raise SystemExit(f"{file} has {len(sides)} candidates, not {len(words)}: remove it, and run this again.")
    return {word: [sum(seconds) for seconds in side.rounds_s] for word, side in zip(words, sides, strict=True)}


def judged(found: Sequence[Compared]) -> tuple[Outcome, Outcome]:
    """Judge both gates. The first is undecided while points that are missing could still decide it."""
    among, missing = sum(one.fastest_is_among_two for one in found), len(POINTS) - len(found)
    firsts = at_least(Interval(among, among + missing), FEWEST_FIRST)
    return firsts, at_least(taus(found)[1], LEAST_TAU)


def taus(found: Sequence[Compared]) -> tuple[float, Interval]:
    """Return Kendall's tau over all points, and its interval over points that are drawn anew."""
    pairs, draw = [one.pairs for one in found], random.Random(0)

    def tau(some: Sequence[tuple[int, int]]) -> float:
        told = sum(count for _, count in some)
        return sum(agree for agree, _ in some) / told if told else 0.0

    drawn = sorted(tau(draw.choices(pairs, k=len(pairs))) for _ in range(DRAWN))
    low, high = drawn[int(OUTSIDE * DRAWN)], drawn[int((1 - OUTSIDE) * DRAWN) - 1]
    return tau(pairs), Interval(low, high)


def row(name: str, one: Compared) -> list[str]:
    fastest = min(one.rounds_s, key=lambda word: median(one.rounds_s[word]))
    first = min(one.predicted_s, key=one.predicted_s.__getitem__)
    agree, told = one.pairs
    return [name, fastest, first, "yes" if one.fastest_is_among_two else "no", str(told), str((told + agree) // 2)]


if __name__ == "__main__":
    sys.exit(main())
