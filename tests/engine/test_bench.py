"""The GEMM benchmark measures, skips with a reason, and writes one valid result."""

import time
from pathlib import Path

import pytest
import torch
from real_ranks import run_processes

from engine.bench import world as bench
from engine.bench.frame import run
from engine.bench.gemm import Gemm, parse_sizes
from engine.bench.world import World
from engine.comm.funnel import Comm
from engine.comm.launch import from_environment
from engine.errors import UsageError
from engine.grid import Grid
from engine.measure.gemm import GemmTimer
from engine.measure.memory import free_bytes
from engine.result import schema as result
from engine.result.schema import Result
from engine.result.schema.bench import GemmPoint
from engine.timeouts import Timeouts

CPU = torch.device("cpu")
ALONE = from_environment({})


def world() -> World:
    return World(Comm(Grid()))


def run_gemm(
    out: Path, *, dtype: str = "fp32", sizes: str = "8", device: str = "cpu", budget_s: float = 20.0
) -> Result:
    benchmark = Gemm(dtype, parse_sizes(sizes), budget_s)
    return run(benchmark, ALONE, device=device, timeouts=Timeouts(), labels={"study": "peak"}, out=out)


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
    out = tmp_path / "deep" / "result.json"
    written = run_gemm(out, dtype=dtype, sizes="32..128")
    assert result.read(out) == written
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
    monkeypatch.setattr(bench, "free_bytes", lambda device: 1000)
    written = run_gemm(tmp_path / "result.json", sizes="64..128")
    assert written.status == "failed"
    assert written.best_flops_per_s is None
    assert written.reason is not None
    assert "64 was skipped" in written.reason


@pytest.mark.parametrize(
    "bad",
    [
        {"dtype": "fp8"},
        {"dtype": "tf32"},
        {"sizes": "x"},
        {"device": "tpu"},
        {"budget_s": 0.0},
        {"budget_s": float("nan")},
    ],
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path: Path, bad: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        run_gemm(tmp_path / "result.json", **bad)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_size_that_fails_is_skipped_with_the_reason_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: GemmTimer, budget_s: float) -> tuple[float, int]:
        if self.size == 64:
            raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate\nmore")
        return median_s(self, budget_s)

    median_s = GemmTimer.median_s
    monkeypatch.setattr(GemmTimer, "median_s", failing)
    out = tmp_path / "result.json"
    written = run_gemm(out, sizes="32..128")
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
    out = tmp_path / "result.json"
    written = run_gemm(out, sizes="8..32")
    assert result.read(out) == written
    assert written.status == "failed"
    assert "[127.0.0.1]:1" in str(written.reason)
    assert [point.flops_per_s is None for point in written.gemm] == [False, False, True]
    assert written.best_flops_per_s in [point.flops_per_s for point in written.gemm]


def swept_at_once(comm: Comm) -> list[tuple[int, float | None, str | None]]:
    bench.free_bytes = lambda device: 400_000 if comm.rank else 10**9  # type: ignore[assignment]
    points = Gemm("fp64", (16, 64, 128), 60.0).points(World(comm))
    return [(point.size, point.flops_per_s, point.skipped) for point in points]


def test_ranks_at_once_get_one_rate_and_skip_what_one_of_them_cant_hold() -> None:
    first, second = run_processes(Grid(2), swept_at_once)
    assert [rate for _, rate, _ in first] == [rate for _, rate, _ in second]
    assert [bool(rate) for _, rate, _ in first] == [True, True, False]
    assert "another rank" in str(first[2][2])
    assert "GB are free" in second[2][2]


def test_of_ranks_that_share_a_core_each_counts_its_own_time_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = GemmTimer(8, torch.float32, torch.device("cpu"))

    def elsewhere(calls: int) -> float:
        time.sleep(0.01)  # the core is another's meanwhile
        return 0.01

    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(timer, "sample", elsewhere)
    assert timer.sustained(0.05, turns=1)[1] >= 0.05
    assert timer.sustained(0.05, turns=2)[1] < 0.05
