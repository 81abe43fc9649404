"""Contests with peers: found wherever results are found, and told as they were measured."""

import csv
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order
from sample_contests import RATIOS, contests, held, save_contests, version_1, version_5
from sample_results import as_record, run_report, train, transport
from test_report_load import database
from test_report_pages import visible

from engine.result import metrics
from engine.result.gate import NOTHING_KNOWN, Interval
from engine.result.judges.peers import standing, verdict
from engine.result.schema.peers import PeersResult, parse
from reports.figures.contests import contests_table
from reports.frames.contests import UNEQUAL, checkpointing, frame, points
from reports.frames.frame import frames
from reports.pages import peers
from reports.read.load import Contests, load
from reports.site import build
from reports.words import NOTES


def record(result: PeersResult) -> dict[str, Any]:
    return json.loads(result.to_json())


def table(*results: PeersResult) -> Any:
    return points(frame([Contests(result, "a.json") for result in results])).set_index("peer")


def test_contests_are_found_as_files_in_run_reports_and_in_the_database_and_count_once(tmp_path: Path) -> None:
    report = run_report([record(contests()), as_record(train())])
    save_contests([contests(job=1)], tmp_path)
    (tmp_path / "report.json").write_text(json.dumps(report))
    database(tmp_path / "results.db", report)
    loaded = load([tmp_path])
    assert [run.result.kind for run in loaded.runs] == ["train"]
    assert [found.result.provenance.start for found in loaded.contests] == [
        contests(job=job).provenance.start for job in (1, 0)
    ]
    assert (loaded.skipped, loaded.without_record, loaded.duplicates) == ((), 0, 2)
    assert loaded.statuses == ["ok", "ok", "ok"]


def test_a_contest_of_validation_is_no_race_but_says_there_how_alike_losses_are(tmp_path: Path) -> None:
    labels = {"study": "validation", "system": "local", "partition": "cpu"}
    save_contests([contests(("ddp",)).model_copy(update={"labels": labels})], tmp_path)
    build([tmp_path], tmp_path / "site")
    page = visible(tmp_path / "site" / "validation.html")
    assert "Beside other people's parallelism" in page
    assert "Equal work?" in page
    assert "Paired ratio" not in page
    assert "Nothing measured yet" in visible(tmp_path / "site" / "peers.html")


def test_of_a_network_that_sees_images_these_are_counted() -> None:
    of_text = contests(("ddp",), job=1)
    case = of_text.case | {"model": {"name": "unet-test", "image": 32}}
    of_images = of_text.model_copy(update={"case": case, "provenance": contests(job=2).provenance})
    told = table(of_images).loc["ddp"]
    assert told["ours_images_per_s"] == pytest.approx(8 / told["ours_s"])
    assert math.isnan(told["ours_tokens_per_s"])

    def titles(*results: PeersResult) -> set[str]:
        rows = points(frame([Contests(result, "a.json") for result in results]))
        return {column.title for column in contests_table("all", rows).columns}

    rates, words = {"Tokens/s, ours", "Images/s, ours"}, {"Sequences", "Images", "Sequences or images", "of tokens"}
    assert titles(of_images) & (rates | words) == {"Images/s, ours", "Images"}
    assert titles(of_text) & (rates | words) == {"Tokens/s, ours", "Sequences", "of tokens"}
    assert titles(of_text, of_images) & (rates | words) == {*rates, "Sequences or images", "of tokens"}


def test_contests_that_cannot_be_read_are_listed_with_their_reason(tmp_path: Path) -> None:
    for name, change in (("newer", {"version": 99}), ("odd", {"comparisons": 3})):
        (tmp_path / f"{name}.json").write_text(json.dumps(record(contests()) | change))
    newer, odd = load([tmp_path]).skipped
    assert "up to 6" in newer.reason
    assert "is not a valid" in odd.reason


