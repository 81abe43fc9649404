"""The tuner's tables as a machine would leave them, made up: rates by mode, choices by the tuner's own rule."""

import random
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from sample_contests import held
from sample_results import provenance

from engine.batch import Batch
from engine.grid import Grid
from engine.layers.matmul import PLAIN, Kernels
from engine.models.catalogue import lookup
from engine.peers.registry import OWN_COMPARISON
from engine.result import metrics
from engine.result.schema import Result
from engine.result.schema.peers import Asked, PeersResult
from engine.result.schema.tuning import ModeTime, TunedShape, Tuning
from engine.training.failure import recorded
from engine.training_record import Training
from engine.tuning.shapes import Products, Shape, products
from engine.tuning.timing import GemmVariant, gemm_variants
from engine.tuning.tune import choose, fastest, seconds_of, uses

MI250X = {"NN": 105e12, "NT": 104e12, "TN": 11.5e12}
"""Flop/s by mode: TN at 6 % of the advertised peak, as axonn-sc24 V-C has it."""
EVEN = dict.fromkeys(("NN", "NT", "TN"), 50e9)
COPIED_PER_S = 4e11
GPU = torch.device("cuda")


def timed(shape: Shape, way: GemmVariant, rates: Mapping[str, float], noise: random.Random) -> list[float]:
    flops = 2 * shape.m * shape.n * shape.k
    return [(flops / rates[way.mode] + way.copied(shape) / COPIED_PER_S) * noise.gauss(1.0, 0.003) for _ in range(7)]


def tuned(one: Products, dtype: str, rates: Mapping[str, float], noise: random.Random) -> tuple[TunedShape, ...]:
    """A shape as it was chosen for, and in the second timing."""
    kernels: Kernels | None = None
    best: Kernels | None = None
    found = []
    for _ in range(2):
        ways = gemm_variants(torch.bfloat16, GPU, movable=one.movable)
        times = {way: timed(one.shape, way, rates, noise) for way in ways}
        kernels = kernels or choose(times, one.forwards)
        best = best or fastest(times, one.forwards)
        assert best is not None
        parts = {"own_s": PLAIN, "chosen_s": kernels, "best_s": best}
        rows = tuple(
            ModeTime(
                role=way.role.value,
                column_major=way.column_major,
                mode=way.mode.value,
                own=way.own,
                median_s=median(of),
                low_s=min(of),
                high_s=max(of),
                rounds=len(of),
                chosen=uses(way, kernels),
                fastest=uses(way, best),
                by_round_s=tuple(of),
                flops_per_s=metrics.product_rate(one.shape.m, one.shape.n, one.shape.k, median(of)),
            )
            for way, of in times.items()
        )
        found.append(
            TunedShape(
                m=one.shape.m, n=one.shape.n, k=one.shape.k, dtype=dtype, layers=len(one.layers), layer=one.layers[0],
                forwards=one.forwards, movable=one.movable, column_major=kernels.column_major, forward=kernels.forward,
                input_gradient=kernels.input_gradient, weight_gradient=kernels.weight_gradient, times=rows,
                **{name: median(seconds_of(times, of, one.forwards) or [0.0]) for name, of in parts.items()},
            )
        )  # fmt: skip
    return tuple(found)


def tuning(
    *, system: str = "frontier", partition: str = "gpu", model: str = "gpt-320b", grid: str = "8x1x32x128",
    dtype: str = "bf16", rates: Mapping[str, float] = MI250X, job: int = 0, twice: bool = True, ranks: int = 1,
    failure: str | None = None, name: str | None = None, **labels: str,
) -> Result:  # fmt: skip
    """A result of `bench matmul`. name: of the network and its layers, instead of their own."""
    network, split, noise = lookup(model), Grid.parse(grid), random.Random(job)
    training = Training(network, Batch(2 * split.batch_split), precision=dtype, checkpoint_every=1)  # type: ignore[arg-type]
    found = [] if failure else products(training, split, torch.device("cpu"))
    shapes = [tuned(one, dtype, rates, noise) for one in found]
    first, again = tuple(zip(*shapes, strict=True)) or ((), ())
    if name:
        again = tuple(shape.model_copy(update={"layer": name}) for shape in again)
    told = recorded(training, split)
    return Result(
        kind="matmul",
        status="failed" if failure else "ok",
        reason=failure,
        labels={"study": "kernel_tuning", "system": system, "partition": partition, "series": "axonn-sc24"} | labels,
        config={
            "batch": {"micro": 2},
            "checkpoint_activations": True,
            "threads": 1,
            "device": "cpu" if partition == "cpu" else "cuda",
        },
        ranks=ranks,
        grid=grid,
        model=told.model_copy(update={"name": name}) if name else told,
        dtype=dtype,
        tuning=Tuning(time_s=4.2, timed=len(first), shapes=first, again=again if twice else ()),
        provenance=provenance(job),
    )


def untuned(result: Result, *, ratio: float = 0.8, job: int = 0, jobs: int = 2) -> PeersResult:
    """The contest of a step with that tuning against one without."""
    found = held(OWN_COMPARISON.name, ratio=ratio, jobs=jobs, seed=job, spread=0.004)
    measured = tuple(one.model_copy(update={"tuning": result.tuning}) for one in found.jobs)
    found = found.model_copy(update={"jobs": measured})
    assert result.model is not None
    known: dict[str, Any] = {"model": {"name": f"{result.model.name}-l2", "sequence": 2048}, "sequences": 2}
    return PeersResult(
        labels=result.labels,
        device="cuda",
        dtype=result.dtype,
        case=known,
        comparisons=(found,),
        contests=(Asked.model_validate(found.model_dump(include=set(Asked.model_fields))),),
        provenance=provenance(job),
    )
