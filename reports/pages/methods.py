"""The page of methods: every derived figure by its formula, and how figures are measured, spread and drawn."""

from engine.footprint.memory import USABLE
from engine.result.gate import CONFIDENCE
from engine.result.metrics import DEFINITIONS
from reports.columns import INTERVALS
from reports.frames.contests import UNEQUAL
from reports.nights.page import METHODS as NIGHTS
from reports.page import Definitions, Page, Paragraph, Section
from reports.text import paragraphs, percent

NAME, TITLE = "methods", "Methods"
LEAD = (
    "What every figure of this report is, by its formula: what is counted, what is not, and how it is measured. The "
    "formulas are those that the program computes with, each in one place."
)
(MANY,) = paragraphs("many", one_in=1 / (1 - CONFIDENCE))
(UNLIKE,) = paragraphs("unlike", unequal=UNEQUAL)
(ROOM,) = paragraphs("room", usable=percent(USABLE))
SECTIONS = (
    "How it is timed",
    "How spread is given",
    "What colours and lines mean",
    "Which peak",
    "Energy",
    "Published figures",
    "Predictions",
    "Nights",
    "Older results",
)


def page() -> Page:
    notes = {"intervals": INTERVALS, "many": MANY, "unlike": UNLIKE, "room": ROOM}
    words = {title: NIGHTS if title == "Nights" else paragraphs(title, **notes) for title in SECTIONS}
    sections = [Section(title, tuple(map(Paragraph, each))) for title, each in words.items()]
    return Page(TITLE, LEAD, [Section("Figures", (Definitions(DEFINITIONS),)), *sections], "")
