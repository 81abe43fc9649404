"""The page of one device: what it says at once, and what stands behind it."""

import csv
from pathlib import Path
from typing import Any

import pytest
from reading import built, in_order
from sample_contests import ONE_DEVICE, contests, one_device
from test_report_pages import visible

from engine.result import metrics
from engine.result.schema.peers import PeersResult, Work
from reports.frames.contests import frame, points
from reports.read.load import Contests


def table(*results: PeersResult) -> Any:
    return points(frame([Contests(result, "a.json") for result in results])).set_index("peer")


def test_speeds_shares_and_memory_follow_from_the_result() -> None:
    result = one_device(job=1)
    told = table(result)
    assert set(told.index) == set(ONE_DEVICE)
    assert isinstance(result.work, Work)
    for contest in result.comparisons:
        row = told.loc[contest.peer]
        for side, step_s in (("ours", contest.ours_median_s), ("peer", contest.peer_median_s)):
            flops_per_s = result.work.hardware_flops / step_s
            assert row[f"{side}_tokens_per_s"] == pytest.approx(result.work.tokens / step_s)
            assert row[f"{side}_of_empirical"] == pytest.approx(metrics.utilisation(flops_per_s, 1, 1e11))
    assert told["ours_mfu"].isna().all()
    assert told.loc["compile", "memory_ratio"] == pytest.approx(600 / 520)


def test_the_peaks_of_the_systems_file_stand_in_for_none_of_the_command(site: Path) -> None:
    rows = sides(site, "perlmutter-cpu-amd-epyc")
    engine = next(row for row in rows if row["side"] == "engine")
    assert float(engine["mfu"]) == pytest.approx(float(engine["tokens_per_s"]) / 1024 * 2e10 / 312e12)


def sides(site: Path, machine: str) -> list[dict[str, str]]:
    (file,) = (site / "data").glob(f"single_device-{machine}*-sides.csv")
    return list(csv.DictReader(file.open()))


def test_a_person_sees_at_once_what_a_device_does_beside_others(site: Path) -> None:
    text = visible(site / "single_device.html")
    rows = [row for row in sides(site, "local-cpu-amd-epyc") if row["model"] == "gpt-local-1"]
    assert [row["side"] for row in rows] == ["engine", "plain", "compile", "transformers"]
    first = text.split("Step time by the")[0]
    assert in_order(first, "gpt-local-1, fp32", f"{float(rows[0]['tokens_per_s']):,.0f} tokens/s")
    assert "600 MiB" in first
    for row in rows[1:]:
        assert f"{float(row['ratio']):.3f} of {row['side']}" in first
        assert f"{float(row['ratio']):.3f} ({float(row['low']):.3f} to {float(row['high']):.3f})" in text
    assert {row["side"]: row["verdict"] for row in rows[1:]} == {
        "plain": "won",
        "compile": "lost",
        "transformers": "won",
    }
    assert "of one device: " in visible(site / "index.html")


def test_a_peer_that_is_not_installed_is_a_row_that_says_so_and_no_failure(tmp_path: Path) -> None:
    built(tmp_path, contests=[one_device("llama-local", missing=True)])
    text = visible(tmp_path / "site" / "single_device.html")
    assert "llama-local transformers" in text
    assert "not run" in text
    assert "transformers is not installed" in text
    assert "Failed contests" not in text
    assert "failed" not in visible(tmp_path / "site" / "index.html").split("Single device")[2].split("Peers")[0]


def test_contests_on_more_than_one_device_are_on_the_page_of_peers(tmp_path: Path) -> None:
    built(tmp_path, contests=[contests()])
    one, more = (visible(tmp_path / "site" / f"{name}.html") for name in ("single_device", "peers"))
    assert "plain" in one
    assert "fsdp2" not in one
    assert "fsdp2" in more
    assert "plain PyTorch" not in more.split("Details")[1]
