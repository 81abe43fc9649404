"""Results as a machine would leave them, made up but consistent: flop/s follow from time, loss falls, bytes fit."""

import json
import math
import random
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from sample_steps import Step

from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops, model_flops
from engine.overlap.flags import Pace, bucket_bytes
from engine.result.schema import Breakdown, Collective, Iteration, Memory, Model, Provenance, Result, Summary, write
from engine.result.schema.bench import GemmPoint
from engine.result.schema.machine import Interconnect, Transport
from engine.result.schema.step import COMPONENTS, Component, ComponentEnergy, Energy

ALL = "oar,ors,oag,cache=auto,data"
START = datetime(2026, 3, 2, 1, 0, tzinfo=UTC)
FRONTIER = {
    512: ("gpt-5b", "8x1x8x8", 17.2),
    1024: ("gpt-10b", "8x2x8x8", 18.1),
    2048: ("gpt-20b", "8x2x16x8", 18.4),
    4096: ("gpt-40b", "8x4x16x8", 17.9),
    8192: ("gpt-80b", "8x4x32x8", 19.3),
}
LOCAL = {1: ("gpt-local-1", "1x1x1x1", 0.71), 2: ("gpt-local-2", "2x1x1x1", 0.78), 4: ("gpt-local-4", "2x1x2x1", 1.6)}


def provenance(job: int = 0, **changes: Any) -> Provenance:
    """Return the provenance of job number `job`: one job an hour."""
    start = START + timedelta(hours=job)
    known: dict[str, Any] = {
        "git_commit": "3028ec7d0c5e4f11a9b8c7d6e5f4a3b2c1d0e9f8",
        "git_dirty": False,
        "versions": {"python": "3.11.7", "torch": "2.9.0", "par4d": "0.1.0"},
        "hosts": tuple(f"node{n:05d}" for n in range(3)),
        "devices": ("AMD Instinct MI250X",),
        "environment": {"OMP_NUM_THREADS": "1"},
        "launcher": "srun",
        "start": start.isoformat(),
        "end": (start + timedelta(minutes=9)).isoformat(),
    }
    return Provenance(**(known | changes))


