"""Results of `bench memory`, `latency`, `flops`, `collectives` and `p2p`, without a device."""

from itertools import combinations

from sample_results import provenance

from engine.batch import Batch
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.result.schema import Result
from engine.result.schema.bench import (
    Broadcast,
    CollectiveTime,
    CountedStep,
    FittedLink,
    LaunchTime,
    Links,
    Rings,
    StreamBandwidth,
    StreamKernel,
    Transfer,
)
from engine.training.failure import recorded
from engine.training_record import Training

ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}


def _config(partition: str, threads: int) -> dict[str, object]:
    return {"device": "cpu" if partition == "cpu" else "cuda", "threads": threads}


def memory(
    *,
    system: str = "frontier",
    partition: str = "gpu",
    triad: float = 1.31e12,
    job: int = 0,
    ranks: int = 1,
    threads: int = 1,
    array_bytes: int = 2**30,
    cache_bytes: int | None = 8 * 2**20,
) -> Result:
    """Four kernels, of which the triad reaches so many bytes/s."""
    kernels = [
        StreamKernel(name=name, arrays=count, best_bytes_per_s=best, median_bytes_per_s=0.97 * best)  # type: ignore[arg-type]
        for name, count in ARRAYS.items()
        for best in [triad * (1.0 if count == 3 else 1.04) * (1 + 0.01 * (job % 3))]
    ]
    stream = StreamBandwidth(array_bytes=array_bytes, cache_bytes=cache_bytes, repeats=10, kernels=tuple(kernels))
    return Result(
        kind="memory",
        status="ok",
        labels={"study": "peak", "system": system, "partition": partition},
        config=_config(partition, threads),
        ranks=ranks,
        dtype="fp64",
        stream=stream,
        provenance=provenance(job),
    )


def latency(
    *,
    system: str = "frontier",
    partition: str = "gpu",
    dispatch: float = 4.2e-6,
    job: int = 0,
    ranks: int = 1,
    threads: int = 1,
) -> Result:
    """Every way that the device has; a processor has one."""
    ways = [("dispatch", 100, dispatch), ("completion", 1, 5 * dispatch), ("graph", 100, 0.4 * dispatch)]
    found = [
        LaunchTime(name=name, operators=count, samples=1000, median_s=time, low_s=0.9 * time, high_s=1.6 * time)  # type: ignore[arg-type]
        for name, count, time in ways[: 1 if partition == "cpu" else 3]
    ]
    return Result(
        kind="latency",
        status="ok",
        labels={"study": "peak", "system": system, "partition": partition},
        config=_config(partition, threads),
        ranks=ranks,
        dtype="fp32",
        launches=tuple(found),
        provenance=provenance(job),
    )


def counted(*, system: str = "local", off: float = 1.0, job: int = 0, model: str = "gpt-test") -> Result:
    """Two steps, of which the formula says so many times as much as was counted."""
    steps = {"nothing": 26_738_688, "blocks": 33_554_432}
    shape = recorded(Training(lookup(model), Batch(1)), Grid())
    return Result(
        kind="flops",
        status="ok",
        labels={"study": "peak", "system": system, "partition": "cpu"},
        config=_config("cpu", 1) | {"batch": {"micro": 1}},
        ranks=1,
        dtype="fp32",
        grid="1x1x1x1",
        model=shape,
        counted_flops=tuple(
            CountedStep(recomputed=name, counted=flops, formula=round(off * flops))  # type: ignore[arg-type]
            for name, flops in steps.items()
        ),
        provenance=provenance(job),
    )


def _rings(apart: int, ranks: int, groups: int, nodes: int, rate: float, size: int) -> Rings:
    """The all-reduce is a tenth faster than the other two. A quarter of the size comes after it, at half the rate."""
    times = [
        CollectiveTime(
            kind=kind,
            input_bytes=length,
            moved_bytes=length,
            samples=7,
            calls=1,
            median_s=length / own,
            low_s=0.9 * length / own,
            high_s=1.2 * length / own,
            bytes_per_s=own,
        )
        for length, share in ((size, 1.0), (size // 4, 0.5))
        for kind, faster in (("all_gather", 1.0), ("reduce_scatter", 1.0), ("all_reduce", 1.1))
        for own in [rate * share * faster]
    ]
    return Rings(apart=apart, ranks=ranks, groups=groups, nodes=nodes, times=tuple(times), bytes_per_s=rate)


def links(
    *,
    system: str = "frontier",
    partition: str = "gpu",
    alone: float = 21e9,
    nodes: int = 4,
    job: int = 0,
    message_bytes: int = 10**9,
) -> Result:
    """Two ranks a node on so many nodes, of which one alone reaches so many bytes/s; of one node nothing is between."""
    alone *= 1 + 0.02 * job
    within = (_rings(1, 2, nodes, 1, 5 * alone, message_bytes),)
    between = {
        "alone": (_rings(2, nodes, 1, nodes, alone, message_bytes),),
        "shared": (
            _rings(1, 2 * nodes, 1, nodes, 0.9 * alone, message_bytes),
            _rings(2, nodes, 2, nodes, 0.6 * alone, message_bytes),
        ),
        "fitted": FittedLink(bytes_per_s=1.1 * alone, step_s=2e-5, half_bytes=3e5),
    }
    found = Links(
        nodes=nodes, devices_per_node=2, message_bytes=message_bytes, within=within, **(between if nodes > 1 else {})
    )
    return Result(
        kind="collectives",
        status="ok",
        labels={"study": "bandwidth", "system": system, "partition": partition},
        config=_config(partition, 1),
        ranks=2 * nodes,
        dtype="fp32",
        links=found,
        provenance=provenance(job),
    )


def broadcasts(*, system: str = "frontier", near: float = 184e9, far: float = 15e9, job: int = 0) -> Result:
    """Four ranks of a node, each two of which have a faster link (colossal-ai 5.2, System II)."""
    groups = [*combinations(range(4), 2), tuple(range(4))]
    found = tuple(
        Broadcast(
            ranks=group,
            bytes_per_s=near if group in ((0, 1), (2, 3)) else far,
            samples=7,
            calls=1,
            median_s=125e6 / 15e9,
            low_s=120e6 / 15e9,
            high_s=130e6 / 15e9,
        )
        for group in groups
    )
    return links(system=system, nodes=1, job=job).model_copy(
        update={"ranks": 4, "links": Links(nodes=1, devices_per_node=4, message_bytes=125_000_000, broadcasts=found)}
    )


def transfers(*, system: str = "frontier", partition: str = "cpu", message: float = 2e-5, job: int = 0) -> Result:
    """Two nodes of two ranks. A message of 1 KiB takes gloo so long within a node, and half of that other back ends."""
    found = [
        Transfer(
            operation=operation,
            backend=backend,
            nodes=nodes,
            ranks=ranks,
            num_bytes=size,
            samples=7,
            calls=100,
            median_s=time,
            low_s=0.9 * time,
            high_s=1.2 * time,
            average_s=time,
        )
        for size in (1 << 10, 1 << 14, 1 << 18)
        for nodes in (1, 2)
        for operation, ranks in (("message", 2), ("all_reduce", 2 * nodes))
        for backend in ("gloo", "memory", "mpi")[::nodes]
        for time in [message * (1 + job) * (size / 1024) ** 0.5 * nodes * ranks / (2 if backend == "gloo" else 4)]
    ]
    return Result(
        kind="p2p",
        status="ok",
        labels={"study": "peak", "system": system, "partition": partition},
        config=_config(partition, 1),
        ranks=4,
        dtype="fp32",
        transfers=tuple(found),
        provenance=provenance(job),
    )
