"""Benchmarks of one device: products, memory and launches, what is left out with a word, and one valid result."""

import math
import time
from pathlib import Path
from statistics import median

import pytest
import torch
from real_ranks import run_processes

from engine.bench import latency as latency_bench
from engine.bench import memory as memory_bench
from engine.bench import world as world_bench
from engine.bench.frame import Benchmark, run
from engine.bench.gemm import Gemm, parse_sizes
from engine.bench.latency import Latency, launch_time
from engine.bench.memory import KERNELS, SCALAR, Arrays, MemoryBandwidth, of_processors
from engine.bench.world import Unmeasurable, World
from engine.comm.funnel import Comm
from engine.comm.launch import from_environment
from engine.errors import UsageError
from engine.grid import Grid
from engine.measure.gemm import GemmTimer
from engine.measure.memory import free_bytes
from engine.reporter import UNFINISHED
from engine.result import schema
from engine.result.schema import Result
from engine.result.schema.bench import GemmPoint, LaunchTime, StreamBandwidth
from engine.timeouts import Timeouts

CPU = torch.device("cpu")
MB = 1 << 20


def world() -> World:
    return World(Comm(Grid()))


def bench(benchmark: Benchmark, out: Path, device: str = "cpu") -> Result:
    alone, labels = from_environment({}), {"study": "peak"}
    return run(benchmark, alone, device=device, timeouts=Timeouts(), labels=labels, out=out / "result.json")


def gemm(sizes: str, dtype: str = "fp32", budget_s: float = 20.0) -> Gemm:
    return Gemm(dtype, parse_sizes(sizes), budget_s)


def stream(array_bytes: float = 1e6, repeats: int = 4, budget_s: float = 60.0) -> MemoryBandwidth:
    return MemoryBandwidth(array_bytes, repeats, budget_s)


@pytest.mark.parametrize(
    ("asked", "device", "said"),
    [
        (gemm("8", dtype="fp8"), "cpu", "fp8"),
        (gemm("8", dtype="tf32"), "cpu", "tf32"),
        (gemm("8"), "tpu", "tpu"),
        (gemm("8", budget_s=0.0), "cpu", "but 0 was given"),
        (gemm("8", budget_s=math.nan), "cpu", "but nan"),
        (stream(12.0), "cpu", "but 12 were given"),
        (stream(math.nan), "cpu", "but nan"),
        (stream(repeats=2), "cpu", "but 2 was given"),
        (stream(budget_s=0.0), "cpu", "but 0 was given"),
        *((Latency(samples), "cpu", "from 20 to") for samples in (0, 19, 10**9)),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
    asked: Benchmark, device: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        bench(asked, tmp_path, device)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1024..65536", (1024, 2048, 4096, 8192, 16384, 32768, 65536)),
        ("1000..5000", (1000, 2000, 4000)),
        ("64", (64,)),
        ("300,100,300", (100, 300)),
    ],
)
def test_sizes_double_or_are_listed(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text", ["", "a", "64..", "128..64", "0..64", "0", "-1", "1,,2", "1..9999999", "12345678", "1 2"]
)
def test_sizes_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"FIRST\.\.LAST"):
        parse_sizes(text)


def test_a_rate_is_two_n_cubed_over_the_median_time() -> None:
    for point in Gemm("fp32", (16, 64, 128), 10.0).points(world()):
        assert point.skipped is None
        assert point.repeats >= 3
        assert point.median_time_s is not None
        assert point.flops_per_s == pytest.approx(2 * point.size**3 / point.median_time_s)


def test_a_size_beyond_the_memory_is_skipped_without_touching_it() -> None:
    size = int((free_bytes(CPU) / 4 / 3) ** 0.5 * 2)
    small, large = Gemm("fp32", (32, size), 1e9).points(world())
    assert small.flops_per_s
    assert large.flops_per_s is None
    assert large.skipped is not None
    assert "GB are free" in large.skipped


