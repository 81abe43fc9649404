"""Results of `bench memory` and `bench latency`, without a device."""

from sample_results import provenance

from engine.result.device import LaunchTime, Stream, StreamKernel
from engine.result.schema import Result

ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}


def _config(partition: str, threads: int) -> dict[str, object]:
    return {"device": "cpu" if partition == "cpu" else "cuda", "threads": threads}


def memory(
    *, system: str = "frontier", partition: str = "gpu", triad: float = 1.31e12, job: int = 0, ranks: int = 1,
    threads: int = 1, array_bytes: int = 2**30, cache_bytes: int | None = 8 * 2**20,
) -> Result:  # fmt: skip
    """Four kernels, of which the triad reaches so many bytes/s."""
    kernels = [
        StreamKernel(name=name, arrays=count, best_bytes_per_s=best, median_bytes_per_s=0.97 * best)  # type: ignore[arg-type]
        for name, count in ARRAYS.items()
        for best in [triad * (1.0 if count == 3 else 1.04) * (1 + 0.01 * (job % 3))]
    ]
    stream = Stream(array_bytes=array_bytes, cache_bytes=cache_bytes, repeats=10, kernels=tuple(kernels))
    return Result(
        kind="memory", status="ok", labels={"study": "peak", "system": system, "partition": partition},
        config=_config(partition, threads), ranks=ranks, dtype="fp64", stream=stream, provenance=provenance(job),
    )  # fmt: skip


def latency(
    *, system: str = "frontier", partition: str = "gpu", dispatch: float = 4.2e-6, job: int = 0, ranks: int = 1,
    threads: int = 1,
) -> Result:  # fmt: skip
    """Every way that the device has; a processor has one."""
    ways = [("dispatch", 100, dispatch), ("completion", 1, 5 * dispatch), ("graph", 100, 0.4 * dispatch)]
    found = [
        LaunchTime(name=name, operators=count, samples=1000, median_s=time, low_s=0.9 * time, high_s=1.6 * time)  # type: ignore[arg-type]
        for name, count, time in ways[: 1 if partition == "cpu" else 3]
    ]
    return Result(
        kind="latency", status="ok", labels={"study": "peak", "system": system, "partition": partition},
        config=_config(partition, threads), ranks=ranks, dtype="fp32", launches=tuple(found),
        provenance=provenance(job),
    )  # fmt: skip
