"""`par4d reproduce` in this process: lists, documents, exit codes, and the page of the report."""

import json
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order, table, words
from sample_ablation import ablation
from sample_results import gemm, save, train, validation

from engine.published.claims import Claim, Figure, figures
from reports.figures.reproduction import commands_of, example_of, waiting_of
from reports.frames.frame import of_loaded
from reports.frames.reproduction import judge_everything, judge_figures
from reports.par4d import main
from reports.read import load as reading

SLOW_S = 3 * 17.9127


def document(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["reproduce", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def results(folder: Path) -> Path:
    """Two jobs of GPT-5B on 512 GCDs that take three times as long as published, and an ablation elsewhere."""
    folder.mkdir(exist_ok=True)
    slow = [
        train(time_s=SLOW_S * off, job=job, series="axonn-sc24", overlap="oar,ors,oag", tuning={"tune_matmul": True})
        for job, off in enumerate((0.9999, 1.0001))
    ]
    save([*slow, *ablation(jobs=2, job=30)], folder)
    return folder


def test_a_difference_is_a_result_and_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "found.json"
    found = document(capsys, "--paper", "axonn-sc24", "--results", str(results(tmp_path / "r")), "--out", str(out))
    assert json.loads(out.read_text()) == found
    assert (found["schema"], found["version"]) == ("par4d.reproduction", 1)
    (of,) = (one for one in found["figures"] if one["where"] == "Fig. 6")
    assert of["verdict"] == "differs"
    (part,) = (one for one in of["claims"] if one["name"] == "times on Frontier")
    (same,) = (claim for one in figures("axonn-sc24") for claim in one.claims if claim.digest == part["digest"])
    assert (part["tolerance"], part["verdict"], same.name) == (0.1, "differs", part["name"])
    measured = [one for one in part["findings"] if one["measured"]]
    assert [(one["verdict"], one["by_sign"], one["off"] > 1.9) for one in measured] == [("differs", False, True)]
    assert measured[0]["measured"] | {"of": ""} == {
        **{"value": pytest.approx(SLOW_S), "low": pytest.approx(SLOW_S, rel=2e-3)},
        **{"high": pytest.approx(SLOW_S, rel=2e-3), "jobs": 2, "of": "", "machine": "frontier"},
    }


def test_the_document_says_what_a_verdict_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save([gemm(job=job) for job in range(2)], tmp_path)
    planted = [one.model_copy(update={"claims": unbuilt(one)}) for one in figures("axonn-sc24")]
    monkeypatch.setattr("reports.reproduce.figures", lambda paper="": planted)
    found = document(capsys, "--figure", "section VI-C", "--results", str(tmp_path))
    (of,) = (one for one in found["figures"] if one["paper"] == "axonn-sc24")
    assert (of["verdict"], of["judged"], of["targets"], of["left_out"]) == ("can't tell", 2, 7, 1)
    assert of["obstacles"] == ["not built"]
    told = {one["name"]: [each["obstacle"] for each in one["findings"]] for one in of["claims"]}
    assert (told["flops of the formula"], told["A100"]) == (["not built"], [""])


def unbuilt(figure: Figure) -> tuple[Claim, ...]:
    """Return a figure's claims, of which that on the formula's flops isn't built."""
    return tuple(
        one.model_copy(update={"status": "not built"} if one.name == "flops of the formula" else {})
        for one in figure.claims
    )


def test_a_loss_without_bound_differs_in_words_that_json_can_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted: the parallel training lost its loss."""
    serial, parallel = validation()
    lost = [one.model_copy(update={"loss": 0.0}) for one in serial.iterations]
    runs = [parallel, parallel.model_copy(update={"config": parallel.config | {"out": "again"}})]
    save([serial.model_copy(update={"iterations": tuple(lost)}), *runs], tmp_path)
    assert main(["reproduce", "--paper", "par4d", "--json", "--results", str(tmp_path)]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(name))
    (of,) = (one for one in found["figures"] if one["where"] == "Fig. 8")
    (one,) = (one for one in of["claims"][0]["findings"] if one["measured"])
    assert (one["verdict"], one["measured"]["value"], one["off"]) == ("differs", None, None)


def test_a_claim_that_any_network_answers_says_which_and_for_how_many_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(validation(), tmp_path)
    assert main(["reproduce", "--paper", "par4d", "--figure", "fig. 8", "--results", str(tmp_path)]) == 0
    assert in_order(capsys.readouterr().out, "GPT: gpt-test", "2x2x2x2", "60 steps", within=80)
    (judged,) = judge_figures(
        of_loaded(reading.load([tmp_path])), [one for one in figures("par4d") if one.where == "Fig. 8"]
    )
    assert in_order(example_of(judged), "GPT", "gpt-test", "60 steps", within=120)


def test_the_table_shows_published_beside_measured_and_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--figure", "fig. 3", "--paper", "par4d", "--results", str(results(tmp_path))]) == 0
    said = capsys.readouterr().out
    assert in_order(said, "all four", "34 %", "2", "vcluster", "reproduces", within=120)
    assert "reframe --system perlmutter -c suites/overlap_ablation.py -n par4d-16-gpt-20b" in said


def test_one_machine_alone_is_asked_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = results(tmp_path)
    mine = document(capsys, "--system", "vcluster", "--results", str(folder))
    machines = {
        one["measured"]["machine"]
        for figure in mine["figures"]
        for claim in figure["claims"]
        for one in claim["findings"]
        if one["measured"]
    }
    assert machines == {"vcluster"}
    assert {one["where"] for one in mine["figures"]} == {"Fig. 3", "Fig. 5", "Fig. 7"}


def test_a_list_reads_no_results(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("results were read")

    monkeypatch.setattr(reading, "load", refuse)
    assert main(["reproduce", "--list", "--results", "/nowhere"]) == 0
    said = capsys.readouterr().out
    assert in_order(said, "par4d Fig. 3", "suites/overlap_ablation.py", "2")
    listed = document(capsys, "--list", "--system", "alps")
    assert {claim["system"] for figure in listed["figures"] for claim in figure["claims"]} == {"Alps"}


def test_a_papers_other_name_has_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert document(capsys, "--list", "--paper", "axonn-4d-arxiv") == document(capsys, "--list", "--paper", "par4d")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--paper", "axonn-sc25"), "axonn-sc24"),
        (("--figure", "Fig. 99", "--paper", "par4d"), "Fig. 12"),
        (("--system", "frontear"), "frontier"),
        (("--list", "--system", "local"), "--dry-run"),
        (("--results", "/nowhere"), "/nowhere"),
        (("--out", f"{__file__}/x.json"), "--out"),
        (("--listed",), "--help"),
    ],
)
def test_what_there_is_is_named(options: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", *options]) == 2
    said = capsys.readouterr()
    assert named in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_what_was_judged_by_its_numbers_needs_no_more_runs(tmp_path: Path) -> None:
    judged = judge_figures(of_loaded(reading.load([results(tmp_path)])), figures())
    places = {(place, claim.name) for place, claim in waiting_of(judged)}
    assert ("par4d Fig. 3", "all four") in places, "only who is ahead was told, elsewhere"
    peak = judge_figures(of_loaded(reading.load([_peaks(tmp_path / "p")])), figures("axonn-sc24"))
    assert "MI250X" not in {claim.name for place, claim in waiting_of(peak) if place == "axonn-sc24 section VI-C"}
    assert all("summit" not in one.words for one in commands_of(waiting_of(judged)))


def _peaks(folder: Path) -> Path:
    folder.mkdir()
    save([gemm(job=job) for job in range(2)], folder)
    return folder


def test_the_page_has_each_figure_with_its_verdict_in_words(tmp_path: Path) -> None:
    results(tmp_path / "r")
    site = built(tmp_path)
    rows = {row["where"]: row["verdict"] for row in table(site, "reproduction-axonn-sc24-figures")}
    assert rows["Fig. 6"] == "differs"
    assert rows["Fig. 5"] == "reproduces (who is ahead)"
    assert rows["Fig. 10"] == "not run here"
    assert set(rows) == {one.where for one in figures("axonn-sc24")}
    page = (site / "reproduction.html").read_text()
    assert '<td class="bad">differs</td>' in page
    assert '<td class="good">reproduces (who is ahead)</td>' in page
    first = words((site / "index.html").read_text())
    assert in_order(first, "Does it reproduce?", "Weak scaling")


def _noted(figure: Figure, note: str) -> Figure:
    """The same figure, whose first claims have this note."""
    first, second, *others = figure.claims
    claims = tuple(one.model_copy(update={"note": note}) for one in (first, second))
    return figure.model_copy(update={"claims": (*claims, *others)})


def test_a_claims_remark_is_told_once_wherever_its_figure_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a note with a tag, of two claims of a figure that is measured, and of two of one that isn't."""
    note, measured, waiting = "only <b>half</b> of it", "Fig. 6", "Table I"
    noted = tuple(_noted(one, note) if one.where in (measured, waiting) else one for one in figures("axonn-sc24"))
    monkeypatch.setattr("reports.reproduce.figures", lambda paper="": noted)
    monkeypatch.setattr("reports.frames.reproduction.figures_of_papers", lambda: noted)
    found = document(capsys, "--results", str(results(tmp_path / "r")))
    notes = {(of["where"], part["name"]): part["note"] for of in found["figures"] for part in of["claims"]}
    names = [(one.where, part.name) for one in noted for part in one.claims if part.note == note]
    assert [notes[name] for name in names] == 4 * [note]
    assert main(["reproduce", "--results", str(tmp_path / "r")]) == 0
    assert capsys.readouterr().out.count(note) == 2
    judge_everything.cache_clear()
    site = built(tmp_path)
    judge_everything.cache_clear()
    page = (site / "reproduction.html").read_text()
    assert note not in page
    assert words(page).count(note) == 4, "in the table of all, and beside each plot"
    rows = {row["where"]: row["note"] for row in table(site, "reproduction-axonn-sc24-figures")}
    assert [note in rows[where] for where in (measured, waiting, "Fig. 10")] == [True, True, False]


def test_without_results_the_page_lists_what_to_run(tmp_path: Path) -> None:
    site = built(tmp_path)
    commands = {row["command"] for row in table(site, "reproduction-commands")}
    assert "reframe --system perlmutter -c suites/overlap_ablation.py -n par4d-16-gpt-20b" in commands
    assert not (site / "data" / "reproduction-par4d-measured.csv").exists()