@pytest.mark.parametrize(("sizes", "budget_s"), [((256, 16384), 20.0), ((16384,), 0.5)])
def test_a_size_beyond_the_time_budget_is_skipped_by_prediction_even_if_it_is_the_only_one(
    sizes: tuple[int, ...], budget_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(World, "lack", lambda *_: None)  # however little memory is free
    *small, large = Gemm("fp64", sizes, budget_s).points(world())
    assert all(point.flops_per_s for point in small)
    assert "time budget" in str(large.skipped)


def test_the_thread_count_and_the_precision_are_put_back() -> None:
    threads = torch.get_num_threads()
    torch.set_float32_matmul_precision("medium")
    try:
        assert [point.size for point in Gemm("fp32", (8,), 1.0).points(world())] == [8]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16"])
def test_the_result_file_holds_every_point_and_the_best(tmp_path: Path, dtype: str) -> None:
    written = bench(gemm("32..128", dtype), tmp_path / "deep")
    assert schema.read(tmp_path / "deep" / "result.json") == written
    assert written.status == "ok"
    assert written.kind == "gemm"
    assert written.labels == {"study": "peak"}
    assert [point.size for point in written.gemm] == [32, 64, 128]
    assert written.best_flops_per_s in [point.flops_per_s for point in written.gemm]
    assert all(point.flops_per_s and point.flops_per_s <= (written.best_flops_per_s or 0) for point in written.gemm)
    assert written.config["threads"] >= 1
    assert [(point.mode, point.size) for point in written.gemm_modes] == [("NN", 128), ("NT", 128), ("TN", 128)]
    assert all(point.flops_per_s for point in written.gemm_modes)


def test_modes_are_of_the_largest_size_that_the_time_has_room_for() -> None:
    benchmark = Gemm("fp32", (16, 64), 10.0)
    points = [*benchmark.points(world()), GemmPoint(size=4096, median_time_s=100.0, flops_per_s=1.0)]
    assert [point.size for point in benchmark.by_mode(points, 60.0, world())] == [64, 64, 64]
    assert benchmark.by_mode(points, 1.0, world()) == ()


@pytest.mark.parametrize("mode", ["NN", "NT", "TN"])
def test_a_mode_is_how_the_factors_lie(mode: str) -> None:
    timer = GemmTimer(8, torch.float64, CPU, mode)
    a, b = timer._a, timer._b
    assert [("N" if factor.is_contiguous() else "T") for factor in (a, b)] == list(mode)
    assert [factor.stride(0) for factor in (a, b)] == [8 if letter == "N" else 1 for letter in mode]
    torch.testing.assert_close(timer._c, a @ b)


def test_nothing_measured_is_a_failed_result_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_bench, "free_bytes", lambda device: 1000)
    written = bench(gemm("64..128"), tmp_path)
    assert written.status == "failed"
    assert written.best_flops_per_s is None
    assert written.reason is not None
    assert "64 was skipped" in written.reason


def test_a_size_that_fails_is_skipped_with_the_reason_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: GemmTimer, budget_s: float) -> tuple[float, int]:
        if self.size == 64:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate\nmore")
        return median_s(self, budget_s)

    median_s = GemmTimer.median_s
    monkeypatch.setattr(GemmTimer, "median_s", failing)
    written = bench(gemm("32..128"), tmp_path)
    assert written.status == "ok"
    assert [bool(point.skipped) for point in written.gemm] == [False, True, False]
    assert "CUBLAS_STATUS_ALLOC_FAILED" in str(written.gemm[1].skipped)


def test_when_other_ranks_are_lost_the_result_has_failed_and_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: World, mine: str | None) -> str | None:
        calls.append(mine)
        if len(calls) > 6:  # a size asks three times: before it is made, once it is, once it is timed
            raise RuntimeError("Connection closed by peer [127.0.0.1]:1.")
        return mine

    calls: list[str | None] = []
    monkeypatch.setattr(World, "obstacle", lost)
    written = bench(gemm("8..32"), tmp_path)
    assert schema.read(tmp_path / "result.json") == written
    assert written.status == "failed"
    assert "[127.0.0.1]:1" in str(written.reason)
    assert [point.flops_per_s is None for point in written.gemm] == [False, False, True]
    assert written.best_flops_per_s in [point.flops_per_s for point in written.gemm]


