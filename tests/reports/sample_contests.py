"""Contests with peers as a machine would leave them, made up but consistent: every statistic follows from the times."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_results import provenance

from engine.grid import Grid
from engine.peers.compare import summarise
from engine.peers.layout import Layout
from engine.peers.ranks import Job
from engine.peers.registry import COMPARISONS, OWN_COMPARISON
from engine.peers.result_writer import asked_fields
from engine.result.schema import Memory
from engine.result.schema.peers import Asked, ContestResult, Peaks, PeerContest, PeerSide, PeersResult, Work
from engine.result.schema.profile import StepParts
from engine.training.equality import TOLERANCES

RATIOS = {"plain": 1.01, "ddp": 0.98, "fsdp2": 0.87, "fsdp2-reshard": 0.79, "hsdp": 0.93, "tensor-parallel": 1.12}
ONE_DEVICE = {"plain": 0.94, "compile": 1.04, "transformers": 0.71}
NO_PEAKS = Peaks()
MEMORY = {"plain": 690, "compile": 520, "transformers": 810}
"""MiB of a peer's side."""


def held(peer: str, *, ratio: float = 1.0, jobs: int = 3, rounds: int = 6, spread: float = 0.02, step_s: float = 0.4,
         dtype: str = "fp32", seed: int = 0, **changes: Any) -> ContestResult:  # fmt: skip
    noise, contest = random.Random(f"{peer}{seed}"), {**COMPARISONS, OWN_COMPARISON.name: OWN_COMPARISON}[peer]
    tolerance = TOLERANCES[dtype]  # type: ignore[index]

    def side(scale: float, losses: Sequence[float]) -> PeerSide:
        wall = tuple(tuple(step_s * scale * noise.gauss(1.0, spread) for _ in range(2)) for _ in range(rounds))
        taken = MEMORY.get(peer, 650) if scale == 1.0 else 600
        norms = (1.8, 0.9, 0.8)
        return PeerSide(losses=tuple(losses), gradient_norms=norms, rounds_s=wall, cpu_s=wall, peak_bytes=taken * 2**20)

    def job() -> Job:
        here, losses = noise.gauss(1.0, spread / 2), (8.31, 8.02, 7.77)
        equal = [loss * (1 + tolerance.losses / 300) for loss in losses]
        memory = Memory(kind="resident", peak_bytes_per_rank=(700 * 2**20,) * contest.grid.size)
        return Job(
            PeerContest.of(side(ratio * here, losses), side(1.0, equal)), memory, ("n0",), ("a processor",), None
        )

    found = summarise(contest, [job() for _ in range(jobs)], tolerance, load=0.4)
    return found.model_copy(update=changes)


def contests(names: Sequence[str] = tuple(RATIOS), *, system: str = "local", series: str = "local", job: int = 0,
             device: str = "cpu", dtype: str = "fp32", model: str = "gpt-local-2", failure: str | None = None,
             environment: dict[str, Any] | None = None, ratios: dict[str, float] = RATIOS,
             peaks: Peaks = NO_PEAKS, missing: str | None = None, **known: Any) -> PeersResult:  # fmt: skip
    """One command with these contests. failure: it failed in the one after them, for that reason; missing: why one with
    transformers can't be held.
    """
    found = [held(name, ratio=ratios[name], dtype=dtype, seed=job, **known) for name in names]
    asked = [Asked(**asked_fields(COMPARISONS["transformers"]), missing=missing)] if missing else []
    asked += [Asked.model_validate(contest.model_dump(include=set(Asked.model_fields))) for contest in found]
    if failure:
        asked += [Asked(**asked_fields(COMPARISONS[name])) for name in ("hsdp", "tensor-parallel")]
    return PeersResult(
        status="failed" if failure else "ok",
        reason=failure,
        labels={"study": "peers", "system": system, "partition": "cpu", "series": series},
        device=device,  # type: ignore[arg-type]
        dtype=dtype,
        case={
            "model": {"name": model, "sequence": 128},
            "sequences": 8,
            "threads": 1,
            "checkpoint_activations": False,
            "warmup": 3,
            "steps": 2,
            "overlap": {"oar": True, "ors": True, "oag": True, "cache": "auto", "data": True},
        },
        work=Work(tokens=1024, model_flops=2 * 10**10, hardware_flops=2 * 10**10),
        peaks=peaks,
        contests=tuple(asked),
        comparisons=tuple(found),
        provenance=provenance(job, **({"devices": ("AMD EPYC",)} | (environment or {}))),
    )


