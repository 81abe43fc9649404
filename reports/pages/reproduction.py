"""Does it reproduce? Each figure of the papers with its verdict, what was measured beside it, and what to run."""

from itertools import groupby

from engine.published.claims import figures
from reports import text
from reports.figures.reproduction import command_table, counts, figure_table, measured_table
from reports.frames.frame import Frames
from reports.frames.reproduction import VERDICTS, JudgedFigure, judge_figures
from reports.page import Block, Facts, KeyFact, Page, PageSection, Paragraph, nothing_measured
from reports.pages.study import Study
from reports.words import NOTES, STUDIES

REMARKS = {
    "reproduces": "all of it, within tolerances",
    "better": "beyond the tolerance, on the better side",
    "differs": "one number or comparison at least",
    "can't tell": "too few jobs, or not all of it measured",
    "not run here": "the page says what to run",
    "machine retired": "and nothing of it could be told on another",
}


ELSEWHERE = "in part or all on another machine, by sign"


def build(mine: Frames, everything: Frames) -> Page:
    judged = judge_figures(everything, figures())
    papers = [(paper, list(some)) for paper, some in groupby(judged, lambda one: one.figure.paper)]
    how = [Paragraph(NOTES[name]) for name in ("figures_of_papers", "beside_published")]
    sections = [PageSection("All figures", [_facts(judged), *how]), *(_section(*one) for one in papers)]
    sections.append(PageSection("What to run", [command_table(judged)]))
    told = sum(one.overall.judged > 0 for one in judged)
    if not any(finding.sample for one in judged for part in one.parts for finding in part.findings):
        sections.insert(0, nothing_measured(*STUDIES["reproduction"].run))
    remark = f"{told} of {text.plural(len(judged), 'figure')} told something"
    return Page(sections, headline(judged), empty=not told, remark=remark if told else "")


STUDY = Study("reproduction", 0, lambda runs: runs["kind"] == "", build, shared=True)


def headline(judged: list[JudgedFigure]) -> str:
    """Say how many figures have each verdict, those that were measured first."""
    return ", ".join(f"{number} {words}" for words, number in counts(judged).items())


def _facts(judged: list[JudgedFigure]) -> Facts:
    found = dict.fromkeys(VERDICTS, 0) | counts(judged)
    order = sorted(found, key=lambda words: [words.startswith(verdict) for verdict in VERDICTS], reverse=True)
    facts: list[KeyFact] = [(f"{found[words]}", words, REMARKS.get(words, ELSEWHERE)) for words in order]
    return Facts(facts)


def _section(paper: str, judged: list[JudgedFigure]) -> PageSection:
    measured = measured_table(paper, judged)
    blocks: list[Block] = [figure_table(paper, judged), *([measured] if measured else [])]
    return PageSection(paper, blocks, f"paper-{paper}")
