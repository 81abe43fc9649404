"""Errors of the model add up, the committed rows are whole, and a fit can be made of results anew."""

import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

import systems
from engine.cli.main import main
from engine.errors import UsageError
from engine.grid import Grid
from engine.pipeline.staged import AS_FAST
from engine.planning.grids import factorisations
from engine.planning.rank import TOLD_APART, best_first
from engine.simulator.machine import MachineModel
from engine.validation import run
from engine.validation.document import TOP, JobRows, Validation, judge_order, judge_orders
from engine.validation.held_out import PublishedSeries, fitted_devices, published_series
from engine.validation.measured import (
    MeasuredJob,
    MeasuredRows,
    MeasuredRun,
    as_yaml,
    campaigns,
    measured_in,
    one_axis,
    with_numbers,
)
from engine.validation.validate import job_rows, planned_order, traced_job

GRIDS = ("2x1x1x1", "1x2x1x1", "1x1x2x1", "1x1x1x2")
PIPELINE = {"grid": "1x1x1x1p2", "micro_batch": 2, "exposed_s": 1e-4}
EFFECTS = """
reasons: {}
effects:
  - {name: a batch, source: made up, published: {paper: axonn-sc24, metric: compute_s, what: "compute, tuned"},
     system: alps, jobs: {gpt-local-1: 4}, sequences: 16, predicts: time, overlap: "oar,ors,oag"}
"""
PIPELINES = (
    {**PIPELINE, "schedule": "1f1b", "time_s": 1.5e-3},
    {**PIPELINE, "schedule": "message-driven-zb, limit 3, cap 2", "time_s": 2.5e-3},
)


def job(**other: object) -> MeasuredJob:
    known = {
        "name": "small",
        "system": "perlmutter",
        "source": "made up",
        "model": "gpt-test",
        "ranks": 2,
        "sequences": 8,
        "precision": "bf16",
        "overlap": "oar,ors,oag",
        "checkpoint_activations": False,
        "fitted": ("2x1x1x1",),
        "time_s": {grid: 1e-3 * place for place, grid in enumerate(GRIDS, 1)},
        "exposed_s": {grid: {"x": 1e-4} for grid in GRIDS},
    }
    return MeasuredJob.model_validate(known | other)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Validation:
    """Validation of one published row, a job of two ranks and an effect, by the command, with every machine fitted
    anew.
    """
    folder = tmp_path_factory.mktemp("validation")
    out = folder / "validation.json"
    (folder / "effects.yaml").write_text(EFFECTS)
    series = PublishedSeries(
        source="made up",
        system="alps",
        sequences=16,
        overlap="oar,ors,oag",
        batch_s={"gpt-local-1": {2: 4e-3, 4: 2e-3, 8: 1e-3}},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "published_series", lambda: [series])
        patch.setattr(run.trainers, "rows", tuple)
        patch.setattr("engine.validation.effects.FOLDER", folder)
        rows = [MeasuredRows(jobs=(job(pipelines=PIPELINES),))]
        patch.setattr("engine.validation.measured.campaigns", lambda *_: rows)
        assert main(["plan", "--validate", "--refit", "--out", str(out)]) == 0
    return Validation.model_validate_json(out.read_text())


def test_a_published_time_is_beside_the_predicted_and_the_share_of_the_peak(found: Validation) -> None:
    small, middle, large = found.published
    assert (small.fitted, middle.fitted, large.fitted) == (True, False, True)
    for row in found.published:
        assert Grid.parse(row.grid).size == row.devices
        assert row.low_s < row.predicted_s < row.high_s
        assert row.predicted_s == pytest.approx(row.compute_s + sum(row.exposed_s.values()))
    share = 2 / (1 / (small.measured_s * small.devices) + 1 / (large.measured_s * large.devices))
    assert [row.baseline_s * row.devices for row in found.published] == pytest.approx([share] * 3)


def test_an_effect_is_predicted_on_the_machine_that_was_fitted(found: Validation) -> None:
    (effect,) = found.effects
    assert effect.predicted == pytest.approx(found.published[1].predicted_s)


def test_every_measured_grid_has_its_place_in_each_order(found: Validation) -> None:
    (rows,) = found.jobs
    first, second = "1x1x1x1p2 1f1b, micro-batch 2", "1x1x1x1p2 message-driven-zb, limit 3, cap 2, micro-batch 2"
    assert [row.name for row in rows.grids] == [GRIDS[0], first, GRIDS[1], second, *GRIDS[2:]]
    for name in ("place_by_equations", "place_agnostic"):
        of = {row.name: getattr(row, name) for row in rows.grids}
        assert of[first] == of[second], "an order by communication knows no schedules"
        assert sum(of.values()) == 1 + 2 + 3 + 4 + 5 + 6
    by_time = sorted(rows.grids, key=lambda row: row.predicted_s)
    assert [row.place for row in by_time] == [1, 2, 3, 4, 5, 6]
    assert [row.fitted for row in rows.grids] == [True, *5 * [False]]
    assert {order.name for order in rows.orders} == {"planned", "simulated", "equations", "agnostic"}