def swept_at_once(comm: Comm) -> list[tuple[int, float | None, str | None]]:
    world_bench.free_bytes = lambda device: 400_000 if comm.rank else 10**9  # type: ignore[assignment]
    points = Gemm("fp64", (16, 64, 128), 60.0).points(World(comm))
    return [(point.size, point.flops_per_s, point.skipped) for point in points]


def test_ranks_at_once_get_one_rate_and_skip_what_one_of_them_cant_hold() -> None:
    first, second = run_processes(Grid(2), swept_at_once)
    assert [rate for _, rate, _ in first] == [rate for _, rate, _ in second]
    assert [bool(rate) for _, rate, _ in first] == [True, True, False]
    assert "another rank" in str(first[2][2])
    assert "GB are free" in second[2][2]


def test_of_ranks_that_share_a_core_each_counts_its_own_time_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = GemmTimer(8, torch.float32, CPU)

    def elsewhere(calls: int) -> float:
        time.sleep(0.01)  # the core is another's meanwhile
        return 0.01

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(timer, "sample", elsewhere)
    assert timer.sustained(0.05, turns=1)[1] >= 0.05
    assert timer.sustained(0.05, turns=2)[1] < 0.05


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
    written = bench(stream(), tmp_path / "deep")
    assert schema.read(tmp_path / "deep" / "result.json") == written
    assert (written.kind, written.status, written.dtype, written.ranks) == ("memory", "ok", "fp64", 1)
    assert written.labels == {"study": "peak"}
    assert written.config["threads"] >= 1
    assert written.provenance.devices
    assert written.stream
    assert written.stream.repeats == 4
    assert written.stream.array_bytes == 1_000_000
    kernels = [(kernel.name, kernel.arrays) for kernel in written.stream.kernels]
    assert kernels == [("copy", 2), ("scale", 2), ("add", 3), ("triad", 3)]
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
    found = bench(stream(), tmp_path).stream
    assert found
    assert len(seen) == 4 * 5
    triads = seen[3::4][1:]
    assert found.kernels[3].best_bytes_per_s == pytest.approx(max(triads))
    assert found.kernels[3].median_bytes_per_s == pytest.approx(median(triads))


def test_wrong_numbers_are_a_failure_and_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bench.memory.torch.mul", lambda a, b, out: out.fill_(math.nan))
    written = bench(stream(), tmp_path)
    assert written.status == "failed"
    assert written.stream is None
    assert written.reason
    assert "off by inf" in written.reason


def test_arrays_beyond_the_memory_are_refused_without_touching_it(tmp_path: Path) -> None:
    written = bench(stream(1e14), tmp_path)
    assert written.status == "failed"
    assert written.reason
    assert "need 3e+05 GB" in written.reason
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
    found = bench(stream(repeats=1000, budget_s=1e-6), tmp_path).stream
    assert found
    assert found.repeats == 3


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
    written = bench(Latency(50), tmp_path)
    assert schema.read(tmp_path / "result.json") == written
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
    written = bench(Latency(20), tmp_path)
    assert written.status == "failed"
    assert str(written.reason).endswith("when stream is capturing.")
    assert len(written.launches) == 1


def test_a_benchmark_that_is_killed_has_left_a_failed_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(name: str, device: torch.device, samples: int) -> LaunchTime:
        raise KeyboardInterrupt

    monkeypatch.setattr(latency_bench, "launch_time", killed)
    with pytest.raises(KeyboardInterrupt):
        bench(Latency(20), tmp_path)
    left = schema.read(tmp_path / "result.json")
    assert (left.kind, left.status, left.diagnosis) == ("latency", "failed", "nothing")
    assert left.reason == UNFINISHED


def measured_at_once(comm: Comm) -> tuple[StreamBandwidth, list[LaunchTime], int]:
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
    assert "need 0.0315 GB" in second
