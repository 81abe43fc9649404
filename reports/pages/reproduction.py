"""Does it reproduce? Each figure of the papers with its verdict, what was measured beside it, and what to run."""

from collections.abc import Iterable, Sequence

from reports import text
from reports.figures.acceptance import facts, threshold_table
from reports.figures.conditions import condition_table
from reports.figures.reproduction import (
    command_table,
    counts,
    decided_by,
    figure_table,
    heading,
    measured_table,
    remarks,
    waits,
)
from reports.figures.verdicts import picture
from reports.frames.acceptance import check
from reports.frames.frame import Frames
from reports.frames.reproduction import VERDICTS, JudgedFigure, judge_everything
from reports.frames.reproduction.conditions import compared
from reports.page import Block, Facts, Figures, KeyFact, Page, PageSection, Paragraph, nothing_measured
from reports.pages.front import anchor_of, by_paper, has_numbers
from reports.pages.study import WHY, Study, badly_bound
from reports.words import NOTES, STUDIES
from systems import acceptance

REMARKS = {
    "reproduces": "all that can be judged, within tolerances",
    "better": "beyond the tolerance, on the better side",
    "differs": "one number or comparison at least",
    "can't tell": "too few jobs, or not all measured that can be",
    "not run here": "the page says what to run",
    "machine retired": "and nothing of it could be told on another",
}


ELSEWHERE = "in part or all on another machine, by sign"


def build(mine: Frames, everything: Frames) -> Page:
    judged = judge_everything(everything)
    papers = [(paper, some) for paper, some in by_paper(judged).items() if some]
    how = [Paragraph(NOTES[name]) for name in ("figures_of_papers", "beside_published")]
    sections = [PageSection("All figures", [_facts(judged), *how])]
    for paper, some in papers:
        sections.append(PageSection(paper, [figure_table(paper, some)], f"paper-{paper}"))
        sections += [_of_figure(one, everything) for one in some if has_numbers(one)]
    if checked := check(everything, acceptance.known()):
        sections.insert(
            1, PageSection("Thresholds of acceptance", [facts(checked), threshold_table(checked)], "acceptance")
        )
    sections.append(PageSection("What to run", [command_table(judged)]))
    told = sum(one.overall.judged > 0 for one in judged)
    if not any(one.measured for one in judged):
        sections.insert(0, nothing_measured(*STUDIES["reproduction"].run))
    remark = f"{told} of {text.plural(len(judged), 'figure')} told something"
    return Page(sections, headline(judged), empty=not told, remark=remark if told else "")


STUDY = Study("reproduction", 0, lambda runs: runs["kind"] == "", build, shared=True)


def headline(judged: Sequence[JudgedFigure]) -> str:
    """Say how many figures have each verdict, those that were measured first."""
    return ", ".join(f"{number} {words}" for words, number in counts(judged).items())


def _facts(judged: Sequence[JudgedFigure]) -> Facts:
    found = dict.fromkeys(VERDICTS, 0) | counts(judged)
    order = sorted(found, key=lambda words: [words.startswith(verdict) for verdict in VERDICTS], reverse=True)
    facts: list[KeyFact] = [(f"{found[words]}", words, REMARKS.get(words, ELSEWHERE)) for words in order]
    return Facts(facts)


def _of_figure(judged: JudgedFigure, everything: Frames) -> PageSection:
    """Show a figure: the claim, its plot, measured values in words, and what differs from the paper's run."""
    figure, name = judged.figure, anchor_of(judged)
    rest = waits(judged, judged.overall.obstacles if judged.measured else ())
    said = f"{rest[:1].upper()}{rest[1:]}."
    if judged.measured:
        said = f"{decided_by(judged)}." + (f" Not judged: {rest}." if rest else "")
    drawn, table = picture(judged, f"{name}-plot"), measured_table(name, [judged])
    machines = dict.fromkeys(one.machine for part in judged.parts for one in part.findings if one.sample)
    conditions = condition_table(compared(everything, figure, machines), f"{name}-conditions")
    notes, bound = remarks(judged), _badly_bound(judged, everything, machines)
    blocks: list[Block | None] = [Paragraph(figure.says), Paragraph(said)]
    blocks += [Paragraph(f"Remarks: {notes}.") if notes else None, Figures([drawn]) if drawn else None, bound]
    shown = [block for block in (*blocks, table, conditions) if block is not None]
    return PageSection(f"{figure.paper} {figure.where}: {heading(judged)}", shown, name)


def _badly_bound(judged: JudgedFigure, everything: Frames, machines: Iterable[str]) -> Paragraph | None:
    """Say how many jobs of a figure's studies were badly bound; None where none was."""
    studies = {redo.suite for part in judged.parts for redo in part.claim.redo}
    mine = [
        table[table["study"].isin(studies) & table["system"].isin(list(machines)) & (table["status"] == "ok")]
        for table in (everything.runs, everything.contests)
    ]
    bad, jobs = sum(len(badly_bound(table)) for table in mine), sum(map(len, mine))
    return Paragraph(f"{bad:,} of {text.plural(jobs, 'job')} behind it are badly bound. {WHY}") if bad else None
