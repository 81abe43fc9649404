"""Memory bandwidth and launch latency: what is counted, what is left out with a word, and one valid result."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import torch
from real_ranks import run_processes

from engine.bench import latency as latency_bench
from engine.bench import memory as memory_bench
from engine.bench import world as world_bench
from engine.bench.frame import run
from engine.bench.latency import Latency, launch_time
from engine.bench.memory import KERNELS, SCALAR, Arrays, MemoryBandwidth, of_processors
from engine.bench.world import Unmeasurable, World
from engine.comm.funnel import Comm
from engine.comm.launch import from_environment
from engine.errors import UsageError
from engine.grid import Grid
from engine.reporter import UNFINISHED
from engine.result import schema
from engine.result.schema import Result
from engine.result.schema.bench import LaunchTime, Stream
from engine.timeouts import Timeouts

CPU = torch.device("cpu")
ALONE = from_environment({})
MB = 1 << 20


def world() -> World:
    return World(Comm(Grid()))


def bandwidth(out: Path, device: str = "cpu", **changes: object) -> Result:
    options = {"array_bytes": 1e6, "repeats": 4, "time_budget_s": 60.0} | changes
    benchmark = MemoryBandwidth(**options)  # type: ignore[arg-type]
    return run(benchmark, ALONE, device=device, timeouts=Timeouts(), labels={"study": "peak"}, out=out)


def launching(out: Path, samples: int) -> Result:
    return run(Latency(samples), ALONE, device="cpu", timeouts=Timeouts(), labels={"study": "peak"}, out=out)


def test_the_kernels_are_streams_and_leave_the_numbers_as_they_were() -> None:
    arrays = Arrays(MB, CPU)
    first = arrays._a.clone()
    assert arrays.error() > 1e-3, "before a round the others hold nothing yet"
    for kernel in KERNELS:
        arrays.rate(kernel, 0.0)
    assert torch.allclose(arrays._a, first, rtol=1e-14)
    assert torch.allclose(arrays._b, SCALAR * first, rtol=1e-14)
    assert torch.allclose(arrays._c, first + SCALAR * first, rtol=1e-14)
    for kernel in 30 * KERNELS:
        arrays.rate(kernel, 0.0)
    assert arrays.error() < 1e-13


def test_bytes_are_counted_as_stream_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays, ticks = Arrays(MB, CPU), iter(range(1000))
    monkeypatch.setattr("engine.bench.memory.time.perf_counter", lambda: float(next(ticks)))
    rates = {kernel.name: arrays.rate(kernel, 0.0) for kernel in KERNELS}  # one call between two ticks of a second
    assert rates == pytest.approx({"copy": 2 * MB, "scale": 2 * MB, "add": 3 * MB, "triad": 3 * MB})
    calls = []
    monkeypatch.setattr(arrays, "_timed", lambda call: calls.append(call) or 0.0)
    assert arrays.rate(KERNELS[0], 3.0) == pytest.approx(2 * MB)
    assert len(calls) == 3


def test_the_result_holds_the_best_and_the_median_of_every_kernel(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "result.json"
    written = bandwidth(out)
    assert schema.read(out) == written
    assert (written.kind, written.status, written.dtype, written.ranks) == ("memory", "ok", "fp64", 1)
    assert written.labels == {"study": "peak"}
    assert written.config["threads"] >= 1
    assert written.provenance.devices
    assert written.stream
    assert written.stream.repeats == 4
    assert written.stream.array_bytes == 1_000_000
    assert [(kernel.name, kernel.arrays) for kernel in written.stream.kernels] == [
        ("copy", 2),
        ("scale", 2),
        ("add", 3),
        ("triad", 3),
    ]
    assert all(kernel.best_bytes_per_s >= kernel.median_bytes_per_s > 0 for kernel in written.stream.kernels)


def test_best_and_median_are_those_of_the_repeats_without_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    real = Arrays.rate

    def kept(self: Arrays, kernel: object, window_s: float) -> float:
        seen.append(real(self, kernel, window_s))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(Arrays, "rate", kept)
    found = bandwidth(tmp_path / "result.json").stream
    assert found
    assert len(seen) == 4 * 5
    triads = seen[3::4][1:]
    assert found.kernels[3].best_bytes_per_s == pytest.approx(max(triads))
    assert found.kernels[3].median_bytes_per_s == pytest.approx(median(triads))


def test_wrong_numbers_are_a_failure_and_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench.memory.torch.mul", lambda a, b, out: out.fill_(math.nan))
    written = bandwidth(tmp_path / "result.json")
    assert written.status == "failed"
    assert written.stream is None
    assert written.reason
    assert "off by inf" in written.reason


def test_arrays_beyond_the_memory_are_refused_without_touching_it(tmp_path: Path) -> None:
    written = bandwidth(tmp_path / "result.json", array_bytes=1e14)
    assert written.status == "failed"
    assert written.reason
    assert "1e+05 GB need 3e+05 GB" in written.reason
    assert schema.read(tmp_path / "result.json") == written


def test_without_a_size_arrays_are_four_times_the_cache_or_what_the_memory_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_bench, "USUAL_ARRAY", {"cpu": MB})
    for cache, free, expected in ((MB, 10**9, 4 * MB), (1000, 10**9, MB), (None, 10**9, MB), (MB, 6 * MB, MB)):
        monkeypatch.setattr(memory_bench, "last_level_bytes", lambda device, cache=cache: cache)
        monkeypatch.setattr(world_bench, "free_bytes", lambda device, free=free: free)
        found = MemoryBandwidth(None, 3, 60.0).stream(world())
        assert (found.array_bytes, found.cache_bytes) == (expected, cache)


def test_a_short_time_budget_cuts_the_repeats_but_leaves_three(tmp_path: Path) -> None:
    found = bandwidth(tmp_path / "result.json", repeats=1000, time_budget_s=1e-6).stream
    assert found
    assert found.repeats == 3


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"array_bytes": 12.0}, "but 12 were given"),
        ({"array_bytes": math.nan}, "but nan"),
        ({"repeats": 2}, "but 2 was given"),
        ({"time_budget_s": 0.0}, "but 0 was given"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path: Path, bad: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        bandwidth(tmp_path / "result.json", **bad)
    assert said in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_the_last_caches_are_counted_once_each(tmp_path: Path) -> None:
    def cache(cpu: int, index: int, level: str, size: str, shared: str) -> None:
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(text + "\n")

    for cpu in range(4):
        cache(cpu, 0, "1", "32K", str(cpu))
        cache(cpu, 1, "3", "16384K", "0-1" if cpu < 2 else "2-3")
    cache(5, 0, "?", "", "5")
    assert of_processors(frozenset(range(4)), tmp_path) == 32 * MB
    assert of_processors(frozenset({0}), tmp_path) == 16 * MB
    assert of_processors(frozenset({5, 9}), tmp_path) is None


def test_a_launch_is_the_median_time_of_an_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = iter([9.0] * 2 + [float(n) for n in range(1, 21)])  # two warm up
    clock = [0.0, False]

    def tick() -> float:
        if clock[1]:
            clock[0] += next(lengths)
        clock[1] = not clock[1]
        return clock[0]

    monkeypatch.setattr("engine.bench.latency.time.perf_counter", tick)
    found = launch_time("dispatch", CPU, 20)
    assert (found.name, found.operators, found.samples) == ("dispatch", 100, 20)
    assert found.median_s == pytest.approx(10.5 / 100)
    assert found.low_s == pytest.approx(1.05 / 100)
    assert found.high_s == pytest.approx(19.95 / 100)


def test_a_processor_has_the_dispatch_of_an_operator_only(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    written = launching(out, 50)
    assert schema.read(out) == written
    assert (written.kind, written.status) == ("latency", "ok")
    (found,) = written.launches
    assert found.name == "dispatch"
    assert 0 < found.low_s <= found.median_s <= found.high_s


def test_launches_that_fail_keep_those_that_were_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(name: str, device: torch.device, samples: int) -> LaunchTime:
        if name == "graph":
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        return launch_time("dispatch", device, samples)

    monkeypatch.setattr(latency_bench, "WAYS", {"cpu": ("dispatch", "graph")})
    monkeypatch.setattr(latency_bench, "launch_time", failing)
    written = launching(tmp_path / "result.json", 20)
    assert written.status == "failed"
    assert str(written.reason).endswith("when stream is capturing.")
    assert len(written.launches) == 1


def test_a_benchmark_that_is_killed_has_left_a_failed_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(name: str, device: torch.device, samples: int) -> LaunchTime:
        raise KeyboardInterrupt

    monkeypatch.setattr(latency_bench, "launch_time", killed)
    with pytest.raises(KeyboardInterrupt):
        launching(tmp_path / "result.json", 20)
    left = schema.read(tmp_path / "result.json")
    assert (left.kind, left.status, left.diagnosis) == ("latency", "failed", "nothing")
    assert left.reason == UNFINISHED


@pytest.mark.parametrize("samples", [0, 19, 10**9])
def test_samples_that_make_no_percentile_are_refused(samples: int, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="from 20 to"):
        launching(tmp_path / "result.json", samples)


def measured_at_once(comm: Comm) -> tuple[Stream, list[LaunchTime], int]:
    ranks = World(comm)
    return MemoryBandwidth(MB, 3, 60.0).stream(ranks), list(Latency(20).launches(ranks)), ranks.on_machine


def too_large_on_one(comm: Comm) -> str:
    ranks = World(comm)
    world_bench.free_bytes = lambda device: (8 if comm.rank else 200) * MB  # type: ignore[assignment]
    try:
        MemoryBandwidth(10 * MB, 3, 60.0).stream(ranks)
    except Unmeasurable as error:
        return str(error)
    return ""


def test_ranks_measure_at_once_and_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run_processes(Grid(2), measured_at_once)
    assert first == second
    assert first[2] == 2


def test_what_one_rank_cant_hold_no_rank_measures() -> None:
    first, second = run_processes(Grid(1, 1, 1, 2), too_large_on_one)
    assert "another rank" in first
    assert "0.0105 GB need 0.0315 GB" in second


def test_a_problem_of_no_rank_is_none() -> None:
    alone: Callable[[str | None], str | None] = world().obstacle
    assert alone(None) is None
    assert alone("is too large") == "is too large"
