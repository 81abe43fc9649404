"""The page of kernel modes: which cells are framed, whose times are told, what holds, and what a step's ratio means."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from reading import built, in_order
from sample_contests import contests
from sample_results import gemm, save
from sample_tuning import EVEN, tuning, untuned

from engine.result import ANOTHER_COMMIT
from engine.result.metrics import choices_that_hold
from engine.result.schema import Result
from engine.result.schema.peers import PeersResult
from reports.figures.kernels import heat_map
from reports.frames.frame import Frames, frames
from reports.page import Facts, Page, Paragraph, Table
from reports.pages.kernels import STUDY, with_figures
from reports.read.load import Contests, Run
from reports.read.peaks import with_peaks

LOCAL: dict[str, Any] = {"system": "local", "partition": "cpu", "dtype": "fp32", "rates": EVEN}


def framed(*results: Result, held: tuple[PeersResult, ...] = ()) -> Frames:
    everything = frames(
        [Run(result, f"{n}.json") for n, result in enumerate(results)], [Contests(c, "c") for c in held]
    )
    return everything.of(with_peaks(everything.runs))


def page(*results: Result, held: tuple[PeersResult, ...] = ()) -> Page:
    everything = framed(*results, held=held)
    return STUDY.page(everything)


def blocks(made: Page, kind: type) -> list[Any]:
    return [block for section in made.sections for block in section.blocks if isinstance(block, kind)]


def table(made: Page, title: str) -> pd.DataFrame:
    return next(found.data for found in blocks(made, Table) if found.title == title)


def test_a_product_that_is_slow_in_its_own_mode_is_changed_and_its_speed_up_is_of_the_second_timing() -> None:
    result = tuning()
    assert result.tuning is not None
    shapes = table(page(result), "Shapes").set_index("layer")
    for shape in result.tuning.again:
        row = shapes.loc[shape.layer]
        assert shape.own_s is not None
        assert shape.chosen_s is not None
        assert row["own_s"] == pytest.approx(shape.own_s)
        assert row["speed_up"] == pytest.approx(shape.own_s / shape.chosen_s)
        assert row["speed_up"] > 2.5
        assert "dW as N" in row["choice"]
        assert row["holds"] == "yes"
    assert page(result).headline.startswith(f"{len(shapes)} of {len(shapes)} shapes ")


def test_one_timing_tells_of_no_choice_whether_it_holds() -> None:
    made = page(tuning(twice=False))
    assert set(table(made, "Shapes")["holds"]) == {""}
    facts = blocks(made, Facts)[0].facts
    assert (None, "of the choices hold", "of shapes timed twice") in facts


def test_a_choice_that_is_slower_than_another_way_in_the_second_timing_does_not_hold() -> None:
    result = tuning()
    assert result.tuning is not None
    first, *others = result.tuning.again
    assert first.best_s is not None
    stored = next(way.column_major for way in first.times if way.chosen)
    own = {way.role: way for way in first.times if way.own and way.column_major is not stored}
    times = tuple(
        way.model_copy(
            update={
                "fastest": way is own[way.role],
                "by_round_s": tuple(
                    s * (1.04 if way.chosen else 1.0) for s in (0.998, 0.999, 1.0, 1.0, 1.0, 1.001, 1.002)
                ),
            }
        )
        for way in first.times
    )
    slower = first.model_copy(update={"times": times})
    result = result.model_copy(update={"tuning": result.tuning.model_copy(update={"again": (slower, *others)})})
    made = page(result)
    assert list(table(made, "Shapes")["holds"]) == ["no"] + ["yes"] * len(others)
    share = choices_that_hold([(1.04, 1.05)] + [(1.0, 1.0)] * len(others))
    assert f"{100 * share:.1f} %" in [value for value, *_ in blocks(made, Facts)[0].facts]


def test_cells_are_coloured_by_the_share_of_the_peak_and_the_chosen_and_own_ways_are_marked() -> None:
    everything = framed(tuning())
    shapes = with_figures(everything)
    ways = everything.tunings.ways
    figure = heat_map("a", everything.runs.iloc[0], shapes, ways)
    assert figure.title.endswith("empirical peak")
    assert in_order(figure.caption, "125.0 Tflop/s", "axonn-sc24 VI-C")
    assert figure.csv["of_empirical"].tolist() == pytest.approx((ways["flops_per_s"] / 125e12).tolist())
    frames_drawn, dots_drawn = (len(re.findall(drawn, figure.svg)) for drawn in ("stroke-width: 2.4", "<use "))
    assert frames_drawn == int(ways["chosen"].sum()) == 3 * len(shapes)
    assert dots_drawn - 2 == int(ways["own"].sum()) == 6 * len(shapes)
    assert "\u2013" not in figure.svg


def test_a_way_that_was_not_tried_is_a_dash_in_its_place() -> None:
    result = tuning()
    assert result.tuning is not None
    first, *others = result.tuning.again
    fewer = first.model_copy(update={"times": first.times[:9]})
    result = result.model_copy(update={"tuning": result.tuning.model_copy(update={"again": (fewer, *others)})})
    everything = framed(result)
    figure = heat_map("a", everything.runs.iloc[0], with_figures(everything), everything.tunings.ways)
    assert figure.svg.count(">\u2013<") == 9


def test_without_a_peak_cells_have_rates_and_with_a_measured_one_shares_of_it() -> None:
    for others, title in (((), "Gflop/s"), ((gemm(best=95e9, system="local", partition="cpu", dtype="fp32"),), "%")):
        everything = framed(tuning(**LOCAL), *others)
        mine = everything.of(everything.runs[STUDY.selects(everything.runs)])
        figure = heat_map("a", mine.runs.iloc[0], with_figures(mine), mine.tunings.ways)
        assert figure.title.startswith(f"Rate of every way, {title}")


def test_the_newest_good_job_of_a_setting_is_shown_and_all_are_listed() -> None:
    old, new = tuning(job=1), tuning(job=2)
    made = page(new, old, tuning(failure="no GPU is visible", job=3))
    assert new.tuning is not None
    assert table(made, "Shapes")["own_s"].tolist() == pytest.approx([shape.own_s for shape in new.tuning.again])
    assert len(table(made, "Provenance of every job")) == 3
    assert table(made, "Failed jobs")["reason"].tolist() == ["no GPU is visible"]


def test_a_step_of_changed_products_is_told_with_its_interval() -> None:
    result = tuning()
    (row,) = table(page(result, held=(untuned(result, ratio=0.8),)), "Steps").to_dict("records")
    assert row["changed"] == 4 + 1
    assert row["ratio"] == pytest.approx(0.8, rel=0.05)
    assert row["low"] < row["ratio"] < row["high"]
    assert row["speed_up"] == pytest.approx(1 / row["ratio"])
    assert (row["meaning"], row["colour"]) == ("faster", "blue")


def test_a_step_whose_products_are_all_as_they_were_takes_as_long_by_definition_whatever_was_measured() -> None:
    result = tuning(**LOCAL)
    (row,) = table(page(held=(untuned(result, ratio=0.8),)), "Steps").to_dict("records")
    assert (row["changed"], row["colour"]) == (0, "muted")
    assert "1.0 by definition" in row["meaning"]


def test_the_engines_own_contests_are_not_among_peers_and_that_of_the_tuner_is_on_this_page(tmp_path: Path) -> None:
    result = tuning()
    save([result], tmp_path / "r")
    against = contests(("ddp",), job=1)
    against = against.model_copy(
        update={"contests": tuple(one.model_copy(update={"peer": ANOTHER_COMMIT}) for one in against.contests)}
    )
    built(tmp_path, contests=[contests(("fsdp2",)), untuned(result), against])
    kernels, peers, index = ((tmp_path / "site" / f"{name}.html").read_text() for name in ("kernels", "peers", "index"))
    assert "gpt-320b-l2" in kernels
    assert "untuned" not in peers
    assert ANOTHER_COMMIT not in peers
    assert "fsdp2" in peers
    assert "Kernel modes" in index


def test_nothing_measured_says_what_to_run_beside_what_was_published() -> None:
    made = page()
    assert made.empty
    assert not blocks(made, Paragraph)[0].text.startswith("A step")
    (published,) = [found.data for found in blocks(made, Table) if found.title.startswith("Published")]
    assert {"6 %", "55 %", "30.1 s", "13.19 s"} <= set(published["value"])
    assert published["source"].str.startswith("axonn-sc24").all()