def train(
    *,
    ranks: int = 512,
    model: str = "gpt-5b",
    grid: str | None = None,
    time_s: float = 18.0,
    job: int = 0,
    sequences: int = 8192,
    dtype: str = "bf16",
    recompute: bool = True,
    peak: float | None = None,
    name: str | None = None,
    losses: tuple[float, ...] = (),
    failure: str | None = None,
    environment: dict[str, Any] | None = None,
    overlap: str = ALL,
    tuning: dict[str, Any] | None = None,
    version: Literal[1, 2, 3, 4, 5] = 5,
    step: Step | None = None,
    empirical: float | None = None,
    energy: Energy | None = None,
    **labels: str,
) -> Result:
    """One training run of ten iterations, the first two a warm-up. failure: it failed, for that reason.

    step: what ran when in an iteration, else it is told by compute and collectives only. version 1: without overlap.
    empirical: what the ranks reached at once. energy: as energy() makes it.
    """
    grid = grid or (f"8x1x8x{ranks // 64}" if ranks % 64 == 0 else f"{ranks}x1x1x1")
    noise = random.Random(f"{ranks}{grid}{job}")
    labels = {"study": "weak_scaling", "system": "frontier", "partition": "gpu"} | labels
    config = lookup(model)
    shape = Model(
        name=name or config.name,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        vocabulary=config.vocabulary,
        sequence=config.sequence,
        parameters=config.parameters,
        parameters_per_rank=config.parameters // ranks,
    )
    options = {
        "model": {"name": shape.name},
        "batch": {"sequences": sequences, "micro": None},
        "precision": dtype,
        "checkpoint_activations": recompute,
        "iterations": 10,
        "warmup": 2,
        "out": f"job{job}/result.json",
    }
    if version > 1:
        pace = asdict(Pace()) | {"bucket_bytes": bucket_bytes(Grid.parse(grid).data)}
        options |= {"overlap": overlap, **pace, **(tuning or {})}
    if version > 2:
        options |= {"device": "cpu" if labels["partition"] == "cpu" else "cuda", "threads": 1}
    common: dict[str, Any] = {
        "version": version,
        "kind": "train",
        "labels": labels,
        "config": options,
        "ranks": ranks,
        "grid": grid,
        "model": shape,
        "dtype": dtype,
        "provenance": provenance(job, **(environment or {})),
    }
    if failure:
        return Result(status="failed", reason=failure, **common)
    curve = losses or tuple(math.log(config.vocabulary) - 0.25 * step**0.7 for step in range(10))
    iterations = tuple(
        Iteration(
            index=index,
            time_s=time_s * noise.uniform(0.98, 1.02),
            loss=loss,
            grad_norm=1.0 / (index + 1),
            learning_rate=3e-4,
            warmup=index < 2,
        )
        for index, loss in enumerate(curve)
    )
    hardware = hardware_flops(config, sequences, recompute=recompute) / time_s
    useful = model_flops(config, sequences) / time_s
    summary = Summary(
        counted_iterations=len(curve) - 2,
        time_per_iteration_s=time_s,
        median_time_s=time_s,
        tokens_per_s=sequences * config.sequence / time_s,
        hardware_flops_per_s=hardware,
        model_flops_per_s=useful,
        peak_flops_per_device=peak,
        hfu=hardware / ranks / peak if peak else None,
        mfu=useful / ranks / peak if peak else None,
        empirical_peak_flops_per_device=empirical,
        empirical_peak_measured=empirical is not None,
        of_empirical=hardware / ranks / empirical if empirical else None,
    )
    share = min(0.6, 0.06 * math.log2(max(ranks, 2)))
    sizes = dict(zip("xyz", map(int, grid.split("x")), strict=False)) | {"data": int(grid.split("x")[3])}
    collectives = tuple(
        Collective(
            kind=kind,
            axis=axis,
            calls=calls * config.layers,
            bytes=calls * 2.0 * config.parameters / ranks,
            time_s=time_s * share / 4,
        )
        for kind, axis, calls in (
            ("all_reduce", "x", 4),
            ("all_reduce", "y", 4),
            ("all_gather", "z", 8),
            ("reduce_scatter", "z", 4),
            ("all_reduce", "data", 1),
        )
        if sizes[axis] > 1
    )
    told = Breakdown(compute_s=time_s * (1 - share), collectives_s=time_s * share)
    peaks = tuple(int(2**30 * noise.uniform(38, 44)) for _ in range(min(ranks, 64)))
    return Result(
        status="ok",
        iterations=iterations,
        summary=summary,
        collectives=collectives,
        breakdown=step.breakdown(time_s) if step else told,
        memory=Memory(kind="allocated", peak_bytes_per_rank=peaks, **(step.memory if step else {})),
        timeline=step.timeline(time_s) if step and step.drawn else None,
        energy=energy,
        **common,
    )


def energy(
    watts: dict[Component, float],
    *,
    time_s: float = 18.0,
    tokens: float = 2.0**24,
    why: str = "no counter",
    **told: Any,
) -> Energy:
    """Energy of eight iterations: watts of these components, all together; why the others are unmeasured."""
    counted: dict[str, Any] = {"counters": 4, "machines": 2, "scope": "all of it", "source": "pm_counters"} | told
    parts = []
    for component in COMPONENTS:
        joules = watts.get(component, 0.0) * time_s
        measured = {"joules": 8 * joules, "joules_per_iteration": joules, "tokens_per_joule": tokens / (joules or 1)}
        known = measured | counted if joules else {"unmeasured": why}
        parts.append(ComponentEnergy(component=component, **known))
    return Energy(seconds=8 * time_s, iterations=8, components=tuple(parts))


def transport(name: str | None, backend: Literal["gloo", "nccl"] = "nccl", **told: Any) -> Transport:
    """Return the transport that all ranks report."""
    return Transport(backend=backend, networks=(Interconnect(name=name, ranks=4, host="n0", **told),))


def strong(
    system: str = "frontier",
    model: str = "gpt-80b",
    first: int = 128,
    points: int = 7,
    time_s: float = 1120.0,
    **changes: Any,
) -> list[Result]:
    """A strong-scaling series whose time falls a little less than its devices grow, two jobs a point."""
    known = {"token_budget": "2e+12", "series": "axonn-sc24", "study": "strong_scaling"} | changes
    return [
        train(
            ranks=ranks,
            model=model,
            grid=f"8x1x8x{ranks // 64}",
            system=system,
            job=30 * power + job,
            time_s=time_s * (first / ranks) ** 0.98 * (1 + 0.02 * job),
            **known,
        )
        for power in range(points)
        for ranks in [first * 2**power]
        for job in range(2)
    ]


