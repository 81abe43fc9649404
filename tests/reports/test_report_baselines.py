"""The page of baselines: who is faster in words, each peer on its best layout, and whether the work was equal."""

import csv
import re
from pathlib import Path

import pytest
from reading import built, in_order, words
from sample_contests import baseline, baselines, parted

from engine.grid import Grid
from engine.peers.layout import Layout
from engine.peers.registry import COMPARISONS
from engine.peers.result_writer import asked_fields
from engine.result.schema.peers import Asked, ContestResult, PeerContest
from reports.frames.contests import ONE_AFTER_THE_OTHER, frame
from reports.read.load import Contests


def page(folder: Path, *more: ContestResult) -> str:
    return (built(folder, contests=[baselines(*more)]) / "baselines.html").read_text()


def test_who_beats_the_engine_stands_at_the_top(tmp_path: Path) -> None:
    html = page(tmp_path, baseline(1.2, Layout(tensor=2)), baseline(0.9, Layout(data=2)))
    top = words(html.split("Time per batch")[0])
    assert "the engine is not" in top
    assert re.search(r"\(tensor=2\) takes 8\d\.\d %", top), top


def test_where_nobody_does_the_lead_over_the_best_of_them_is_told(tmp_path: Path) -> None:
    html = page(tmp_path, baseline(0.9, Layout(tensor=2)))
    top = words(html.split("Time per batch")[0])
    assert "the engine is faster" in top
    assert "not the fastest" not in top


def test_a_loss_that_is_certain_is_not_hidden_by_a_wilder_one_of_the_same_peer(tmp_path: Path) -> None:
    wild = baseline(1.3, Layout(tensor=2))
    one_job = wild.model_copy(update={"jobs": wild.jobs[:1]})
    html = page(tmp_path, one_job, baseline(1.2, Layout(data=2)))
    assert re.search(r"\(data=2\) takes 8\d\.\d %", words(html.split("Time per batch")[0]))


def test_of_one_job_each_who_was_ahead_is_told_and_that_it_decides_nothing(tmp_path: Path) -> None:
    ahead = baseline(1.2, Layout(tensor=2))
    result = baselines(ahead)
    single = [one.model_copy(update={"jobs": one.jobs[:1]}) for one in result.comparisons]
    built(tmp_path, contests=[result.model_copy(update={"comparisons": tuple(single)})])
    top = words((tmp_path / "site" / "baselines.html").read_text().split("Time per batch")[0])
    assert "(tensor=2) was ahead" in top
    assert "One job decides nothing" in top


def test_peers_without_a_contest_are_named_and_the_time_saved_has_its_interval(tmp_path: Path) -> None:
    html = words(page(tmp_path, baseline(0.9, Layout(tensor=2))))
    assert re.search(r"no contest with these.*litgpt", html)
    assert "megatron-core," not in html.split("There was no contest")[1].split("Equal work?")[0]
    assert re.search(r"\d+\.\d %\s\(\d+\.\d %\sto\s\d+\.\d %\)", html)


def test_of_a_peer_the_layout_on_which_it_stood_best_is_drawn_and_all_are_listed(tmp_path: Path) -> None:
    html = page(tmp_path, baseline(0.7, Layout(tensor=2)), baseline(0.9, Layout(data=2)))
    against = words(html.split("Against each peer")[1].split("Equal work?")[0])
    assert "data=2" in against
    assert "tensor=2" not in against
    assert "tensor=2" in words(html.split("Equal work?")[1])


def test_it_is_said_who_chose_our_grid_and_how_a_peer_without_a_layout_of_its_own_is_laid_out(tmp_path: Path) -> None:
    result = baselines()
    labels = result.labels | {"grid_is": "fixed by the series after measuring several"}
    own = {"ddp": {"layout": "1x1x1x2", "does": ""}, "fsdp2": {"does": ""}}
    asked = tuple(one.model_copy(update=own[one.peer]) for one in result.contests)
    result = result.model_copy(update={"labels": labels, "contests": asked})
    built(tmp_path, contests=[result])
    html = words((tmp_path / "site" / "baselines.html").read_text())
    against, equal = html.split("Against each peer")[1].split("Equal work?")
    assert "fixed by the series" in against
    assert "as 1x1x1x2" in equal
    assert "as our grid" in equal
    assert "grid does" not in html


def test_where_a_step_of_either_side_goes_is_drawn_and_listed(tmp_path: Path) -> None:
    site = built(tmp_path, contests=[baselines(parted(baseline(0.9, Layout(tensor=2)), peer=(5, 2, 1, 5)))])
    html = (site / "baselines.html").read_text()
    assert html.count("Parts of a step") == 1
    (path,) = site.glob("**/*step-parts.csv")
    listed = list(csv.DictReader(path.read_text().splitlines()))
    figures = [[float(row[f"{part}_s"]) for part in ("step", "work", "rest", "hidden", "exposed")] for row in listed]
    assert [row["trainer"] for row in listed] == ["the engine", "megatron-core"]
    assert figures == [pytest.approx([1.001 * of for of in row]) for row in ((10, 6, 1, 2, 3), (12, 5, 2, 1, 5))]
    (drawn,) = {*site.glob("**/*-parts.csv")} - {path}
    for row in csv.DictReader(drawn.read_text().splitlines()):
        parts = [float(row[f"{part}_s"]) for part in ("alone", "hidden", "rest", "exposed")]
        assert sum(parts) == pytest.approx(float(row["step_s"])), "as the bars are stacked"