def test_a_contest_has_the_figures_of_its_result() -> None:
    result = contests()
    told = table(result)
    for found in result.comparisons:
        row = told.loc[found.peer]
        assert found.paired is not None
        assert (row["ratio"], row["low"], row["high"]) == pytest.approx(
            (found.paired.ratio, found.paired.low, found.paired.high)
        )
        assert row["of_medians"] == pytest.approx(found.ratio)
        assert (row["of_medians_low"], row["of_medians_high"]) == pytest.approx(
            (min(found.job_ratios), max(found.job_ratios))
        )
        assert (row["ours_s"], row["peer_s"]) == pytest.approx((found.ours_median_s, found.peer_median_s))
        assert (row["jobs"], row["rounds"], row["failed"], row["compared"]) == (3, 18, 0, 3)
        assert row["losses"] == pytest.approx(1e-5 / 300, rel=1e-6)
        assert row["tolerance"] == pytest.approx(1e-5)
    assert told["verdict"].to_dict() == {
        "fsdp2": "won",
        "fsdp2-reshard": "won",
        "hsdp": "won",
        "tensor-parallel": "lost",
        "ddp": "undecided",
        "plain": "undecided",
    }


def test_the_same_contest_held_again_is_one_with_more_jobs() -> None:
    first, again, elsewhere = contests(("ddp",)), contests(("ddp",), job=5), contests(("ddp",), dtype="fp64", job=6)
    told = points(frame([Contests(result, "a.json") for result in (first, again, elsewhere)]))
    assert sorted(zip(told["dtype"], told["jobs"], strict=True)) == [("fp32", 6), ("fp64", 3)]
    jobs = [job for result in (first, again) for job in result.comparisons[0].jobs]
    pairs = [
        [(sum(ours) / 2, sum(peer) / 2) for ours, peer in zip(job.ours.rounds_s, job.peer.rounds_s, strict=True)]
        for job in jobs
    ]
    assert told.loc[told["dtype"] == "fp32", "ratio"].item() == pytest.approx(metrics.paired(pairs).ratio)


def test_a_failed_contest_has_the_reason_and_those_after_it_were_not_begun() -> None:
    told = table(contests(("fsdp2",), failure="memory is short"))
    reasons = told["reason"].to_dict()
    assert (reasons["fsdp2"], reasons["hsdp"]) == ("", "memory is short")
    assert "not begun" in reasons["tensor-parallel"]
    assert told.loc["hsdp", "verdict"] == "not run"
    assert math.isnan(told.loc["hsdp", "ratio"])
    both = table(contests(("fsdp2", "hsdp")), contests(("fsdp2",), failure="memory is short", job=3))
    assert (both.loc["hsdp", "jobs"], both.loc["hsdp", "failed"]) == (3, 1)


