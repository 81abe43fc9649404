"""The page of the performance model, and predictions on the scaling pages."""

import re
from pathlib import Path

import pytest
from reading import built, in_order
from sample_predictions import SMALL, alone, measured, plan, published, validation
from sample_results import train
from test_report_planning import words

from engine.planning.document import GridPlan
from engine.result.schema import Result
from engine.result.schema.contest import Contest, Ratio
from engine.validation.document import Effect, Validation
from reports.figures.model_published import winner
from reports.frames.predictions import grid_rows, published_rows


def site(made: list[GridPlan | Validation], folder: Path, runs: list[Result] | None = None) -> Path:
    return built(folder, runs or [], predictions=made)


def page(made: list[GridPlan | Validation], folder: Path, runs: list[Result] | None = None) -> str:
    return (site(made, folder, runs) / "model_validation.html").read_text()


def figures(html: str) -> dict[str, str]:
    found = re.findall(r"<h3>([^<]*)</h3>\s*(<svg.*?</figure>)", html, re.DOTALL)
    return dict(found)


def vcluster(grids: tuple[str, ...] = SMALL[:4]) -> list[Result]:
    """Runs of the suite, each slower than the one before."""
    known = {"study": "model_validation", "system": "vcluster", "partition": "cpu"}
    return [
        train(ranks=8, grid=grid, model="gpt-vcluster-small", sequences=8, time_s=1 + place, job=place, **known)
        for place, grid in enumerate(grids)
    ]


def test_grids_that_took_turns_are_a_table_the_fastest_first(tmp_path: Path) -> None:
    known = {"kind": "grid", "rounds_s": (), "exposed_s": {}}
    sides = [
        {"name": "1x1x2x1,4", "grid": "1x1x2x1", "micro_batch": 4, "time_per_iteration_s": 2.0},
        {"name": "1x1x1x1p2,2,zero-bubble", "grid": "1x1x1x1p2", "micro_batch": 2, "time_per_iteration_s": 1.5},
    ]
    sides[1] |= {"schedule": "zero-bubble", "over_base": Ratio(ratio=0.75, low=0.7, high=0.8), "predicted_s": 1.25}
    contest = Contest.model_validate({"base": "1x1x2x1,4", "sides": [known | side for side in sides]})
    run = train(ranks=2, grid="1x1x2x1", model="gpt-local-2", study="grids", system="local", partition="cpu")
    html = page([], tmp_path, [run.model_copy(update={"kind": "grids", "contest": contest, "summary": None})])
    (rows,) = re.findall(r"In turns: gpt-local-2 on 2 devices of local.*?</table>", html, re.DOTALL)
    said = words(rows)
    assert said.index("1.500 s 0.750 (0.700") < said.index("2.000 s the first")


def test_a_job_has_three_rank_plots_two_scatters_and_how_good_its_orders_are(tmp_path: Path) -> None:
    job = measured()
    html = page([validation(jobs=(job,), published=())], tmp_path)
    drawn = figures(html)
    titles = ("Order by the simulation", "Order by Eq. 1 to 7", "Order without placement")
    for title, order in zip(titles, job.orders[1:], strict=True):
        left = f"{order.efficient:g} of them"
        assert in_order(drawn[title], "the 10 fastest", left)
        marks = re.findall(r"<use[^>]*fill: var\(--(\w+)\)", drawn[title])
        assert marks.count("green") == 10 + 1, "and that of the legend"
    scatters = [said for title, said in drawn.items() if title.endswith("predicted and measured")]
    assert len(scatters) == 2 and all("15.0 %" in said for said in scatters)  # noqa: PT018
    rows = html.split("How good the orders")[1].split("</table>")[0]
    assert all(f">{order.spearman:.3f}<" in rows for order in job.orders)
    assert in_order(words(html), "20 grids", "8 sequences")
    assert in_order(words(html), "18 runs", "18 have")


