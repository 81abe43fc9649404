"""The example site, of committed results: pages that take no GPU are filled, claims judged, and no machine is named."""

import gzip
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from waiting import LONG_S

from engine.published.claims import figures
from measured_example.command import MOST_BYTES
from measured_example.entries import read
from measured_example.scrub import DATA, FOLDER, NODE
from reports.frames.frame import of_loaded
from reports.frames.reproduction import JudgedFigure, judge_figures
from reports.pages.study import all_studies
from reports.read.history import NODES as HOSTS
from reports.read.load import load
from reports.read.run_reports import sessions

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "reports" / "example"
FILES = sorted([*EXAMPLE.glob("*/*.json.gz"), *EXAMPLE.glob("*/*.db.gz")])
NOT_IN_THE_EXAMPLE_YET = {"tensor_modes", "evaluation"}
"""Pages whose study was measured after the example was."""
NEEDS_A_GPU = {"gpu", "energy"}
"""Pages of a GPU, and of counters that only GPUs and some hosts have."""
FEWEST_CLAIMS = 12
NODES = {NODE, "n0", "n1", "n2", "n3"}


@cache
def judged() -> list[JudgedFigure]:
    return judge_figures(of_loaded(load([EXAMPLE])), figures())


@pytest.fixture(scope="module")
def site() -> Path:
    """The site that ci/demo --example builds."""
    done = subprocess.run(
        ["bash", "ci/demo", "--example"], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=False
    )
    assert done.returncode == 0, done.stderr
    built = ROOT / "site" / "example"
    assert done.stdout.rstrip().endswith(str(built / "index.html"))
    return built


def test_results_are_small_and_belong_to_an_entry_of_the_list() -> None:
    assert {path.parent.name for path in FILES} <= {entry.name for entry in read()}
    assert sum(path.stat().st_size for path in EXAMPLE.rglob("*")) <= MOST_BYTES


def test_every_result_is_read_and_none_twice() -> None:
    loaded = load([EXAMPLE])
    assert (loaded.files, loaded.skipped, loaded.duplicates) == (len(FILES), (), 0)
    assert set(loaded.statuses) == {"ok"}


def test_every_page_that_takes_no_gpu_is_filled(site: Path) -> None:
    empty = {one.name for one in all_studies() if "Nothing measured yet" in (site / f"{one.name}.html").read_text()}
    assert empty - NEEDS_A_GPU - NOT_IN_THE_EXAMPLE_YET == set()
    assert empty & NEEDS_A_GPU == NEEDS_A_GPU
    assert all((site / f"{one.name}.html").exists() for one in all_studies())


def test_claims_have_verdicts_of_what_was_measured() -> None:
    findings = [(part.claim.place, one) for figure in judged() for part in figure.parts for one in part.findings]
    told = {place for place, one in findings if one.judgement.verdict in ("reproduces", "better", "differs")}
    verdicts = Counter(one.judgement.verdict for _, one in findings)
    assert len(told) >= FEWEST_CLAIMS
    assert verdicts["can't tell"] >= 1
    assert {one.machine for _, one in findings if one.machine} == {"local", "vcluster"}


def test_nights_show_an_episode_that_is_over_a_creep_with_its_slope_and_a_state_with_its_nodes(site: Path) -> None:
    page = (site / "nights-vcluster.html").read_text()
    episodes = pd.read_csv(site / "data" / "nights-vcluster-episodes.csv")
    over = episodes[episodes["ended"].notna()]
    assert set(over["state"]) >= {"closed"}
    (creep,) = over[over["shape"].str.startswith("creep")]["shape"]
    slope, low, high = (float(number) for number in re.findall(r"[\d.]+", creep))
    assert 0 < low < slope < high
    assert {"learnt", "explained"} & {*over["state"]}
    _, comes_and_goes = re.split(r'<section[^>]* id="(?:states|recurring)"', page)
    assert re.search(r"\bn3 \([\d.]+ %", comes_and_goes.partition("</section>")[0])


def test_nights_are_real_jobs_of_an_engine_and_its_update() -> None:
    (nights,) = load([EXAMPLE]).histories
    commits = {job.state["commit"] for job in nights.jobs if job.figures}
    assert len(commits) == 2
    assert not any("modified" in commit for commit in commits)
    assert {node for job in nights.jobs for node in job.state[HOSTS].split(", ")} == NODES - {NODE}


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from strings(key)
            yield from strings(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from strings(one)


def under(value: Any, key: str) -> Iterator[Any]:
    """Give all values of a key, wherever it is."""
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for one in value.values():
            yield from under(one, key)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from under(one, key)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_no_result_names_a_machine_or_a_folder_of_it(path: Path) -> None:
    document = list(sessions(path)) if ".db" in path.suffixes else json.loads(gzip.decompress(path.read_bytes()))
    short = [text for text in strings(document) if len(text) <= DATA or " " in text]
    assert [text for text in short if FOLDER.search(text)] == []
    hosts = {host for listed in under(document, "hosts") for host in listed if isinstance(host, str)}
    assert hosts | {*under(document, "host")} <= NODES


def test_no_page_names_this_machine_or_its_folders(site: Path) -> None:
    words = {str(ROOT), str(Path.home()), os.uname().nodename} - {"/root", "localhost"}
    pattern = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, words))})(?![\w-])")
    pages = [*site.glob("*.html"), *site.glob("data/*.csv")]
    assert len(pages) > len(all_studies())
    assert {page.name: found.group() for page in pages if (found := pattern.search(page.read_text()))} == {}
