"""The picture of one step: what is drawn stays true when there is more of it than pixels."""

import itertools
import math
import re

import numpy as np
import pytest
from reading import in_order
from sample_steps import simulate

from engine.result.schema.step import Span, Timeline
from reports.plots.svg import inline
from reports.plots.timeline import MOST_LANES, Panel, common, describe, fill, frame, picture, sort, union


def span(lane: str, start_s: float, end_s: float, kind: str = "collective", name: str = "all_gather") -> Span:
    return Span(lane=lane, kind=kind, name=name, start_s=start_s, end_s=end_s)


def timeline(*spans: Span, step_s: float = 10.0) -> Timeline:
    return Timeline(iteration=9, step_s=step_s, spans=spans)


def drawn(spans: list[tuple[float, float]], longest_s: float) -> str:
    """What fill() draws of one lane of ten pixels."""
    figure, axes = frame(100.0, 0.0, longest_s)
    fill(axes, spans, 10.0, 10.0, "green")
    return str(inline(figure, name="f", title="t", description="d"))


def draw(*panels: Panel) -> str:
    drawing = picture(panels)
    assert drawing is not None
    return str(inline(drawing, name="p", title="One step", description=describe(panels)))


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def outlines(svg: str, colour: str) -> list[np.ndarray]:
    """The corners of all that is filled with a colour."""
    paths = [attributes for attributes in re.findall(r"<path[^>]*>", svg) if f"fill: var(--{colour})" in attributes]
    parts = [part for path in paths for part in re.findall(r' d="([^"]*)"', path)[0].split("M")[1:]]
    corners = [np.array(re.findall(r"-?\d+\.?\d*", part), float).reshape(-1, 2) for part in parts]
    return [part for part in corners if len(part) > 2]


def filled(svg: str, colour: str) -> list[tuple[float, float, float, float]]:
    """Left, right, top and bottom of what is filled with a colour."""
    found = [(*part.min(axis=0), *part.max(axis=0)) for part in outlines(svg, colour)]
    return [(left, right, top, bottom) for left, top, right, bottom in found]


def area(svg: str, colour: str, top: float = 0.0, bottom: float = math.inf) -> float:
    """Square pixels that are filled with a colour between two heights, by the shoelace formula."""
    kept = [part for part in outlines(svg, colour) if top <= part[:, 1].min() and part[:, 1].max() <= bottom]
    return sum(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2 for x, y in (part.T for part in kept))


def test_intervals_are_joined_and_intersected() -> None:
    assert union([(4, 5), (0, 2), (2, 3), (1, 1.5)]) == ((0, 3), (4, 5))
    assert common([(0, 3), (4, 9)], [(1, 2), (2.5, 6), (8, 10)]) == ((1, 2), (2.5, 3), (4, 6), (8, 9))
    assert common([], [(0, 1)]) == ()


def test_wide_spans_are_drawn_as_they_are() -> None:
    first, second = filled(drawn([(0.0, 1.0), (1.5, 4.25)], 94.4), "green")  # ten pixels a second
    assert first[:2] == pytest.approx((0.0, 10.0), abs=0.01)
    assert second[:2] == pytest.approx((15.0, 42.5), abs=0.01)
    assert first[3] - first[2] == second[3] - second[2] == pytest.approx(10.0)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_narrow_spans_fill_as_much_of_the_lane_as_they_take(share: float) -> None:
    spans = [(n / 100, (n + share) / 100) for n in range(1000)]  # a hundred pixels wide, ten spans a pixel
    svg = drawn(spans, 94.4)
    assert area(svg, "green") == pytest.approx(1000 * share, abs=1000 / 6)
    assert sum(map(len, outlines(svg, "green"))) <= 250


def test_nothing_that_has_a_length_is_invisible() -> None:
    assert area(drawn([(5.0, 5.0001)], 94.4), "green") >= 1