def parted(contest: ContestResult, *, ours: Sequence[float] = (6, 1, 2, 3), peer: Sequence[float]) -> ContestResult:
    """The same contest, whose jobs parted a step of each side into work, rest, hidden and exposed: of job after job it
    takes 0.1 % longer.
    """

    def parts(figures: Sequence[float], number: int) -> StepParts:
        work, rest, hidden, exposed = (figure * (1 + 0.001 * number) for figure in figures)
        whole = work + rest + exposed
        return StepParts(steps=2, step_s=whole, compute_s=work + rest, work_s=work, rest_s=rest, hidden_s=hidden,
                         exposed_s=exposed)  # fmt: skip

    jobs = [
        PeerContest.of(
            job.ours.model_copy(update={"parts": parts(ours, number)}),
            job.peer.model_copy(update={"parts": parts(peer, number)}),
        )
        for number, job in enumerate(contest.jobs)
    ]
    return contest.model_copy(update={"jobs": tuple(jobs)})


def one_device(model: str = "gpt-local-1", *, missing: bool = False, **known: Any) -> PeersResult:
    """Return the contests of the suite of one device. missing: without transformers."""
    names = tuple(ONE_DEVICE)[:2] if missing else tuple(ONE_DEVICE)
    reason = "transformers is not installed here: pip install '.[peers]'." if missing else None
    empirical = Peaks(empirical=1e11, measured=True)
    return contests(names, model=model, ratios=ONE_DEVICE, **({"missing": reason, "peaks": empirical} | known))


def baseline(ratio: float, layout: Layout) -> ContestResult:
    """A contest with Megatron-core in an environment of its own."""
    contest = replace(COMPARISONS["megatron-core"].with_layout(layout, Grid(z=layout.size)), target=None)
    found = held("megatron-core", ratio=ratio, seed=layout.tensor)
    versions = {"versions": {"megatron-core": "0.16.1"}}
    jobs = [PeerContest.of(job.ours, job.peer.model_copy(update=versions)) for job in found.jobs]
    return found.model_copy(update=asked_fields(contest) | {"jobs": tuple(jobs)})


def baselines(*more: ContestResult, job: int = 0) -> PeersResult:
    """Return the contests of the suite of baselines, and these."""
    ratios = {"ddp": 0.93, "fsdp2": 0.8}
    every = contests(tuple(ratios), ratios=ratios, model="gpt-pair", job=job)
    asked = tuple(Asked.model_validate(one.model_dump(include=set(Asked.model_fields))) for one in more)
    own = {"comparisons": (*every.comparisons, *more), "contests": (*every.contests, *asked)}
    return every.model_copy(update={"labels": every.labels | {"study": "baselines"}} | own)


def version_5(result: PeersResult) -> dict[str, Any]:
    """As version 5 had it, whose jobs had a key for each side."""
    old = result.model_dump(mode="json", by_alias=True) | {"version": 5}
    for found in old["comparisons"]:
        found["measured"] = [_version_5(job) for job in found.pop("jobs")]
    return old


def _version_5(job: dict[str, Any]) -> dict[str, Any]:
    sides = {side.pop("name"): side for side in job["sides"]}
    for side in sides.values():
        side["wall_s"] = side.pop("rounds_s")
        del side["kind"], side["over_base"]
    return sides | {"tuning": job["tuning"], "compiled": job["compiled"]}


def version_1(result: PeersResult) -> dict[str, Any]:
    """As the first version of the format had it."""
    old = version_5(result)
    for key in ("status", "reason", "told", "labels", "device", "dtype", "contests", "work", "peaks"):
        old.pop(key, None)
    for found in old["comparisons"]:
        for key in ("paired", "equality", "memory", "missing"):
            del found[key]
        for measured in found["measured"]:
            del measured["tuning"], measured["compiled"]
            for side in measured.values():
                del side["gradient_norms"], side["peak_bytes"]
    return old | {"version": 1}


def save_contests(results: Sequence[PeersResult], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results):
        (folder / f"contests-{number}.json").write_text(result.to_json())
