"""Drawings: what is drawn is the data, and stays true when there is more of it than pixels."""

import itertools
import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from reading import in_order
from sample_steps import simulate

from engine.result.schema.step import Span, Timeline
from reports.plots.canvas import Scale
from reports.plots.heat import Cell, Group, heat
from reports.plots.lines import LINE_HEIGHT, Line, against, lines, scatter
from reports.plots.rows import FARTHEST, Bars, Dot, Row, around_one, dots, stacked
from reports.plots.svg import COLOURS, inline
from reports.plots.timeline import MOST_LANES, Panel, common, describe_steps, draw_steps, fill, frame, sort, union


def span(lane: str, start_s: float, end_s: float, kind: str = "collective", name: str = "all_gather") -> Span:
    return Span(lane=lane, kind=kind, name=name, start_s=start_s, end_s=end_s)


def timeline(*spans: Span, step_s: float = 10.0) -> Timeline:
    return Timeline(iteration=9, step_s=step_s, spans=spans)


def drawn(spans: list[tuple[float, float]], longest_s: float) -> str:
    """Draw one lane of ten pixels by fill()."""
    figure, axes = frame(100.0, 0.0, longest_s)
    fill(axes, spans, 10.0, 10.0, "green")
    return str(inline(figure, name="f", title="t", description="d"))


def draw(*panels: Panel) -> str:
    drawing = draw_steps(panels)
    assert drawing is not None
    return str(inline(drawing, name="p", title="One step", description=describe_steps(panels)))


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


def outlines(svg: str, colour: str) -> list[np.ndarray]:
    """Return the corners of all that is filled with a colour."""
    paths = [attributes for attributes in re.findall(r"<path[^>]*>", svg) if f"fill: var(--{colour})" in attributes]
    parts = [part for path in paths for part in re.findall(r' d="([^"]*)"', path)[0].split("M")[1:]]
    corners = [np.array(re.findall(r"-?\d+\.?\d*", part), float).reshape(-1, 2) for part in parts]
    return [part for part in corners if len(part) > 2]


def filled(svg: str, colour: str) -> list[tuple[float, float, float, float]]:
    """Return left, right, top and bottom of what is filled with a colour."""
    found = [(*part.min(axis=0), *part.max(axis=0)) for part in outlines(svg, colour)]
    return [(left, right, top, bottom) for left, top, right, bottom in found]


def area(svg: str, colour: str, top: float = 0.0, bottom: float = math.inf) -> float:
    """Return the filled square pixels of a colour between two heights, by the shoelace formula."""
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
    assert area(drawn([(5.0, 5.0001)], 94.4), "green") >= 1, "whatever has a length can be seen"


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
    assert not [words for words in texts(draw(Panel("all", short), Panel("none", long))) if "saved" in words]


def test_lanes_are_named_once_a_step_in_the_order_of_the_axes() -> None:
    lanes = ("sideways", "data", "z", "y", "z gather", "x")
    svg = draw(Panel("none", timeline(*(span(lane, 1.0, 2.0) for lane in lanes))))
    named = [words for words in texts(svg) if words in (*lanes, "compute")]
    assert named == ["compute", "x", "y", "z", "z gather", "data", "sideways", "compute"], "lanes, then the legend"
    many = draw(Panel("none", timeline(*(span(f"lane{n}", 1.0, 2.0) for n in range(500)))))
    assert len([words for words in texts(many) if words.startswith("lane")]) == MOST_LANES


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
    assert draw_steps([Panel("none", timeline(step_s=step_s))]) is None


def test_the_picture_is_told_in_words() -> None:
    waits = itertools.chain.from_iterable(
        (span("x", n, n + 0.5), span("compute", n, n + 0.25, "wait", "x")) for n in range(10)
    )
    svg = draw(Panel("none", timeline(*waits)))
    assert in_order(svg, "10.00 s", "25.0 %", "5.000 s")


def points(figure: Figure, colour: str, marker: str = "o") -> list[tuple[float, float]]:
    """Return the points of the lines of a colour and a marker."""
    found = [line for line in figure.axes[0].lines if line.get_color() == COLOURS[colour]]
    return [(x, y) for line in found if line.get_marker() == marker for x, y in line.get_xydata()]


def whiskers(figure: Figure) -> list[tuple[float, float, float, float]]:
    """Return the ends of all whiskers: x, y, x, y."""
    bars = [bar for container in figure.axes[0].containers for bar in getattr(container, "lines", ((), (), ()))[2]]
    return [tuple(np.ravel(segment)) for bar in bars for segment in bar.get_segments()]


def named(figure: Figure) -> dict[str, float]:
    """Return the words beside the axes, with their height in pixels."""
    height = figure.get_figheight() * 72
    return {text.get_text(): text.get_position()[1] * height for text in figure.texts}