def test_a_pipeline_without_a_micro_batch_is_predicted_with_all_of_a_rank_at_once() -> None:
    machine = MachineModel.of(systems.load("perlmutter"), "bf16", None)
    one = {"grid": "1x1x1x1p2", "schedule": "1f1b", "time_s": 1.5e-3, "exposed_s": 1e-4}
    runs = (one, {**one, "micro_batch": 8}, {**one, "micro_batch": 1})
    traced = traced_job(job(pipelines=runs), machine)
    rows = job_rows(traced.job, traced.steps(machine), machine, 0.1)
    found = {row.name: row.predicted_s for row in rows.grids}
    assert found["1x1x1x1p2 1f1b"] == found["1x1x1x1p2 1f1b, micro-batch 8"] != found["1x1x1x1p2 1f1b, micro-batch 1"]
    with pytest.raises(UsageError, match=r"interleaved\D+2 micro-batches\D+2 stages"):
        traced_job(job(pipelines=({**one, "schedule": "interleaved"},)), machine)


def test_a_job_may_be_a_u_nets() -> None:
    machine = MachineModel.of(systems.load("perlmutter"), "bf16", None)
    grids = ("2x1x1x1", "1x1x1x2")
    of = job(
        model="unet-tiny", fitted=(), time_s=dict.fromkeys(grids, 1e-3), exposed_s={grid: {"x": 1e-4} for grid in grids}
    )
    traced = traced_job(of, machine)
    rows = job_rows(traced.job, traced.steps(machine), machine, 0.1)
    assert [row.grid for row in rows.grids] == list(grids)
    assert all(row.predicted_s > 0 and row.equations_s > 0 for row in rows.grids)


def places(*order: str) -> dict[str, float]:
    return {name: float(place) for place, name in enumerate(order, 1)}


def test_an_order_is_judged_by_the_fastest_it_finds() -> None:
    measured_s = {str(grid): 1 + 0.1 * place for place, grid in enumerate(factorisations(8))}
    fastest = list(measured_s)
    perfect, turned = (judge_order("simulated", places(*order), measured_s) for order in (fastest, fastest[::-1]))
    assert (perfect.efficient, perfect.place_of_fastest, perfect.spearman) == (10, 1, pytest.approx(1))
    assert (turned.efficient, turned.place_of_fastest, turned.spearman) == (0, 20, pytest.approx(-1))
    assert (perfect.lost, turned.lost) == pytest.approx((0, 1.9))
    some = list(fastest)
    random.Random(1).shuffle(some)
    assert -1 < judge_order("simulated", places(*some), measured_s).spearman < 1


def test_what_an_order_does_not_tell_apart_counts_by_its_mean() -> None:
    """The equations don't tell a grid's pipelines apart, so that their order has any one of them."""
    measured_s = {"fast": 1.0, "middle": 1.5, "slow": 2.0, "slowest": 4.0}
    order = judge_order("equations", {"fast": 2, "middle": 2, "slow": 2, "slowest": 4}, measured_s)
    assert order.lost == pytest.approx(0.5)
    assert order.place_of_fastest == pytest.approx(2)
    assert order.spearman == pytest.approx(0.7746, abs=1e-4)
    nothing = judge_order("equations", dict.fromkeys(measured_s, 2.5), measured_s)
    assert (nothing.lost, nothing.spearman) == pytest.approx((1.125, 0))


def test_of_runs_that_share_a_place_a_part_is_among_the_first() -> None:
    """Five of six have one of the first ten places."""
    measured_s = {f"{number}": 1 + 0.1 * number for number in range(TOP + 2)}
    shared = {name: 8.5 if 6 <= number <= 11 else float(number) for number, name in enumerate(measured_s, 1)}
    order = judge_order("equations", shared, measured_s)
    assert order.efficient == pytest.approx(5 + 5 * 5 / 6)


