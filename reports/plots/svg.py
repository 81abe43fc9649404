"""A matplotlib figure as SVG inside a page: text in the page's own font, colours as CSS variables (so that a dark page
has a dark figure), unique identifiers, and a title and a description for those who can't see it.
"""

import io
import re
import warnings
from typing import Any
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup
from matplotlib.figure import Figure

# Colour roles. The first six tell lines apart for every kind of colour vision; report.css has the dark values.
COLOURS = {
    "blue": "#0063a6",
    "red": "#b5460f",
    "green": "#00755a",
    "purple": "#8a4a8f",
    "gold": "#8a6500",
    "sky": "#3b7f95",
    "ink": "#1b2733",
    "muted": "#5b6873",
    "rule": "#dde3e8",
    "paper": "#ffffff",
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "par4d",
    "text.parse_math": False,  # a model may be named $\frac
    "font.size": 11,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "text.color": COLOURS["ink"],
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "axes.axisbelow": True,
}
_VARIABLES = {value: f"var(--{role})" for role, value in COLOURS.items()}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}
TITLE = "title: "
"""A part of a drawing whose identifier (gid) begins so has the rest of it as a tooltip."""

styled = matplotlib.rc_context(_STYLE)
"""Decorator of functions that draw or save."""


@styled
def inline(drawing: Figure, *, name: str, title: str, description: str) -> Markup:
    """Return the drawing as an <svg> element. name: unique in the page; title, description: plain text."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # the page's font draws it
        drawing.savefig(buffer, format="svg", metadata=_NO_METADATA, transparent=True)
    root = ElementTree.fromstring(buffer.getvalue())
    for element in list(root.iter()):
        _plain_names(element)
        _restyle(element)
        if (identifier := element.get("id", "")).startswith(TITLE):
            ElementTree.SubElement(element, "title").text = identifier.removeprefix(TITLE)
        for child in [child for child in element if child.tag.endswith(("metadata", "}style"))]:
            element.remove(child)
    _unique_ids(root, name)
    box = root.get("viewBox", "")
    root.attrib.clear()
    root.attrib.update({"viewBox": box, "role": "img", "aria-labelledby": f"{name}-title {name}-desc"})
    for tag, text in (("desc", description), ("title", title)):
        element = ElementTree.Element(tag, {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(0, element)
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _plain_names(element: ElementTree.Element) -> None:
    """Drop XML namespaces: inside HTML an <svg> has its own."""
    element.tag = element.tag.rpartition("}")[2]
    for key in list(element.attrib):
        if "}" in key:
            element.set(key.rpartition("}")[2], element.attrib.pop(key))


def _restyle(element: ElementTree.Element) -> None:
    """Turn colours to variables, drop the font family, and keep two decimals of coordinates."""
    if text := element.get("style"):
        text = re.sub(r"font-family:[^;]*;? ?", "", text)
        element.set("style", re.sub(r"#[0-9a-f]{6}", lambda m: _VARIABLES.get(m[0], m[0]), text))
    for key in ("d", "x", "y", "transform", "width", "height"):
        if value := element.get(key):
            value = re.sub(r"-?\d+\.\d{3,}", lambda m: f"{float(m[0]):.2f}", value)
            element.set(key, " ".join(value.split()))


def _unique_ids(root: ElementTree.Element, name: str) -> None:
    """Keep only identifiers that something refers to, led by the figure's name."""
    text = ElementTree.tostring(root, encoding="unicode")
    used = set(re.findall(r'href="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    for element in root.iter():
        if (identifier := element.attrib.pop("id", None)) in used:
            element.set("id", f"{name}-{identifier}")
        for key in ("href", "clip-path"):
            if link := element.get(key):
                element.set(key, link.replace("#", f"#{name}-"))