def test_lines_keep_what_stands_on_their_scale_and_are_named_beside_their_ends_apart() -> None:
    ours = Line([1, 2, 4, 8], [1.0, 2.0, -4.0, 7.9], "blue", "ours", [0.5, 1, 1, 7], [1.5, 3, 5, math.nan])
    theirs = Line([0, 2, 8], [1.0, 2.0, 8.0], "red", "theirs", kind="published")
    figure = lines([ours, theirs], Scale("devices", "log2"), Scale("rate", "log10"))
    assert points(figure, "blue") == [(1, 1.0), (2, 2.0), (8, 7.9)]
    assert points(figure, "red") == [(2, 2.0), (8, 8.0)]
    assert whiskers(figure) == [(1, 0.5, 1, 1.5), (2, 1, 2, 3), (8, 7, 8, pytest.approx(7.9))]
    places = named(figure)
    assert places["theirs"] - places["ours"] == pytest.approx(LINE_HEIGHT)
    empty = lines([Line([math.nan], [1.0], "blue", "none")], Scale("x"), Scale("y"))
    assert [text.get_text() for text in empty.axes[0].texts] == ["not measured"]


def test_dots_are_named_above_and_two_equal_scales_have_the_diagonal_and_its_bounds() -> None:
    group = Line([1.0, 9.0], [2.0, 8.0], "blue", "layers", kind="dots")
    for figure in (
        scatter([group], Scale("x"), Scale("y"), upright=5.0),
        against([group], Scale("x"), Scale("y"), within=0.5),
    ):
        assert points(figure, "blue") == [(1.0, 2.0), (9.0, 8.0)]
        assert [text.get_text() for text in figure.legends[0].get_texts()] == ["layers"]
    axes = figure.axes[0]
    assert axes.get_xlim() == axes.get_ylim()
    slopes = [line.get_ydata()[1] / line.get_xdata()[1] for line in axes.lines[:3]]  # type: ignore[index]
    assert slopes == pytest.approx([1.0, 1.5, 0.5])


def test_bars_are_stacked_with_whiskers_marks_and_notes() -> None:
    parts = [Bars("compute", [1.0, 2.0, math.nan], "blue"), Bars("waits", [0.5, math.nan, math.nan], "red")]
    rows = [Row("a", 1.2, 1.8, mark=1.4, notes=("7 %",)), Row("b", heading="group"), Row("c", missing="failed")]
    figure = stacked(parts, rows, "seconds", columns=("share",), mark="bound")
    bars = [(bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches]
    assert bars == [(0, 1.0), (0, 2.0), (0, 0), (1.0, 0.5), (2.0, 0), (0, 0)]
    assert [(low, high) for low, _, high, _ in whiskers(figure)] == [pytest.approx((1.2, 1.8))]
    assert 1.4 in [x for x, _ in points(figure, "ink", "|")], "beside the caps of the whisker"
    assert {"share", "7 %", "group"} <= named(figure).keys()
    assert [text.get_text() for text in figure.axes[0].texts] == [" failed"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["compute", "waits", "bound"]


def test_ratios_stand_around_one_odd_ones_at_the_edge_and_values_from_zero() -> None:
    rows = [Dot("a", 0.8, 0.9, ratio=0.85, colour="blue"), Dot("b", ratio=50.0, colour="red"), Dot("c")]
    figure = around_one(rows, ("faster", "slower"), "ratio")
    assert [x for x, _ in points(figure, "blue")] == [0.85]
    assert [x for x, _ in points(figure, "red")] == [FARTHEST]
    assert [(low, high) for low, _, high, _ in whiskers(figure)] == [pytest.approx((0.8, 0.9))]
    assert [text.get_text() for text in figure.axes[0].texts] == ["not measured"]
    figure = dots([Dot("a", 2.0, 4.0, 3.5, ratio=3.0, target=5.0, colour="blue")], "rate", [("● ours", "blue")])
    assert [x for x, _ in points(figure, "blue")] == [3.0]
    assert [x for x, _ in points(figure, "muted", "|")] == [5.0]
    assert figure.axes[0].get_xlim() == pytest.approx((0.0, 5.2))


def test_a_heat_map_has_each_share_in_its_cell() -> None:
    groups = [Group("speed", "bf16", ("NN", "NT")), Group("speed", "fp32", ("NN",))]
    cells = {
        (0, 0, 0): Cell(0.25, "25", framed=True),
        (0, 0, 1): Cell(1.0, "100", dotted=True),
        (1, 1, 0): Cell(math.nan, ""),
    }
    figure = heat([("a", "1x2x3"), ("b", "")], groups, cells, ("chosen", "own"))
    first, second = (np.ma.filled(mesh.get_array(), math.nan) for mesh in figure.axes[0].collections)
    np.testing.assert_array_equal(first.reshape(2, 2), [[0.25, 1.0], [math.nan, math.nan]])
    assert np.isnan(second).all()
    assert [text.get_text() for text in figure.axes[0].texts] == ["25", "100", "\u2013"]
    assert len(figure.axes[0].patches) == len(figure.axes[0].lines) == 1
    assert list(named(figure)).count("speed") == 1