def test_version_1_is_told_with_what_it_kept(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(json.dumps(version_1(contests())))
    loaded = load([tmp_path])
    assert loaded.skipped == ()
    old, new = points(frame(loaded.contests)).set_index("peer"), table(contests())
    assert list(old.loc[list(RATIOS), "ratio"]) == pytest.approx(list(new.loc[list(RATIOS), "ratio"]))
    assert list(old["losses"]) == pytest.approx([1e-5 / 300] * 6, rel=1e-6)
    assert old["norms"].isna().all()
    assert set(old["device"] + old["dtype"]) == {"cpufp32"}


@pytest.mark.parametrize(
    ("interval", "jobs", "told"),
    [
        (Interval(0.8, 0.995), 2, "pass"),
        (Interval(0.8, 1.001), 3, "undecided"),
        (Interval(0.999, 1.2), 3, "undecided"),
        (Interval(1.0, 1.0), 3, "undecided"),
        (Interval(1.001, 1.2), 2, "fail"),
        (Interval(0.8, 0.81), 1, "undecided"),
        (NOTHING_KNOWN, 2, "undecided"),
    ],
)
def test_an_interval_that_holds_1_or_is_of_one_job_decides_nothing(interval: Interval, jobs: int, told: str) -> None:
    assert verdict(interval, jobs) == told


def test_a_target_is_met_missed_or_neither_by_the_whole_interval_and_never_by_one_job() -> None:
    inside, across, outside = Interval(0.9, 0.95), Interval(0.94, 0.96), Interval(0.96, 0.99)
    assert [standing(of, 3, 0.95) for of in (inside, across, outside)] == ["pass", "undecided", "fail"]
    assert [standing(of, 1, 0.95) for of in (inside, across, outside)] == ["undecided"] * 3


def test_targets_that_are_missed_and_met_and_one_that_two_jobs_leave_open_are_told_as_such() -> None:
    """Six jobs that differ by 0.1 % tell; two that differ by 10 % don't."""
    result = contests(("fsdp2", "hsdp"), ratios={"fsdp2": 1.02, "hsdp": 0.5}, jobs=6, spread=0.002)
    targets = {"target": 0.95}
    result = result.model_copy(
        update={"comparisons": tuple(one.model_copy(update=targets) for one in result.comparisons)}
    )
    assert table(result)["standing"].to_dict() == {"fsdp2": "missed", "hsdp": "met"}
    wild = [
        one.model_copy(update=targets)
        for one in contests(("hsdp",), ratios={"hsdp": 0.9}, jobs=2, spread=0.2).comparisons
    ]
    told = table(result.model_copy(update={"comparisons": tuple(wild), "contests": ()}))
    assert (told.loc["hsdp", "verdict"], told.loc["hsdp", "standing"]) == ("undecided", "undecided")


def test_the_interval_of_one_job_of_few_rounds_is_not_known_and_written_so(tmp_path: Path) -> None:
    built(tmp_path, contests=[contests(("fsdp2",), jobs=1, rounds=3)])
    text = visible(tmp_path / "site" / "peers.html")
    assert in_order(visible(tmp_path / "site" / "index.html"), "0 of 1 contest", "0 lost, 1 undecided")
    assert "not known" in text
    assert "inf" not in text.split("Contests")[1].split("Details")[0].split()
    assert "nan" not in text.split()


def over(result: PeersResult, name: str) -> PeersResult:
    return result.model_copy(update={"transport": transport(name)})


def test_the_same_contest_over_another_network_is_another_and_a_failed_one_counts_with_its_own() -> None:
    results = [over(contests(("ddp",), job=0), "IB"), over(contests(("ddp",), job=1), "Socket")]
    told = points(frame([Contests(result, "a.json") for result in results]))
    assert sorted(zip(told["network"], told["jobs"], strict=True)) == [("IB", 3), ("Socket", 3)]
    lost = contests(("fsdp2",), failure="rank 1 died", job=3)
    told = points(frame([Contests(one, "a") for one in (over(contests(("hsdp",)), "IB"), lost)]))
    (row,) = told[told["peer"] == "hsdp"].to_dict("records")
    assert (row["network"], row["jobs"], row["failed"]) == ("IB", 3, 1)


def version_4(result: PeersResult, transport: str) -> PeersResult:
    """As version 4 had it, which counted by which transport the calls of each side went."""
    old = version_5(result) | {"version": 4}
    for one in old["comparisons"]:
        one["road"] = transport
        for job in one["measured"]:
            job["ours"]["carried"] = job["peer"]["carried"] = {"memory" if transport == "own" else transport: 26}
    return parse(old, "old.json")


def headline(results: Sequence[PeersResult]) -> str:
    return peers.STUDY.page(frames((), [Contests(one, "r.json") for one in results])).headline


def test_an_old_contest_whose_sides_had_different_transports_is_another_and_in_no_headline() -> None:
    every = [over(contests(("ddp",), job=job), name) for job, name in enumerate(("tcp", "shared memory", "tcp"))]
    results = [every[0], version_4(every[1], "memory"), version_4(every[2], "own")]
    assert sorted(zip(table(*results)["network"], table(*results)["jobs"], strict=True)) == [
        (UNEQUAL, 3),
        ("shared memory", 3),
        ("tcp", 3),
    ]
    assert "of 2 contests won" in headline(results)
    assert "won" not in headline(results[2:])
    assert "won" not in headline([version_4(every[1], "")]), "nobody had counted"


def test_a_contest_whose_test_found_it_wrong_is_not_held(tmp_path: Path) -> None:
    report = run_report([record(contests(("ddp",)))], result="fail", fail_reason="sanity error: NCCL took Socket")
    save_contests([contests(("ddp",))], tmp_path)
    (tmp_path / "report.json").write_text(json.dumps(report))
    loaded = load([tmp_path])
    (row,) = points(frame(loaded.contests)).to_dict("records")
    assert (row["verdict"], row["jobs"], row["failed"]) == ("not run", 0, 1)
    assert row["reason"].endswith("NCCL took Socket")
    assert loaded.statuses == ["failed"]


def test_the_page_shows_every_contest_with_its_interval_and_the_failed_one_with_its_reason(site: Path) -> None:
    text = visible(site / "peers.html")
    assert in_order(visible(site / "index.html"), "3 of 5 contests", "1 lost, 1 undecided")
    assert "← the engine is" in text
    assert NOTES["intervals"] in text.split("Contests")[0]
    assert in_order(text, "won", "is below 1", "lost", "above")
    (drawn,) = (site / "data").glob("peers-local-cpu-gpt-local-2-fp32-*-ratios.csv")
    rows = {row["peer"]: row for row in csv.DictReader(drawn.open())}
    assert set(rows) == set(RATIOS) - {"plain"}
    row = rows["tensor-parallel"]
    assert f"tensor-parallel 2x1x1x1: {float(row['ratio']):.3f} ({float(row['low']):.3f} to " in text
    assert f" {float(row['low']):.3f} to {float(row['high']):.3f} " in text
    settings = list(csv.DictReader((site / "data" / "peers-settings.csv").open()))
    assert {row["peer"] for row in settings} == {"ddp", "fsdp2", "fsdp2-reshard", "hsdp"}
    assert "fully_shard: reshard_after_forward off off" in text
    assert "hsdp died" in text.split("Failed contests")[1]
    provenance = list(csv.DictReader((site / "data" / "peers-provenance.csv").open()))
    assert len(provenance) == 8
    assert all(Path(row["source"]).is_file() and row["versions"] for row in provenance)


def test_many_contests_are_all_in_tables_and_the_first_ones_of_each_system_drawn(tmp_path: Path) -> None:
    every = [
        held("ddp", jobs=1, rounds=1).model_copy(update={"ranks": ranks, "grid": f"1x1x1x{ranks}"})
        for ranks in range(2, 62)
    ]
    result = contests(("ddp",)).model_copy(update={"comparisons": tuple(every), "contests": ()})
    others = [contests(("ddp",), system=f"s{n}", job=n, jobs=1, rounds=1) for n in range(1, 15)]
    built(tmp_path, contests=[result, *others])
    tables = (tmp_path / "site" / "data").glob("peers-*-contests.csv")
    rows = [row for table in tables for row in csv.DictReader(table.open())]
    assert len(rows) == 60 + 14
    assert (tmp_path / "site" / "peers.html").read_text().count("<svg") == 1 + 14
    assert "The first 40 contests." in visible(tmp_path / "site" / "peers.html")


def test_what_is_recomputed_together_tells_runs_apart_and_old_ones_recomputed_each_block() -> None:
    old, each = {"checkpoint_activations": True}, {"checkpoint_activations": True, "checkpoint_every": 1}
    assert checkpointing(old) == checkpointing(each) == "True"
    assert checkpointing({"checkpoint_activations": False, "checkpoint_every": 0}) == "False"
    assert checkpointing({"checkpoint_activations": True, "checkpoint_every": 4}) == "every 4"
    assert checkpointing({}) == ""