def test_a_plan_s_order_knows_no_measured_times_and_takes_the_schedule_that_a_run_takes() -> None:
    """The first known one of schedules that are as fast is planned; a run of one stage goes by itself."""
    names = {"1f1b": 1.0, "zero-bubble": 0.9, "message-driven-zb, limit 3, cap 2": 0.9 * (1 - AS_FAST / 2)}
    runs = [MeasuredRun(grid="1x1x1x1p2", schedule=name, micro_batch=2, time_s=1.0, exposed_s=0.0) for name in names]
    runs.append(MeasuredRun(grid="2x1x1x1", time_s=1.0, exposed_s=0.0))
    machine = MachineModel.of(systems.load("perlmutter"), "bf16", None)
    some = next(iter(traced_job(job(pipelines=()), machine).steps(machine).values()))
    times_s = [*names.values(), 0.95]
    steps = {run.name: replace(some, time_s=time_s) for run, time_s in zip(runs, times_s, strict=True)}
    first, second, third, last = planned_order(runs, steps, {"2x1x1x1": 0})
    assert [first, second] == [runs[1].name, runs[2].name], "the zero-bubble one is taken"
    assert [third, last] == ["2x1x1x1", runs[0].name]
    for mixed in permutations(runs):
        assert planned_order(mixed, steps, {"2x1x1x1": 0}) == [first, second, third, last]


def test_of_several_orders_the_one_whose_first_grids_lose_the_least_has_proved_best() -> None:
    measured_s = {"2x1x1x1": 1.0, "1x2x1x1": 1.2, "1x1x2x1": 2.0}
    grids = list(measured_s)
    orders = (
        judge_order("simulated", places(grids[1], grids[0], grids[2]), measured_s),
        judge_order("equations", places(*grids), measured_s),
    )
    jobs = [JobRows(name=name, system="a", source="", model="m", sequences=1, grids=(), orders=orders) for name in "ab"]
    assert [
        (proof.name, proof.lost, proof.right, proof.jobs) for proof in judge_orders(job.orders for job in jobs)
    ] == [("equations", pytest.approx(0), 2, 2), ("simulated", pytest.approx(0.2), 0, 2)]


def test_a_plan_takes_the_equations_word_where_simulated_times_are_too_close_to_tell() -> None:
    close = 1 + TOLD_APART / 2
    assert best_first([1.0, close, 1.5], [2, 0, 1]) == [1, 0, 2]
    assert best_first([1.0, close, 1.02], [2, 0, None]) == [1, 2, 0], "a pipeline has no place by the equations"
    assert best_first([1.0, close, 1.5], [None, 0, 1]) == [0, 1, 2]
    assert best_first([1.0, close, 1.02], [None, 0, 1]) == [0, 1, 2]
    assert best_first([1.0, 1.5, 1.2], [2, 0, 1]) == [0, 2, 1]


def test_the_committed_rows_are_whole() -> None:
    """A job of which grids were fitted has all of them; one that took turns has those that were named."""
    for rows in campaigns():
        for measured in rows.jobs:
            assert rows.machines[measured.system].performance is not None
            every = {str(grid) for grid in factorisations(measured.ranks)}
            assert set(measured.time_s) == set(measured.exposed_s)
            assert set(measured.time_s) == every or measured.pipelines
            assert set(measured.fitted) <= {grid for grid in every if one_axis(grid)}
        assert {f"{job.model} on {grid}" for job in rows.jobs for grid in job.fitted} <= {
            row for machine in rows.machines.values() if machine.performance for row in machine.performance.fitted_to
        }
    assert {series.system for series in published_series()} == {"frontier", "perlmutter", "alps"}


def test_the_machines_are_fitted_to_the_rows_that_their_files_name() -> None:
    for series in published_series():
        system = systems.load(series.system)
        assert system.performance is not None
        for model, times in series.batch_s.items():
            for devices in times:
                marked = devices in fitted_devices(series, published_series())
                assert (f"{model} on {devices}" in system.performance.fitted_to) == marked


def test_a_folder_without_results_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=f"model_validation .*{tmp_path}"):
        measured_in(tmp_path)
    assert main(["plan", "--refit"]) == 2
    assert "belong to --validate" in capsys.readouterr().err


def test_rows_are_written_as_they_are_read(tmp_path: Path) -> None:
    file = tmp_path / "a campaign.yaml"
    first, *_ = campaigns()
    rows = first.model_copy(update={"jobs": (job(pipelines=PIPELINES),)})
    file.write_text(as_yaml(rows))
    assert campaigns(tmp_path) == [rows]
    other = with_numbers(rows, "vcluster", {"products": 0.123}, ("a row",))
    file.write_text(as_yaml(other))
    own = campaigns(tmp_path)[0].machines["vcluster"].performance
    assert own is not None
    assert (own.products, own.fitted_to) == (0.123, ("a row",))
    file.write_text("- name: 3")
    with pytest.raises(UsageError, match="are no valid rows"):
        campaigns(tmp_path)