def test_without_overlap_all_communication_is_exposed_and_with_it_most_is_hidden() -> None:
    none, full = simulate("none"), simulate("oar,ors,oag,cache=auto")
    svg = draw(Panel("none", none.timeline(none.length)), Panel("all", full.timeline(full.length)))
    green, red = filled(svg, "green"), filled(svg, "red")
    middle = max(y for *_, y in filled(svg, "blue")[:1]) + 90
    wide_green = [
        box for box in green if not any(abs(box[0] - other[0]) < 0.02 and box[2] == other[2] for other in red)
    ]
    assert [box for box in wide_green if box[3] < middle] == []
    assert len([box for box in wide_green if box[2] > middle]) > 30


def test_the_steps_share_the_time_axis_and_what_is_saved_is_written() -> None:
    long = timeline(span("compute", 0.0, 10.0, "phase", "forward"))
    short = timeline(span("compute", 0.0, 5.0, "phase", "forward"), step_s=5.0)
    svg = draw(Panel("none", long), Panel("all", short))
    first, second = filled(svg, "blue")
    assert first[0] == pytest.approx(second[0])
    assert second[1] - second[0] == pytest.approx((first[1] - first[0]) / 2, rel=0.01)
    assert "5.000 s saved" in texts(svg)
    assert texts(svg).count("forward") == 2


def test_a_step_that_is_slower_than_the_first_saves_nothing() -> None:
    svg = draw(Panel("none", timeline(step_s=5.0)), Panel("all", timeline(step_s=10.0)))
    assert not [words for words in texts(svg) if "saved" in words]


def test_lanes_are_named_once_a_step_in_the_order_of_the_axes() -> None:
    lanes = ("sideways", "data", "z", "y", "z gather", "x")
    svg = draw(Panel("none", timeline(*(span(lane, 1.0, 2.0) for lane in lanes))))
    named = [words for words in texts(svg) if words in (*lanes, "compute")]
    assert named == ["compute", "x", "y", "z", "z gather", "data", "sideways", "compute"], "lanes, then the legend"


def test_thousands_of_spans_make_a_small_picture_with_the_same_share_of_waiting() -> None:
    def crowded(lanes: int) -> Timeline:
        spans = [span("compute", 0.0, 10.0, "phase", "forward")]
        for number in range(2500):
            start = 10 * number / 2500
            spans.append(span(f"{'xyz'[number % lanes]} gather", start, start + 0.003))
            spans.append(span("compute", start + 0.002, start + 0.003, "wait", "z"))
        return timeline(*spans)

    assert len(crowded(3).spans) == 5001
    svg = draw(Panel("none", crowded(3)), Panel("all", crowded(1)))
    assert len(svg) < 200_000
    assert len(draw(Panel("none", crowded(3)))) < 3 * len(draw(Panel("none", simulate("none").timeline(2.5))))
    step = sort(crowded(3))
    assert step is not None
    assert step.waiting == pytest.approx(0.25)
    (compute,) = filled(svg, "blue")[:1]
    waiting = area(svg, "red", compute[2], compute[3])
    whole = (compute[1] - compute[0]) * (compute[3] - compute[2])
    assert waiting / whole == pytest.approx(0.25, abs=0.1)


def test_spans_that_no_clock_shows_are_left_out() -> None:
    odd = (span("x", math.nan, 1.0), span("x", 3.0, 2.0), span("x", -5.0, -1.0), span("x", 11.0, 12.0))
    step = sort(timeline(*odd, span("x", -1.0, 1.0), span("x", 9.0, math.inf), span("x", 9.0, 12.0)))
    assert step is not None
    assert step.lanes == {"x": ((0.0, 1.0), (9.0, 10.0))}


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan, math.inf])
def test_a_step_without_a_length_is_no_picture(step_s: float) -> None:
    assert picture([Panel("none", timeline(step_s=step_s))]) is None


def test_more_lanes_than_any_grid_has_are_cut() -> None:
    svg = draw(Panel("none", timeline(*(span(f"lane{n}", 1.0, 2.0) for n in range(500)))))
    assert len([words for words in texts(svg) if words.startswith("lane")]) == MOST_LANES


def test_the_picture_is_told_in_words() -> None:
    waits = itertools.chain.from_iterable(
        (span("x", n, n + 0.5), span("compute", n, n + 0.25, "wait", "x")) for n in range(10)
    )
    svg = draw(Panel("none", timeline(*waits)))
    assert in_order(svg, "10.00 s", "25.0 %", "5.000 s")