def gemm(
    *,
    system: str = "frontier",
    partition: str = "gpu",
    dtype: str = "bf16",
    best: float = 122e12,
    job: int = 0,
    ranks: int = 1,
    threads: int = 1,
    **changes: Any,
) -> Result:
    """A benchmark of matrix products that rises to `best` at 32768 and skips 65536, on so many ranks at once."""
    config = {"sizes": "1024..65536", "device": "cpu" if partition == "cpu" else "cuda", "threads": threads} | changes
    points = [
        GemmPoint(size=2**n, flops_per_s=rate, median_time_s=2 * 8.0**n / rate, repeats=20)
        for n in range(10, 16)
        for rate in [best * (1 - 0.55 * 0.5 ** (n - 10)) / (1 - 0.55 * 0.5**5) * (1 + 0.004 * (job % 3))]
    ]
    points.append(GemmPoint(size=65536, skipped="needs 24 GiB, 16 GiB are free"))
    in_turns = [(mode, best * of) for mode, of in (("NN", 0.97), ("NT", 0.95), ("TN", 0.36))]
    modes = [GemmPoint(size=16384, mode=mode, flops_per_s=rate, repeats=9) for mode, rate in in_turns]  # type: ignore[arg-type]
    return Result(
        kind="gemm",
        status="ok",
        labels={"study": "peak", "system": system, "partition": partition},
        config=config,
        ranks=ranks,
        dtype=dtype,
        gemm=tuple(points),
        gemm_modes=tuple(modes),
        best_flops_per_s=max(point.flops_per_s or 0 for point in points),
        provenance=provenance(job),
    )


def series(system: str, jobs: int = 3) -> list[Result]:
    """A weak-scaling series on frontier or local, so many jobs a point."""
    points, dtype = (FRONTIER, "bf16") if system == "frontier" else (LOCAL, "fp32")
    partition = "gpu" if system == "frontier" else "cpu"
    sequences = 8192 if system == "frontier" else 8
    noise = random.Random(system)
    return [
        train(
            ranks=ranks,
            model=model,
            grid=grid,
            time_s=time_s * noise.uniform(0.97, 1.05),
            job=12 * (ranks % 97) + job,
            sequences=sequences,
            dtype=dtype,
            recompute=system == "frontier",
            system=system,
            partition=partition,
        )
        for ranks, (model, grid, time_s) in points.items()
        for job in range(jobs)
    ]


def validation(drift: float = 1e-6) -> list[Result]:
    """A serial run and a 4D one whose losses differ by rounding."""
    serial = tuple(math.log(512) - 0.9 * math.log1p(step / 4) for step in range(60))
    parallel = tuple(loss + drift * math.sin(3.0 * step) * step / 60 for step, loss in enumerate(serial))
    common: dict[str, Any] = {
        "model": "gpt-test",
        "dtype": "fp32",
        "sequences": 16,
        "study": "validation",
        "system": "local",
        "partition": "cpu",
        "time_s": 0.05,
        "recompute": False,
    }
    return [
        train(ranks=1, grid="1x1x1x1", losses=serial, variant="serial", job=1, **common),
        train(ranks=16, grid="2x2x2x2", losses=parallel, variant="4d", job=2, **common),
    ]


def save(results: list[Result], folder: Path) -> list[Path]:
    paths = [folder / f"{number:05d}.json" for number in range(len(results))]
    for result, path in zip(results, paths, strict=True):
        write(result, path)
    return paths


def run_report(
    records: list[Any], *, result: str = "pass", fail_reason: str | None = None, fail_phase: str | None = "sanity"
) -> dict[str, Any]:
    """A run report as ReFrame 4.10 writes it, one test case a record."""
    cases = [
        {
            "name": f"weak_scaling_{n}",
            "display_name": f"weak_scaling %n={n}",
            "system": "frontier",
            "partition": "gpu",
            "environ": "engine",
            "result": result,
            "fail_reason": fail_reason,
            "fail_phase": fail_phase if result == "fail" else None,
            "uuid": f"abc:0:{n}",
            "record": record,
            "perfvalues": {},
            "job_nodelist": [],
        }
        for n, record in enumerate(records)
    ]
    session = {"data_version": "4.2", "hostname": "login1", "uuid": "abc", "num_cases": len(cases)}
    return {"session_info": session, "runs": [{"run_index": 0, "testcases": cases}], "restored_cases": []}


def as_record(result: Result) -> dict[str, Any]:
    """The result as the JSON object that a suite keeps."""
    return json.loads(result.to_json())