def test_without_profiles_no_parts_are_shown_and_a_lack_is_said(tmp_path: Path) -> None:
    contest = baseline(0.9, Layout(tensor=2))
    assert "Parts of a step" not in page(tmp_path / "without", contest)
    lacking = [
        PeerContest.of(job.ours, job.peer.model_copy(update={"unparted": "<no kernels>"})) for job in contest.jobs
    ]
    html = page(tmp_path / "lacking", contest.model_copy(update={"jobs": tuple(lacking)}))
    assert "megatron-core (&lt;no kernels&gt;)" in html


def test_an_undecided_training_is_neither_won_nor_lost_in_the_headline(tmp_path: Path) -> None:
    result = baselines(baseline(0.9, Layout(tensor=2)))
    single = [one.model_copy(update={"jobs": one.jobs[:1]}) for one in result.comparisons]
    built(tmp_path, contests=[result.model_copy(update={"comparisons": tuple(single)})])
    index = words((tmp_path / "site" / "index.html").read_text())
    assert in_order(index, "0 of 1 training", "0, 1 undecided")


def test_a_layout_that_is_undecided_leaves_the_peer_undecided_though_another_of_its_layouts_is_beaten(
    tmp_path: Path,
) -> None:
    wild = baseline(0.7, Layout(tensor=2))
    top = words(page(tmp_path, wild.model_copy(update={"jobs": wild.jobs[:1]}), baseline(0.9, Layout(data=2))))
    assert "1 peer may" in top


def test_the_work_is_shown_to_be_equal_row_by_row_and_published_gains_stand_beside(tmp_path: Path) -> None:
    html = words(page(tmp_path, baseline(0.9, Layout(tensor=2))).split("Equal work?")[1])
    assert "megatron-core 0.16.1" in html
    assert "vocabulary split over tensor" in html
    assert in_order(html, "GPT-5B", "GPT-80B 64 to 1024", "Par4D/AxoNN Megatron-LM 25 to", "45 %")
    assert "Par4D/AxoNN ZeRO-3" in html
    assert in_order(html, "Perlmutter GPT-80B", "38.0 %", "42.0 %", "57.0 %", "27.0 %", within=12), "HFU by framework"


def test_contests_that_were_not_held_stand_with_the_job_that_they_are_of(tmp_path: Path) -> None:
    """Their ranks never told on what device they were."""
    every = baselines(job=1)
    asked = (Asked(**asked_fields(COMPARISONS["torchtitan"]), missing="torchtitan has no such network"),)
    untold = every.provenance.model_copy(update={"devices": ()})
    none = every.model_copy(update={"comparisons": (), "contests": asked, "provenance": untold})
    built(tmp_path, contests=[baselines(), none])
    html = (tmp_path / "site" / "baselines.html").read_text()
    assert len(re.findall(r"<h2[^>]*>local, cpu, gpt-pair", html)) == 1
    assert "no contest" not in words(html.split("Time per batch")[0])
    assert "torchtitan has no such" in words(html)


def test_what_does_not_fit_is_a_row_and_sides_that_a_device_cannot_hold_at_once_are_told(tmp_path: Path) -> None:
    sentence = "ddp: needs 96.1 GB."
    every = baselines(job=1)
    asked = (Asked(**asked_fields(COMPARISONS["ddp"].with_grid(Grid(data=64))), missing=sentence),)
    apart = tuple(one.model_copy(update={"apart": True}) for one in baselines().comparisons)
    later = every.model_copy(update={"comparisons": (), "contests": asked})
    built(tmp_path, contests=[baselines().model_copy(update={"comparisons": apart}), later])
    text = words((tmp_path / "site" / "baselines.html").read_text())
    assert sentence in text.split("Contests that can't be")[1]
    assert in_order(text, "DistributedDataParallel", "one after the other", within=600)
    older = every.model_copy(update={"case": every.case | {"apart": True}})
    assert set(frame([Contests(older, "older.json")])["apart"]) == {ONE_AFTER_THE_OTHER}


def test_beside_a_u_net_stands_what_is_published_of_its_system(tmp_path: Path) -> None:
    found = baselines()
    seen = {"case": found.case | {"model": {"name": "unet-2b", "image": 32}}}
    others = [found.model_copy(update=seen | {"labels": found.labels | {"system": "perlmutter"}}), baselines(job=1)]
    built(tmp_path, contests=others)
    sections = (tmp_path / "site" / "baselines.html").read_text().split("<h2")
    told = {words(one)[:30]: in_order(words(one), "80 %", "ZeRO-3") for one in sections}
    assert [name for name, said in told.items() if said] == [name for name in told if "perlmutter" in name]
    assert sum(told.values()) == 1


def test_the_page_of_peers_leaves_them_out(tmp_path: Path) -> None:
    page(tmp_path, baseline(0.9, Layout(tensor=2)))
    peers = words((tmp_path / "site" / "peers.html").read_text())
    assert "Megatron-core" not in peers.split("nothing")[0]
    assert "suites/peers.py --system local" in peers
