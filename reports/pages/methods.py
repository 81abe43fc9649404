"""The page of methods: every derived figure by its formula, and how figures are measured, spread and drawn."""

from engine.result.metrics import DEFINITIONS
from reports.nights.page import METHODS as NIGHTS
from reports.page import Definitions, Page, PageSection, Paragraph
from reports.text import paragraphs
from reports.words import NOTES

NAME, TITLE = "methods", "Methods"
LEAD = (
    "What every figure of this report is, by its formula: what is counted, what is not, and how it is measured. The "
    "formulas are those that the program computes with, each in one place."
)
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
    words = {title: NIGHTS if title == "Nights" else paragraphs(title, **NOTES) for title in SECTIONS}
    sections = [PageSection(title, tuple(map(Paragraph, each))) for title, each in words.items()]
    return Page([PageSection("Figures", (Definitions(DEFINITIONS),)), *sections], title=TITLE, lead=LEAD)