def test_errors_of_time_and_its_parts_have_counts_and_a_range(tmp_path: Path) -> None:
    """Three are not fitted; one of them hides too much, by as much as it computes too long."""
    wide, step = measured(), {"measured_s": 2.0, "measured_exposed_s": 1.0}
    predicted = [(2.2, 1.1), (2.0, 0.5), (1.6, 0.8)]
    rows = [
        row.model_copy(update={**step, "predicted_s": time_s, "exposed_s": exposed_s})
        for row, (time_s, exposed_s) in zip(wide.grids[2:5], predicted, strict=True)
    ]
    job = wide.model_copy(update={"model": "unet-tiny", "samples": "images", "grids": tuple(rows)})
    html = page([validation(jobs=(job,), published=())], tmp_path)
    table = words(html.split("How far off the")[1].split("</table>")[0])
    assert in_order(table, "3 2 10.0 %", "20.0 % +10.0 %")
    assert in_order(table, "3 1 20.0 %", "20.0 % +50.0 %")
    assert in_order(table, "3 1 20.0 %", "50.0 % +10.0 %")
    assert in_order(table, "2 of 3 compute", "15.0 %", "1 of")
    assert "8 images" in words(html)


def test_pipelines_have_a_share_of_their_own_in_what_intervals_hold(tmp_path: Path) -> None:
    job = measured(grids=(*SMALL, "1x1x1x1p8", "2x1x1x1p4"))
    said = words(page([validation(jobs=(job,), published=())], tmp_path))
    flat, piped = (sum((row.grid in SMALL) == one and not row.fitted for row in job.grids) for one in (True, False))
    assert in_order(said, f"{flat} of {flat}", f"{piped} of {piped} pipelines")
    assert "22 grids of" in said
    assert "the time in which" in said


def test_grids_that_were_fitted_are_marked_and_count_in_no_error() -> None:
    job = measured()
    rows = grid_rows(job)
    assert rows["measured_s"].is_monotonic_increasing
    assert rows["fitted"].sum() == 2
    assert rows["error"].tolist() == pytest.approx((rows["predicted_s"] / rows["measured_s"] - 1).tolist())
    odd = job.grids[3].model_copy(update={"measured_s": job.grids[3].high_s * 1.01})
    rows = grid_rows(job.model_copy(update={"grids": (*job.grids[:3], odd, *job.grids[4:])}))
    assert rows.set_index("grid").loc[odd.grid, "held"] == False  # noqa: E712
    assert rows["held"].sum() == len(job.grids) - 1


def test_the_errors_of_model_and_baseline_are_over_rows_that_were_not_fitted_and_say_who_wins(tmp_path: Path) -> None:
    said = words(page([validation(jobs=())], tmp_path))
    assert in_order(said, "On frontier", "2 rows", "4.0 %", "12.0 %", "the model is clearly", within=120)
    assert in_order(said, "On perlmutter", "2 rows", "20.0 %", "10.0 %", "the baseline is clearly", within=120)
    assert "4 rows" in said
    assert "4 of 4 published" in said
    assert in_order(said, "12.0 %", "11.0 %")
    assert "Fitted rows that lie" not in said
    assert "The papers print times" in said
    index = words((tmp_path / "site" / "index.html").read_text())
    assert in_order(index, "12.0 %", "11.0 %")


def test_who_wins() -> None:
    assert winner(0.05, 0.05) == "neither is better"
    assert winner(0.0, 0.05).startswith("the model is clearly")
    assert in_order(winner(0.05, 0.06), "the model", "not clearly")
    assert in_order(winner(0.06, 0.05), "the baseline", "not clearly")


def test_rows_that_were_all_fitted_tell_nothing(tmp_path: Path) -> None:
    html = page([validation(published=published(fitted=True), jobs=(), effects=())], tmp_path)
    assert "On frontier the model" in words(html)
    assert published_rows(Validation()).empty


def test_a_fitted_row_that_lies_outside_of_its_interval_is_told(tmp_path: Path) -> None:
    first, *rest = published()
    odd = first.model_copy(update={"predicted_s": 1.6 * first.measured_s, "low_s": 1.2 * first.measured_s})
    said = words(page([validation(published=(odd, *rest), jobs=(), effects=())], tmp_path))
    assert in_order(said, "gpt-5b", "512, +60.0 %")


