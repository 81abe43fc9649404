"""Results of the overlap study as a machine would leave them: the variants of a setting in turns in one job."""

import math
import random
from collections.abc import Sequence
from statistics import mean, median
from typing import Any

from sample_results import train
from sample_steps import Step, simulate

from engine.result import metrics
from engine.result.schema import Result
from engine.result.schema.contest import Contest, OverlapSide, Ratio
from engine.result.schema.step import MachineUsage

STEPS = 3
SHARED = MachineUsage(ranks=8, threads_per_rank=1, cores=2, processor_s=1.9, link_bytes=60e6, link_bytes_per_s=125e6)
OWN_CORES = SHARED.model_copy(update={"ranks": 2, "processor_s": 1.9})


def variants_of(grid: str, cache: str = "auto") -> list[str]:
    """None, one flag after another, and each but the first alone."""
    flags = ["oar", "ors", "oag", f"cache={cache}", *(["data"] if not grid.endswith("x1") else [])]
    return ["none", *(",".join(flags[: number + 1]) for number in range(len(flags))), *flags[1:]]


def ablation(
    *, jobs: int = 1, rounds: int = 8, grid: str = "2x2x2x1", system: str = "vcluster", model: str = "gpt-local-4",
    cache: str = "auto", overlaps: Sequence[str] = (), job: int = 0, machine: MachineUsage | None = None,
    noise: float = 0.015, failure: str | None = None, **shape: Any,
) -> list[Result]:  # fmt: skip
    """Return the jobs of one setting. A round's noise is the same for all variants up to a tenth of it."""
    drawing = random.Random(f"{system}{grid}{job}")
    steps = [simulate(overlap, grid) for overlap in overlaps or variants_of(grid, cache)]
    words = overlaps or variants_of(grid, cache)
    results = []
    for repeat in range(jobs):
        slow = [drawing.uniform(1 - noise, 1 + noise) for _ in range(rounds)]
        times = [
            [
                [step.length * late * drawing.uniform(1 - noise / 10, 1 + noise / 10) for _ in range(STEPS)]
                for late in slow
            ]
            for step in steps
        ]
        results.append(in_turns(words, times, steps, job=job + repeat, machine=machine, failure=failure, grid=grid,
            model=model, system=system, **shape))  # fmt: skip
    return results


def in_turns(
    overlaps: Sequence[str],
    times: Sequence[Sequence[Sequence[float]]],
    steps: Sequence[Step | None] = (),
    *,
    machine: MachineUsage | None = None,
    grid: str = "2x2x2x1",
    failure: str | None = None,
    hosts: int = 4,
    **shape: Any,
) -> Result:
    """One job. times: seconds of each step by variant and round; steps: what ran when in each, where it is told."""
    known = {"partition": "cpu", "dtype": "fp32", "sequences": 16, "study": "overlap_ablation", "system": "vcluster"}
    known |= {"model": "gpt-local-4", "environment": {"hosts": tuple(f"n{n}" for n in range(hosts))}} | shape
    run = train(ranks=math.prod(map(int, grid.split("x"))), grid=grid, failure=failure or "", **known)
    config = {key: value for key, value in run.config.items() if key != "overlap"}
    empty = {"iterations": (), "summary": None, "breakdown": None, "timeline": None, "collectives": ()}
    run = run.model_copy(update={"kind": "ablation", "config": config, **empty})
    if failure:
        return run
    told = steps or [None] * len(times)
    listed = [_variant(*one, machine) for one in zip(overlaps, times, told, strict=True)]
    bases = [variant for variant in listed if variant.name == "none"]
    return with_sides(run, [_compared(one, bases[0]) if bases else one for one in listed])


def with_sides(run: Result, sides: Sequence[OverlapSide]) -> Result:
    return run.model_copy(update={"contest": Contest(base="none", sides=tuple(sides))})


def _variant(
    overlap: str, rounds: Sequence[Sequence[float]], step: Step | None, machine: MachineUsage | None
) -> OverlapSide:
    time_s = mean(seconds for one in rounds for seconds in one)
    return OverlapSide(
        name=overlap,
        rounds_s=tuple(map(tuple, rounds)),
        time_per_iteration_s=time_s,
        breakdown=step.breakdown(time_s, machine) if step else None,
        **(step.memory if step else {}),
        timeline=step.timeline(time_s) if step and (overlap == "none" or overlap.count(",") > 2) else None,
    )


def _compared(variant: OverlapSide, none: OverlapSide) -> OverlapSide:
    if variant.name == "none":
        return variant
    pairs = [(median(mine), median(base)) for mine, base in zip(variant.rounds_s, none.rounds_s, strict=True)]
    share = None
    told = (variant.breakdown, none.breakdown)
    if told[0] and told[1] and told[0].bound and told[1].bound:
        share = metrics.share_of_greatest_gain(
            metrics.paired_ratio(pairs), none.time_per_iteration_s, told[0].bound.bound_s, told[1].bound.bound_s
        )
    ratio = Ratio.of(metrics.paired([pairs]))
    return variant.model_copy(update={"over_base": ratio, "share_of_greatest_gain": share})
