"""The first page by papers and figures, the plots of measured figures, and conditions beside them."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order, table, words
from sample_ablation import ablation, in_turns
from sample_results import gemm, save, train

from engine.published.claims import figures
from engine.published.conditions import FACTS
from reports.figures.reproduction import as_text, decided_by, heading
from reports.figures.verdicts import MOST_TRACKS, SIGNS, picture
from reports.frames.frame import of_loaded
from reports.frames.reproduction import judge_figures
from reports.frames.reproduction.conditions import compared
from reports.pages.front import NOT_BUILT, front
from reports.plots.verdicts import Panel, Spot, Track, verdicts
from reports.read.load import load

SMALLEST_S = 17.9127
"""Published seconds of GPT-5B on 512 GCDs (axonn-sc24 Table III)."""


def results(folder: Path, by: float = 1.0) -> list[Any]:
    """Two jobs on Frontier beside the paper's 512 GCDs, and an ablation on vcluster."""
    of: dict[str, Any] = {"series": "axonn-sc24", "overlap": "oar,ors,oag", "tuning": {"tune_matmul": True}}
    times = [SMALLEST_S * by * off for off in (0.9999, 1.0001)]
    return [train(time_s=time_s, job=job, **of) for job, time_s in enumerate(times)] + ablation(jobs=2, job=30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verdicts")
    return built(folder, results(folder, by=3.0))


def rows(page: str, paper: str) -> str:
    found = re.search(rf'<section class="paper" id="{paper}">(.*?)</section>', page, re.DOTALL)
    assert found
    return found[1]


def test_the_first_page_has_every_figure_of_papers_and_tables_of_trainers_once(site: Path) -> None:
    page = (site / "index.html").read_text()
    papers = re.findall(r'<section class="paper" id="([^"]*)">', page)
    of_papers = {"par4d", "axonn-4d-arxiv", "axonn-sc24", "axonn-ipdps22", "colossal-ai"}
    assert set(papers) == of_papers | {"llm-foundry", "torchtitan"}
    for paper in papers:
        places = re.findall(r"<a [^>]*>([^<]*)</a>", rows(page, paper))
        wanted = [] if paper == "axonn-4d-arxiv" else [one.where for one in figures(paper)]
        assert sorted(places) == sorted(wanted)


def test_a_verdict_has_a_sign_and_a_word_and_leads_to_its_plot(site: Path) -> None:
    page, detail = (site / "index.html").read_text(), (site / "reproduction.html").read_text()
    measured = re.search(r'<li class="red">.*?</li>', rows(page, "axonn-sc24"), re.DOTALL)
    assert measured
    assert in_order(words(measured[0]), SIGNS["differs"][0], "differs", "Fig. 6", within=20)
    assert 'href="reproduction.html#axonn-sc24-fig-6"' in measured[0]
    assert 'id="axonn-sc24-fig-6"' in detail
    assert len({sign for sign, _ in SIGNS.values()}) == len(SIGNS)


def test_what_was_not_run_is_a_line_with_its_reason(site: Path) -> None:
    page = (site / "index.html").read_text()
    waiting = [words(one) for one in re.findall(r"<li[^>]*>(?:(?!</li>).)*</li>", rows(page, "colossal-ai"), re.DOTALL)]
    assert any(NOT_BUILT in one for one in waiting)
    retired = words(rows(page, "axonn-ipdps22"))
    assert in_order(retired, "Fig. 9", "machine retired", "Summit")
    assert in_order(retired, "Fig. 10", "any machine", "Summit is retired", within=60)
    assert "node-hours" not in retired
    assert max(map(len, waiting)) < 120


def test_the_plot_has_published_tolerated_and_measured_values_in_one_unit(site: Path) -> None:
    found = table(site, "reproduction-axonn-sc24-fig-6-plot")
    (point,) = [row for row in found if row["machine"] == "frontier" and row["scale"].endswith(", s")]
    number = {key: float(point[key]) for key in ("published_low", "tolerated_high", "value", "low", "high")}
    assert number["published_low"] == pytest.approx(SMALLEST_S)
    assert number["tolerated_high"] == pytest.approx(1.1 * SMALLEST_S)
    assert number["low"] < number["value"] < number["high"]
    assert number["value"] == pytest.approx(3 * SMALLEST_S)
    assert (point["verdict"], point["by_sign"]) == ("differs", "False")
    assert {row["verdict"] for row in found if row["machine"] != "frontier"} == {"not run here"}


def test_leads_and_shares_of_another_machine_are_by_sign(site: Path) -> None:
    found = table(site, "reproduction-par4d-fig-3-plot")
    assert {row["by_sign"] for row in found} == {"True"}
    leads = [row for row in found if row["scale"].startswith("lead")]
    assert {(row["tolerated_low"], row["tolerated_high"]) for row in leads} == {("0.0", "inf")}
    assert len({row["scale"] for row in found}) == 2


def test_conditions_stand_beside_the_verdict_with_what_is_compared(site: Path) -> None:
    found = {row["fact"]: row for row in table(site, "reproduction-axonn-sc24-fig-6-conditions")}
    assert set(found) <= set(FACTS.values())
    assert found["PyTorch"]["paper_0"] == "2.2.1"
    assert found["PyTorch"]["compared"] == "differs"
    assert found["Device"]["here_0"] == "AMD Instinct MI250X"


@pytest.mark.parametrize(
    ("version", "standing"),
    [("2.2.1", "same"), ("2.2.1+rocm5.7", "same"), ("2.2", "same"), ("2.2.10", "differs"), ("", "not recorded")],
)
def test_a_version_is_the_same_with_what_it_was_built_with(version: str, standing: str, tmp_path: Path) -> None:
    environment = {"versions": {"torch": version} if version else {}, "hosts": ("f1",), "launcher": "srun"}
    save([train(series="axonn-sc24", environment=environment)], tmp_path)
    frames = of_loaded(load([tmp_path]))
    (figure,) = (one for one in figures("axonn-sc24") if one.where == "Fig. 6")
    (found,) = compared(frames, figure, ["frontier"])
    (torch,) = (fact for fact in found.facts if fact.name == "torch")
    assert (found.conditions.system, torch.standing) == ("Frontier", standing)


@pytest.mark.parametrize(
    ("tuned", "overlap", "expected"),
    [
        ((True, True), "oar,ors,oag", {"products": "same", "overlap": "same", "precision": "same"}),
        ((False, False), "oar,ors,oag", {"products": "differs", "overlap": "same", "precision": "same"}),
        ((True, False), "oar,ors,oag", {"products": "differs", "overlap": "same", "precision": "same"}),
        ((True, True), "none", {"products": "same", "overlap": "differs", "precision": "same"}),
    ],
)
def test_options_of_the_runs_stand_beside_the_papers(
    tuned: tuple[bool, ...], overlap: str, expected: dict[str, str], tmp_path: Path
) -> None:
    """Planted: products that one job or all of them didn't tune, and no overlap. A second training isn't meant."""
    runs = [
        train(series="axonn-sc24", overlap=overlap, tuning={"tune_matmul": one}, job=job)
        for job, one in enumerate(tuned)
    ]
    second = train(series="axonn-sc24", tuning={"tune_matmul": True}, job=9, variant="overlap all")
    save([*runs, second], tmp_path)
    (figure,) = (one for one in figures("axonn-sc24") if one.where == "Fig. 6")
    (found,) = compared(of_loaded(load([tmp_path])), figure, ["frontier"])
    standings = {fact.name: fact.standing for fact in found.facts}
    assert {name: standings[name] for name in expected} == expected


def test_machines_are_judged_together_and_open_ones_named(tmp_path: Path) -> None:
    """Planted: the rule of before, by which an open machine undid what another reproduces."""
    names = ("none", "oar,ors,oag,cache=2")
    clear = [in_turns(names, [[[1.0]] * 6, [[0.7 + 0.001 * job]] * 6], job=job) for job in range(2)]
    unclear = [
        in_turns(names, [[[1.0]] * 6, [[took]] * 6], job=10 + job, system="local")
        for job, took in enumerate((0.6, 1.3))
    ]
    save([*clear, *unclear], tmp_path)
    (judged,) = judge_figures(of_loaded(load([tmp_path])), [one for one in figures("par4d") if one.where == "Fig. 3"])
    (part,) = (one for one in judged.parts if one.claim.name == "all four")
    (answer,) = part.answers.values()
    assert {one.machine: one.judgement.verdict for one in part.findings} == {
        "local": "can't tell",
        "vcluster": "reproduces",
    }
    assert (part.overall[:3], answer.by, answer.open) == (("reproduces", 1, 1), ("vcluster",), ("local",))


def test_what_nothing_here_can_judge_leaves_no_figure_open_and_is_told(tmp_path: Path) -> None:
    """Planted: a claim that isn't built and one beyond the queue beside two that reproduce; and one that wasn't run."""
    save([gemm(job=job) for job in range(2)], tmp_path)
    frames = of_loaded(load([tmp_path]))
    peaks, scaling = (
        next(one for one in figures("axonn-sc24") if one.where == where) for where in ("section VI-C", "Fig. 9")
    )
    unbuilt = [one.model_copy(update={"status": "not built"}) for one in peaks.claims if one.kind == "ratio"]
    peaks = peaks.model_copy(update={"claims": (*(one for one in peaks.claims if one.kind != "ratio"), *unbuilt)})
    names = {"MI250X", "share of an MI250X", "flops of the formula", "GPT-640B on 512"}
    mine = tuple(one for figure in (peaks, scaling) for one in figure.claims if one.name in names)
    (judged,) = judge_figures(frames, [peaks.model_copy(update={"claims": mine})])
    assert judged.overall == ("reproduces", 2, 4, 2, ("not built", "beyond the queue"))
    assert heading(judged) == "reproduces, 2 of 4"
    told = "2 of 4 told by frontier; the rest: not built and beyond the queue"
    assert decided_by(judged) == told
    assert f"section VI-C: reproduces, {told}." in as_text([judged])
    (row,) = (row for paper in front([judged]).verdicts.papers for row in paper.measured)
    assert (row.verdict, row.remark) == ("reproduces, 2 of 4", told)
    (whole,) = judge_figures(frames, [peaks])
    assert whole.overall == ("can't tell", 2, 7, 1, ("not built",))
    assert heading(whole) == "can't tell", "not of the two that have a verdict"
    assert "1 of 7: not built" in decided_by(whole)


def test_without_results_the_first_page_has_all_figures_in_short_lines(tmp_path: Path) -> None:
    judged = judge_figures(of_loaded(load([])), figures())
    papers = front(judged).verdicts.papers
    assert sum(len(paper.waiting) for paper in papers) == len(judged)
    assert not any(paper.measured for paper in papers)
    table_3 = next(one for one in judged if (one.figure.paper, one.figure.where) == ("par4d", "Table III"))
    drawn = picture(table_3, "x")
    assert drawn is not None, "published numbers stand there before anything is measured"
    assert list(drawn.csv["published_low"][:5]) == pytest.approx([67, 63, 67, 64, 57])
    assert drawn.csv["value"].isna().all()


def test_a_plot_of_odd_values_is_drawn() -> None:
    """Values that are far apart, unknown, or the only one; nothing of it warns or fails."""
    far = [Spot("a", "? can't tell", "gold", value, value / 2, math.inf) for value in (1e-3, 1.0, 1e6)]
    one = [Track("x" * 90, "y" * 90, [spot], [(2.0, 2.0)], -math.inf, 2.2) for spot in far]
    alone = Track("one", "0", [Spot("b", "\u25cb not run here", "muted")], [(0.0, 0.0)], 0.0, 0.0)
    drawn = verdicts([Panel("time, s", one), Panel("share, %", [alone], 0.0)])
    left, right = drawn.axes[0].get_xlim()
    assert 0 < left < 1e-3
    assert right > 1e6
    assert drawn.axes[0].get_xscale() == "log"
    assert MOST_TRACKS > 10
