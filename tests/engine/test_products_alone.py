"""Products that were measured alone are predicted by rules, of each job by the other jobs."""

import json
from math import inf
from pathlib import Path

import pytest
import yaml

from engine.cli.main import main
from engine.simulator.bandwidth import Bandwidths
from engine.simulator.events import MatrixProduct
from engine.simulator.machine import Fitted, MachineModel
from engine.validation.document import SQUARES, DeviceProducts, MeasuredProduct, MeasuredProducts, count_close
from engine.validation.measured import MeasuredRows, as_yaml, campaigns, rows_in
from engine.validation.products import predict_products
from systems.device import devices

H200, SHARE, LAUNCH_S = "NVIDIA H200", 0.9, 2e-5
SHAPES = {
    SQUARES: [(size,) * 3 for size in (256, 1024, 4096, 32768)],
    "wide": [(8192, 4096, 16384), (128, 4096, 128 * 133), (512, 512, 2048)],
    "narrow": [(4096, 128, 16384), (4096, 16384, 1024), (512, 512, 512)],
}


def measured() -> MeasuredProducts:
    """Measurements of a device that is as the model says, with this share of its peak and such launches."""
    processors = devices()[H200].processors
    assert processors is not None
    machine = MachineModel(
        H200,
        8e14,
        8e14,
        4.8e12,
        None,
        Bandwidths(1, inf, inf),
        Fitted(products=SHARE),
        kernel_s=LAUNCH_S,
        processors=processors.value,
    )
    full = machine.with_fitted(Fitted(products=1.0))
    jobs = {
        job: [
            MeasuredProduct(
                m=m,
                n=n,
                k=k,
                mode="NN",
                time_s=(full if job == SQUARES else machine).compute_s(MatrixProduct(m, n, k, "NN", 2)),
            )
            for m, n, k in shapes
        ]
        for job, shapes in SHAPES.items()
    }
    return MeasuredProducts.model_validate({"device": H200, "source": "made up", "precision": "bf16", "jobs": jobs})


def test_a_device_that_is_as_the_model_says_is_found_from_the_other_jobs() -> None:
    first, second = predict_products(measured())
    assert second.kernel_s == pytest.approx(LAUNCH_S)
    assert {job: second.fitted[job] for job in ("wide", "narrow")} == pytest.approx(
        {"wide": SHARE, "narrow": SHARE}, rel=0.02
    )
    layers = [row for row in second.rows if row.job != SQUARES]
    assert count_close(layers) == len(layers) == 6
    ours, flat = (
        max(abs(error) for error in errors)
        for errors in zip(*((row.error, row.one_rate_error) for row in layers), strict=True)
    )
    assert flat > 0.1 > 0.02 > ours, "one rate doesn't know of waves"
    assert count_close(first.rows) < count_close(second.rows), "launches are longer than is taken for granted"


def test_the_smallest_product_tells_what_a_launch_takes_and_is_not_predicted_by_itself() -> None:
    first, second = predict_products(measured())
    assert len(first.rows) == len(second.rows) + 1
    assert min(row.flops for row in first.rows) < min(row.flops for row in second.rows)


def test_the_committed_products_are_predicted_as_well_as_the_page_says() -> None:
    (device,) = (device for rows in campaigns() for device in rows.products)
    first, second = predict_products(device)
    every = (first.rows, second.rows, second.long)
    counts = [(len(rows), count_close(rows), count_close(rows, at_one_rate=True)) for rows in every]
    assert counts == [(112, 6, 8), (111, 100, 99), (84, 84, 83)]
    assert (first.rule, second.rule) == ("first", "second")
    assert all(share == pytest.approx(0.98, abs=0.01) for share in second.fitted.values())


def test_without_a_launch_or_other_jobs_there_is_no_prediction() -> None:
    whole = measured()
    large = {job: [one for one in some if one.flops > 1e11] for job, some in whole.jobs.items()}
    (only,) = predict_products(whole.model_copy(update={"jobs": large}))
    assert only.rule == "first", "no product is so small that it tells what a launch takes"
    assert predict_products(whole.model_copy(update={"jobs": {SQUARES: whole.jobs[SQUARES]}})) == []
    twice = {"one": whole.jobs["wide"], "the same": whole.jobs["wide"]}
    assert predict_products(whole.model_copy(update={"jobs": twice})) == []


def test_benchmarks_of_a_known_gpu_become_rows_and_those_of_processors_do_not(tmp_path: Path) -> None:
    """Rows are real ones of this machine, whose name alone is changed."""
    words = {
        "gemm": ["gemm", "--dtype", "bf16", "--sizes", "64,128", "--time-budget", "2"],
        "matmul": ["matmul", "--model", "gpt-test", "--precision", "bf16", "--micro-batch", "2"],
    }
    for kind, of in words.items():
        out = tmp_path / kind / "result.json"
        assert main(["bench", *of, "--device", "cpu", "--out", str(out)]) == 0
    with pytest.raises(Exception, match=r"model_validation .*bench matmul"):
        rows_in(tmp_path)
    for kind in words:
        path = tmp_path / kind / "result.json"
        result = json.loads(path.read_text())
        result["provenance"]["devices"] = [H200]
        path.write_text(json.dumps(result))
    rows = rows_in(tmp_path)
    (found,) = rows.products
    assert rows.jobs == ()
    squares, layers = found.jobs[SQUARES], found.jobs["gpt-test on 1x1x1x1, 2 at once"]
    assert [one.m for one in squares] == [64, 128]
    assert len(layers) % 3 == 0
    forward, to_input, to_weight = layers[:3]
    assert (
        (forward.m, forward.n, forward.k)
        == (to_input.m, to_input.k, to_input.n)
        == (to_weight.k, to_weight.n, to_weight.m)
    )
    assert MeasuredRows.model_validate(yaml.safe_load(as_yaml(rows))) == rows
    assert all(isinstance(one, DeviceProducts) for one in predict_products(found))
