"""A result whose ranks were badly bound is shown, and marked wherever it stands."""

import csv
import html
import json
from pathlib import Path

import pytest
from conftest import HOSTILE
from sample_contests import contests, save_contests
from sample_results import gemm, save, train
from test_report_browser import CHROMIUM, ask

from engine.result.schema.machine import BindingFault, Bindings, NodeBinding, RankBinding
from reports.read.load import load
from reports.site import build, pages

SAID = f"Shared on {HOSTILE}."
FAULT = BindingFault(kind="cores shared", first_rank=0, host=HOSTILE, ranks=2, said=SAID)
NODE = NodeBinding(host=HOSTILE, first_rank=0, ranks=(RankBinding(cores="0", threads=1),) * 2)
BAD, GOOD = Bindings(nodes=(NODE,), faults=(FAULT,)), Bindings(nodes=(NODE,))
MARKS = """
const marks = [...page.querySelectorAll("td .warn")].filter((mark) => mark.getBoundingClientRect().width > 0);
const notice = page.querySelector(".notices .worse");
return {
  titles: marks.map((mark) => mark.title), title: page.title,
  notice: notice && notice.getBoundingClientRect().bottom <= page.querySelector("svg").getBoundingClientRect().top,
};
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    folder.mkdir()
    made = [
        train(ranks=512, environment={"bindings": BAD}),
        train(ranks=1024, model="gpt-10b", job=1, environment={"bindings": GOOD}),
        train(ranks=2048, model="gpt-20b", job=2),
        gemm(job=3),
    ]
    save(made, folder)
    bad = contests()
    bad = bad.model_copy(update={"provenance": bad.provenance.model_copy(update={"bindings": BAD})})
    save_contests([bad], folder)
    return folder


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def test_a_badly_bound_job_is_told_at_the_top_and_marked_in_tables(results: Path) -> None:
    loaded = load([results])
    assert not loaded.skipped
    files = pages(loaded)
    weak, peak = files["weak_scaling.html"], files["peak.html"]
    said = html.escape(SAID).replace("&#x27;", "&#39;").replace("&quot;", "&#34;")
    assert weak.index("Badly bound") < weak.index("<svg")
    assert weak.count(f'class="warn" role="img" title="{said}"') >= 2  # a point, and its job
    assert HOSTILE not in weak
    assert "Badly bound" not in peak
    assert "Badly bound" in files["peers.html"]
    assert "1 badly bound" in files["index.html"]


def test_a_verdict_says_how_many_jobs_behind_it_are_badly_bound(tmp_path: Path) -> None:
    bindings = (BAD, GOOD, GOOD)
    jobs = [
        train(
            job=job,
            series="axonn-sc24",
            overlap="oar,ors,oag",
            tuning={"tune_matmul": True},
            environment={"bindings": one},
        )
        for job, one in enumerate(bindings)
    ]
    save(jobs, tmp_path)
    page = pages(load([tmp_path]))["reproduction.html"]
    assert page.index('id="axonn-sc24-fig-6"') < page.index("1 of 3 jobs")


def test_the_csv_has_the_mark(results: Path) -> None:
    files = pages(load([results]))
    (points,) = (text for name, text in files.items() if name.startswith("data/weak_scaling-") and "points" in name)
    assert [(row["ranks"], row["binding"]) for row in rows(points)] == [("512", SAID), ("1024", ""), ("2048", "")]
    of_jobs = rows(files["data/weak_scaling-provenance.csv"])
    assert [row["binding"] for row in of_jobs] == ["", "", SAID]


def test_results_of_before_bindings_are_read_and_unmarked(tmp_path: Path) -> None:
    (path,) = save([train()], tmp_path)
    data = json.loads(path.read_text())
    del data["provenance"]["bindings"]
    path.write_text(json.dumps(data))
    loaded = load([tmp_path])
    assert loaded.runs[0].result.provenance.bindings is None
    assert 'class="warn"' not in pages(loaded)["weak_scaling.html"]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)")
def test_the_mark_is_seen_in_a_browser_and_runs_nothing(results: Path, tmp_path: Path) -> None:
    build([results], tmp_path / "site")
    seen = ask((tmp_path / "site/weak_scaling.html").read_text(), MARKS, tmp_path)
    assert (set(seen["titles"]), seen["notice"], seen["title"][:4]) == ({SAID}, True, "Weak")