def test_effects_stand_beside_the_published_range(tmp_path: Path) -> None:
    table = (
        page([validation(jobs=(), published=())], tmp_path)
        .split("Effects, predicted and published")[1]
        .split("</table>")[0]
    )
    first = words(table.split("<tbody>")[1]).split(" axonn-sc24 Fig. 7")[0]
    assert in_order(first[-40:], "17.0 %", "13.0 %", "45.0 %", "within", within=8)
    assert in_order(words(table), "12.00 s 13.19 s", "9.0 %")


def test_the_page_says_how_often_intervals_hold_and_why_an_effect_is_off(tmp_path: Path) -> None:
    far = Effect(
        name="compute",
        setting="gpt-320b",
        unit="s",
        predicted=19.0,
        published_low=13.19,
        published_high=13.19,
        source="axonn-sc24 V-C",
        reason="it was fitted to whole batches",
    )
    html = page([validation(effects=(far,))], tmp_path)
    assert in_order(words(html), "36 runs", "36 measured")
    assert in_order(words(html), "15.0 %", "compute", "fitted to whole batches")
    rows = html.split("Orders over all jobs")[1].split("</table>")[0]
    assert "Order of a plan" in rows


def test_measured_grids_are_listed_fastest_first_without_any_prediction(tmp_path: Path) -> None:
    lost = vcluster()[0].model_copy(update={"status": "failed", "reason": "a rank was lost"})
    html = page([], tmp_path, [*vcluster()[1:], lost])
    table = html.split("<tbody>")[1].split("</tbody>")[0]
    assert re.findall(r"<td>(\dx\dx\dx\d)</td>", table) == [*SMALL[1:4], SMALL[0]]
    assert "failed" in table
    assert "Not predicted yet" in html
    assert "3 grids" in words((tmp_path / "site" / "index.html").read_text()).lower()


def test_a_validation_of_devices_that_no_machine_has_is_refused(tmp_path: Path) -> None:
    site([validation(published=published(devices=10**40)), validation(published=published(devices=0))], tmp_path)
    assert (tmp_path / "site" / "index.html").read_text().count("not 1 or more") == 2


def test_a_validation_of_nothing_is_a_page(tmp_path: Path) -> None:
    empty = measured().model_copy(update={"grids": (), "orders": ()})
    assert "No grid of this" in page([Validation(jobs=(empty,))], tmp_path)


def test_machines_without_a_measured_point_have_predicted_series_and_others_have_none(tmp_path: Path) -> None:
    plans = [plan(system="alps", model="gpt-60b", devices=devices, time_s=9e3 / devices) for devices in (512, 1024)]
    out = site(
        [*plans, plan(), plan(devices=4096), validation(jobs=())], tmp_path, [train(), train(study="strong_scaling")]
    )
    weak, strong = ((out / f"{name}_scaling.html").read_text() for name in ("weak", "strong"))
    assert set(figures(weak.split('id="predicted"')[1])) == {"perlmutter, axonn-sc24 Table III"}
    (drawn,) = figures(strong.split('id="predicted"')[1])
    assert in_order(drawn, "gpt-60b on alps", "16.78 million", "bf16")
    for html in (weak, strong):
        assert "predicted" not in html.split('id="predicted"')[0].split("<h2>")[1]
        assert "Predicted, not measured." in html


def test_one_plan_alone_is_no_series(tmp_path: Path) -> None:
    out = site([plan(), plan(simulated=False, devices=64)], tmp_path)
    assert 'id="predicted"' not in (out / "strong_scaling.html").read_text()


def test_products_alone_are_drawn_once_a_device_and_counted_by_both_rules(tmp_path: Path) -> None:
    html = page([validation(jobs=(), published=(), products=(alone(rule="first", kernel_s=4e-6), alone()))], tmp_path)
    assert in_order(html, "(4.000 µs)", "2 of 4 products", "4; of the 4", "2 and 4")
    assert in_order(html, "(30.00 µs)", "2 of 4 products", "4; of the 3", "1 and 3", "the baseline is")
    (title,) = (title for title in figures(html) if title.startswith("Products alone"))
    assert title.endswith("NVIDIA H200, bf16")
    rows = re.findall(r"Each product alone on.*?</table>", html, re.DOTALL)
    assert in_order(words(rows[0]), "1,024 1,024 1,024 NN", "102.4 µs 153.6 µs")
