"""Results of many systems, made up but consistent: each has a speed of its own, its own sizes and its own studies."""

import random
from collections.abc import Sequence

from sample_ablation import ablation
from sample_devices import latency, memory
from sample_pipelines import pipeline
from sample_results import FRONTIER, energy, gemm, strong, train

from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops
from engine.result.schema import Result

LONGEST = "eessi-node-of-the-national-supercomputing-centre-number-0001"
"""ReFrame takes names of systems of 60 letters."""
MARKUP = "<b>bold</b>&amp;'\""
MANY = 40
REAL = ("frontier", "perlmutter", "alps", "summit")
SEQUENCES = 8192


def names(number: int) -> list[str]:
    """Names of so many systems, those with files first, then invented ones, a very long one and one with markup."""
    invented = [f"system-{place:02}" for place in range(number)]
    return [*REAL, LONGEST, MARKUP, *invented][:number]


def of_system(system: str, place: int, *, jobs: int = 2, every_study: bool = True) -> list[Result]:
    """Results of one system, the faster the later its place. Every fourth has fewer device counts than the others."""
    noise = random.Random(system)
    peak = 150e12 + 25e12 * place
    known = {"system": system, "peak": None if system in REAL else peak}
    counted = energy({"node": 9e5, "device": 7e5}) if place % 3 == 0 else None
    results = [
        train(
            ranks=ranks,
            model=model,
            grid=grid,
            job=12 * ranks % 97 + job,
            sequences=SEQUENCES,
            energy=counted,
            time_s=hardware_flops(lookup(model), SEQUENCES, recompute=True)
            / ranks
            / (peak * noise.uniform(0.42, 0.5) * (512 / ranks) ** 0.03),
            **known,  # type: ignore[arg-type]
        )
        for ranks, (model, grid, _) in list(FRONTIER.items())[: 3 if place % 4 == 3 else 5]
        for job in range(jobs)
    ]
    if every_study:
        results += strong(system=system, points=4, time_s=1120.0 * 150e12 / peak)
        results += [gemm(system=system, best=0.7 * peak), memory(system=system, triad=8e11), latency(system=system)]
        results += ablation(system=system, job=300 + place)
        results += pipeline(system=system, job=400 + place)
    return results


def systems(number: int = MANY, *, jobs: int = 2, every_study: bool = True) -> list[Result]:
    listed: Sequence[str] = names(number)
    return [
        one
        for place, system in enumerate(listed)
        for one in of_system(system, place, jobs=jobs, every_study=every_study)
    ]
