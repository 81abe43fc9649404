"""A report of many systems shows each of them: folded, listed and in tables that begin with the system."""

import csv
import re
from pathlib import Path

import pytest
from sample_results import gemm, save, train
from sample_systems import LONGEST, MANY, MARKUP, names, of_system, systems
from test_report_pages import read, visible

from reports.columns import columns_of, failures
from reports.frames.frame import frames
from reports.page import FEW, Table
from reports.pages import energy
from reports.read.load import load
from reports.site import build

OF_ONE_SYSTEM = 10


def test_every_system_has_a_folded_part_of_its_own_and_a_figure_in_it(many_site: Path) -> None:
    html = (many_site / "peak.html").read_text()
    summaries = re.findall(r"<summary><h2>(.*?)</h2> <span>(.*?)</span>", html)
    assert len(summaries) == MANY == html.count("<details>") == html.count("<svg")
    assert all("Tflop/s" in gist for _, gist in summaries)
    seen = visible(many_site / "peak.html")
    assert [name for name in names(MANY) if f"{name}, gpu, one" not in seen] == []
    assert "40 sections, folded" in seen
    anchors = [attributes["id"] for _, attributes in read(many_site / "peak.html").tags if "id" in attributes]
    assert len([anchor for anchor in anchors if anchor.startswith("series-")]) == MANY
    assert len(html) < 2e6


def test_names_with_markup_and_of_sixty_letters_are_shown_as_they_are(many_site: Path) -> None:
    assert f"<b>{MARKUP[3:7]}</b>" not in (many_site / "peak.html").read_text()
    assert MARKUP in visible(many_site / "peak.html")
    assert LONGEST in visible(many_site / "index.html")


def test_the_first_page_lists_many_systems(many_site: Path) -> None:
    rows = list(csv.DictReader((many_site / "data" / "index-systems.csv").open()))
    assert {row["system"] for row in rows} == {*names(MANY)}
    assert {row["jobs"] for row in rows} == {"1", "6"}
    assert rows[0]["study"] == "peak"


def test_a_few_systems_are_not_folded(many_site: Path) -> None:
    assert "<details>" not in (many_site / "weak_scaling.html").read_text()


def test_many_partitions_and_series_of_one_system_are_folded_too(tmp_path: Path) -> None:
    save([gemm(partition=f"p{n}", job=n) for n in range(OF_ONE_SYSTEM)], tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    assert (tmp_path / "site" / "peak.html").read_text().count("<details>") == OF_ONE_SYSTEM > FEW
    assert not (tmp_path / "site" / "data" / "index-systems.csv").exists()


def test_series_beyond_the_last_part_are_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "MOST_SECTIONS", 1)
    save([run for n in (0, 3) for run in of_system(f"s{n}", n, jobs=1, every_study=False)], tmp_path)
    page = energy.STUDY.page(frames(load([tmp_path]).runs))
    (rest,) = [section for section in page.sections if section.title == "Further series"]
    (table,) = rest.blocks
    assert isinstance(table, Table)
    assert set(table.csv["system"]) == {"s3"}


def test_tables_of_several_systems_begin_with_the_system_and_those_of_one_are_without(tmp_path: Path) -> None:
    save([train(system=name, job=n, failure="no") for n, name in enumerate("ab")], tmp_path)
    runs = frames(load([tmp_path]).runs).runs
    keys = [[column.key for column in failures(rows, "x")[0].columns] for rows in (runs, runs[:1])]
    assert keys[0] == ["system", *keys[1]]
    assert [column.key for column in columns_of("system", "model system grid")] == ["system", "model", "grid"]


@pytest.mark.weekly
def test_every_page_of_forty_systems_shows_all_of_them_and_stays_of_a_sensible_size(tmp_path: Path) -> None:
    save(systems(MANY), tmp_path / "r")
    build([tmp_path / "r"], tmp_path / "site")
    for page in ("weak_scaling", "strong_scaling", "peak", "overlap", "pipeline"):
        html = (tmp_path / "site" / f"{page}.html").read_text()
        assert html.count("<details>") == MANY
        assert len(html) < 8e6
