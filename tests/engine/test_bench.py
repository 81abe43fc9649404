"""The GEMM benchmark measures, skips with a reason, and writes one valid result."""

from pathlib import Path

import pytest
import torch

from engine.bench import gemm as bench
from engine.bench.gemm import free_bytes, gemm, parse_sizes, run_gemm
from engine.comm.launch import from_environment
from engine.errors import UsageError
from engine.result import schema as result

CPU = torch.device("cpu")
ALONE = from_environment({})


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
    for point in gemm(torch.float32, (16, 64, 128), CPU, 10.0):
        assert point.skipped is None
        assert point.repeats >= 3
        assert point.median_time_s is not None
        assert point.flops_per_s == pytest.approx(2 * point.size**3 / point.median_time_s)


def test_a_size_beyond_the_memory_is_skipped_without_touching_it() -> None:
    size = int((free_bytes(CPU) / 4 / 3) ** 0.5 * 2)
    small, large = gemm(torch.float32, (32, size), CPU, 1e9)
    assert small.flops_per_s
    assert large.flops_per_s is None
    assert large.skipped is not None
    assert "GB are free" in large.skipped


def test_a_size_beyond_the_time_budget_is_skipped_by_prediction() -> None:
    small, large = gemm(torch.float64, (256, 16384), CPU, 20.0)
    assert small.flops_per_s
    assert large.skipped is not None
    assert "time budget" in large.skipped


def test_even_the_only_size_is_predicted() -> None:
    (point,) = gemm(torch.float64, (16384,), CPU, 0.5)
    assert point.skipped is not None
    assert "time budget" in point.skipped


def test_the_thread_count_and_the_precision_are_put_back() -> None:
    threads = torch.get_num_threads()
    torch.set_float32_matmul_precision("medium")
    try:
        gemm(torch.float32, (8,), CPU, 1.0)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16"])
def test_the_result_file_holds_every_point_and_the_best(tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "deep" / "result.json"
    labels = {"study": "peak"}
    written = run_gemm(ALONE, dtype=dtype, sizes="32..128", device="cpu", time_budget_s=20, labels=labels, out=out)
    assert result.read(out) == written
    assert written.status == "ok"
    assert written.kind == "gemm"
    assert written.labels == {"study": "peak"}
    assert [point.size for point in written.gemm] == [32, 64, 128]
    assert written.best_flops_per_s in [point.flops_per_s for point in written.gemm]
    assert all(point.flops_per_s and point.flops_per_s <= (written.best_flops_per_s or 0) for point in written.gemm)
    assert written.config["threads"] >= 1


def test_nothing_measured_is_a_failed_result_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "free_bytes", lambda device: 1000)
    written = run_gemm(
        ALONE, dtype="fp32", sizes="64..128", device="cpu", time_budget_s=20, labels={}, out=tmp_path / "result.json"
    )
    assert written.status == "failed"
    assert written.best_flops_per_s is None
    assert written.reason is not None
    assert "64 was skipped as it needs" in written.reason


@pytest.mark.parametrize(
    "bad",
    [{"dtype": "fp8"}, {"sizes": "x"}, {"device": "tpu"}, {"time_budget_s": 0.0}, {"time_budget_s": float("nan")}],
)
def test_bad_options_are_refused_before_anything_is_written(tmp_path: Path, bad: dict[str, object]) -> None:
    options = {"dtype": "fp32", "sizes": "8", "device": "cpu", "time_budget_s": 1.0, "labels": {}} | bad
    with pytest.raises(UsageError):
        run_gemm(ALONE, out=tmp_path / "result.json", **options)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
