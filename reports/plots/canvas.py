"""Parts that all drawings share: an empty one, words at places given in pixels, ticks, and a legend above it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from reports.plots.svg import COLOURS
from reports.text import clean

WIDTH = 360.0
WIDE = 960.0
LETTER = 6.6
"""Mean width of a letter in pixels, on the wide side."""
HOLLOW = {"markerfacecolor": "none"}
SIGNS: Mapping[str, dict[str, Any]] = {
    "■": {"marker": "s"},
    "□": {"marker": "s", **HOLLOW},
    "●": {"marker": "o"},
    "○": {"marker": "o", **HOLLOW},
    "◆": {"marker": "D", "markersize": 6},
    "❙": {"marker": "|", "markeredgewidth": 2.4},
}
"""Markers of a legend's entries, by the sign that their words begin with."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A chart's horizontal or vertical scale: its caption (with the unit) and how it runs."""

    caption: str
    spacing: Literal["linear", "log2", "log10"] = "linear"
    from_zero: bool = False
    write: Callable[[float], str] | None = None


def canvas(
    width: float, height: float, *, left: float, right: float, bottom: float, top: float = 30
) -> tuple[Figure, Axes]:
    """Return an empty transparent figure of this size in CSS pixels, with one pair of axes that far from its edges."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
    FigureCanvasSVG(figure)
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )
    axes.patch.set_alpha(0)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.tick_params(length=3, pad=4)
    return figure, axes


def write(figure: Figure, x: float, y: float, words: str, colour: str, align: str, weight: str = "normal") -> None:
    """Write text that many pixels from the left and from the top."""
    width, height = figure.get_size_inches() * 72
    figure.text(x / width, 1 - y / height, words, color=COLOURS[colour], ha=align, va="center_baseline", weight=weight)


def legend(figure: Figure, named: Iterable[tuple[str, str]], y: float = 14) -> None:
    """Draw a legend in one line, its middle that many pixels from the top. named: a sign and words, and a colour."""
    handles = []
    for words, colour in named:
        sign, _, label = words.partition(" ")
        looks: dict[str, Any] = {"markersize": 7, "linestyle": "none"} | SIGNS[sign]
        handles.append(Line2D([], [], color=COLOURS[colour], label=label, **looks))
    place = (0, 1 - y / (figure.get_figheight() * 72))
    figure.legend(
        handles=handles,
        ncols=max(len(handles), 1),
        loc="center left",
        bbox_to_anchor=place,
        frameon=False,
        labelcolor=[handle.get_color() for handle in handles],
        prop={"weight": "bold", "size": 11},
        borderpad=0,
        borderaxespad=0,
        handlelength=1,
        handletextpad=0.3,
        columnspacing=1.6,
    )


def width_of(words: str) -> float:
    """Return the pixels that words take; a letter that isn't of the Latin alphabet may be twice as wide."""
    return LETTER * sum(1 if letter < "\u0250" or letter == "…" else 2 for letter in words)


def fitted(words: str, letters: int) -> str:
    """Write words in the room of that many letters; longer ones lose their middle, as names differ at their ends.

    >>> fitted("a-node-of-the-centre-0001", 15)
    'a-node-of-…0001'
    """
    whole = clean(words)
    shown, kept = whole, letters - 1
    while width_of(shown) > LETTER * letters:
        end = kept // 3
        shown, kept = whole[: kept - end] + "…" + whole[len(whole) - end :], kept - 1
    return shown


def plain(value: float) -> str:
    """Write a tick: no exponent from a thousandth to a hundred thousand."""
    return f"{round(value, 12):,.10g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.3g}"


def format_ticks(axis: Axis, write: Callable[[float], str] | None = None) -> None:
    """Write ticks in these words, else plain ones."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: (write or plain)(value)))


def rule(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Draw pale lines at the ticks of an axis."""
    axes.grid(axis=axis, color=COLOURS["rule"], linewidth=0.8)
