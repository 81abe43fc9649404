"""Contests with peers as a machine would leave them, made up but consistent: every statistic follows from the times."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sample_results import provenance

from engine.peers.account import told
from engine.peers.compare import comparison
from engine.peers.contest import CONTESTS, TOLERANCES
from engine.peers.ranks import Job
from engine.result.peers import Asked, Comparison, Measured, PeersResult, Side
from engine.result.schema import Memory

RATIOS = {"plain": 1.01, "ddp": 0.98, "fsdp2": 0.87, "fsdp2-reshard": 0.79, "hsdp": 0.93, "tensor-parallel": 1.12}


def held(peer: str, *, ratio: float = 1.0, jobs: int = 3, rounds: int = 6, spread: float = 0.02, step_s: float = 0.4,
         dtype: str = "fp32", seed: int = 0, **changes: Any) -> Comparison:  # fmt: skip
    """One contest on the peer's own grid."""
    noise, contest, tolerance = random.Random(f"{peer}{seed}"), CONTESTS[peer], TOLERANCES[dtype]  # type: ignore[index]

    def side(scale: float, losses: Sequence[float]) -> Side:
        wall = tuple(tuple(step_s * scale * noise.gauss(1.0, spread) for _ in range(2)) for _ in range(rounds))
        return Side(losses=tuple(losses), gradient_norms=(1.8, 0.9, 0.8), wall_s=wall, cpu_s=wall)

    def job() -> Job:
        here, losses = noise.gauss(1.0, spread / 2), (8.31, 8.02, 7.77)
        equal = [loss * (1 + tolerance / 300) for loss in losses]
        memory = Memory(kind="resident", peak_bytes_per_rank=(700 * 2**20,) * contest.grid.size)
        return Job(
            Measured(ours=side(ratio * here, losses), peer=side(1.0, equal)), memory, ("n0",), ("a processor",), None
        )

    found = comparison(contest, [job() for _ in range(jobs)], tolerance, load=0.4)
    return found.model_copy(update=changes)


def contests(names: Sequence[str] = tuple(RATIOS), *, system: str = "local", series: str = "local", job: int = 0,
             device: str = "cpu", dtype: str = "fp32", model: str = "gpt-local-2", failure: str | None = None,
             environment: dict[str, Any] | None = None, **known: Any) -> PeersResult:  # fmt: skip
    """One command with these contests. failure: it failed in the one after them, for that reason."""
    found = [held(name, ratio=RATIOS[name], dtype=dtype, seed=job, **known) for name in names]
    asked = [Asked.model_validate(contest.model_dump(include=set(Asked.model_fields))) for contest in found]
    if failure:
        asked += [Asked(**told(CONTESTS[name])) for name in ("hsdp", "tensor-parallel")]
    return PeersResult(
        status="failed" if failure else "ok",
        reason=failure,
        labels={"study": "peers", "system": system, "partition": "cpu", "series": series},
        device=device,  # type: ignore[arg-type]
        dtype=dtype,
        case={
            "model": {"name": model, "sequence": 128}, "sequences": 8, "threads": 1, "checkpoint_activations": False,
            "warmup": 3, "steps": 2, "overlap": {"oar": True, "ors": True, "oag": True, "cache": "auto", "data": True},
        },
        contests=tuple(asked),
        comparisons=tuple(found),
        provenance=provenance(job, **({"devices": ("AMD EPYC",)} | (environment or {}))),
    )  # fmt: skip


def version_1(result: PeersResult) -> dict[str, Any]:
    """As the first version of the format had it."""
    old = result.model_dump(mode="json", by_alias=True)
    for key in ("status", "reason", "labels", "device", "dtype", "contests"):
        del old[key]
    for found in old["comparisons"]:
        for key in ("rounds_by_job", "paired", "equality", "memory"):
            del found[key]
        for measured in found["measured"]:
            for side in measured.values():
                del side["gradient_norms"]
    return old | {"version": 1}


def save_contests(results: Sequence[PeersResult], folder: Path) -> None:
    """One file a command."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, result in enumerate(results):
        (folder / f"contests-{number}.json").write_text(result.to_json())
