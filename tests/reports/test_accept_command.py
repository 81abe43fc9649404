"""`par4d accept`: thresholds just kept, just missed and undecided; exit codes, documents and the page."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from reading import built, table
from sample_results import gemm, save, train

from engine.result.gate import Interval
from engine.result.judges.acceptance import accept
from engine.result.schema import Breakdown
from reports.par4d import main

TIME_S = 18.0


@pytest.fixture(autouse=True)
def own_thresholds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Thresholds are read from a folder of the test's own."""
    folder = tmp_path / "acceptance"
    folder.mkdir()
    monkeypatch.setattr("systems.acceptance.known.__defaults__", (folder,))
    monkeypatch.setattr("systems.acceptance.FOLDER", folder)
    return folder


def threshold(**fields: Any) -> dict[str, Any]:
    known = {"suite": "weak_scaling", "point": "axonn-sc24-512-gpt-5b", "metric": "time_s", "unit": "s"}
    return known | {"source": "contract, section 4"} | fields


def file(folder: Path, *thresholds: dict[str, Any], system: str = "frontier") -> Path:
    path = folder / f"{system}.yaml"
    path.write_text(yaml.safe_dump({"system": system, "thresholds": list(thresholds)}))
    return path


def results(folder: Path, jobs: int = 2) -> str:
    """Jobs whose interval reaches 0.13 % to either side of 18 s."""
    folder.mkdir()
    of = {"series": "axonn-sc24", "overlap": "oar,ors,oag"}
    times = [TIME_S * off for off in (0.9999, 1.0001)][:jobs]
    save([train(time_s=time_s, job=job, **of) for job, time_s in enumerate(times)], folder)
    return str(folder)


@pytest.mark.parametrize(
    ("limits", "outcome", "code"),
    [
        ({"at_most": TIME_S * 1.002}, "pass", 0),
        ({"at_most": TIME_S}, "undecided", 2),
        ({"at_most": TIME_S * 0.998}, "fail", 1),
        ({"at_least": TIME_S * 0.998}, "pass", 0),
        ({"at_least": TIME_S * 1.002}, "fail", 1),
    ],
)
def test_a_limit_just_kept_and_just_missed(
    limits: dict[str, float], outcome: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = file(tmp_path, threshold(**limits))
    folder = results(tmp_path / "r")
    assert main(["accept", "--thresholds", str(given), "--results", folder, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    (found,) = document["thresholds"]
    assert (document["schema"], found["outcome"], found["measured"]["jobs"]) == ("par4d.acceptance", outcome, 2)
    assert found["measured"]["value"] == pytest.approx(TIME_S)


@pytest.mark.parametrize(
    ("jobs", "fields"),
    [
        (1, {}),
        (2, {"point": "axonn-sc24-512-gpt-5bb"}),
        (2, {"suite": "strong_scaling"}),
        (2, {"metric": "images_per_s"}),
    ],
)
def test_too_few_jobs_and_other_points_decide_nothing(jobs: int, fields: dict[str, str], tmp_path: Path) -> None:
    """Planted: one job, a misspelt point, another suite, and a figure that such jobs don't have."""
    unit = {"unit": "images/s"} if fields.get("metric") else {}
    given = file(tmp_path, threshold(at_most=1e9, **fields, **unit))
    out = tmp_path / "out.json"
    assert (
        main(["accept", "--thresholds", str(given), "--results", results(tmp_path / "r", jobs), "--out", str(out)]) == 2
    )
    (found,) = json.loads(out.read_text())["thresholds"]
    assert found["outcome"] == "undecided"
    if fields.get("point"):
        assert "axonn-sc24-512-gpt-5b?" in found["why"]


def test_one_job_of_a_better_layout_takes_no_outcome_away(tmp_path: Path) -> None:
    given, folder = file(tmp_path, threshold(at_most=TIME_S * 1.002)), Path(results(tmp_path / "r"))
    (folder / "more").mkdir()
    save([train(time_s=TIME_S / 2, job=9, grid="4x2x8x8", series="axonn-sc24", overlap="oar,ors,oag")], folder / "more")
    assert main(["accept", "--thresholds", str(given), "--results", str(folder)]) == 0


def test_nothing_exposed_keeps_a_limit(tmp_path: Path) -> None:
    """Planted: every collective is hidden in both jobs, and in one of two."""
    given = file(tmp_path, threshold(metric="exposed_s", at_most=0.1))
    jobs = [train(job=job, series="axonn-sc24", overlap="oar,ors,oag") for job in range(2)]
    hidden = [one.model_copy(update={"breakdown": Breakdown(compute_s=TIME_S, collectives_s=0.0)}) for one in jobs]
    for name, some, code in (("both", hidden, 0), ("one", [hidden[0], jobs[1]], 2)):
        folder = tmp_path / name
        folder.mkdir()
        save(some, folder)
        assert main(["accept", "--thresholds", str(given), "--results", str(folder)]) == code


def test_a_product_is_named_by_its_number_format(tmp_path: Path, own_thresholds: Path) -> None:
    (tmp_path / "r").mkdir()
    save([gemm(job=job) for job in range(2)], tmp_path / "r")
    rate = {"metric": "best_flops_per_s", "unit": "Tflop/s", "at_least": 100}
    file(own_thresholds, threshold(suite="peak", point="frontier-1-bf16", **rate))
    assert main(["accept", "--results", str(tmp_path / "r")]) == 0


def test_a_failed_threshold_fails_reproduce_only_where_asked(
    tmp_path: Path, own_thresholds: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file(own_thresholds, threshold(at_most=1.0))
    words = ["reproduce", "--paper", "par4d", "--results", results(tmp_path / "r"), "--json"]
    assert main(words) == 0
    assert [one["outcome"] for one in json.loads(capsys.readouterr().out)["thresholds"]] == ["fail"]
    assert main([*words, "--fail-on", "differs"]) == 1
    file(own_thresholds, threshold(at_most=TIME_S))
    assert main([*words, "--fail-on", "differs"]) == 0
    assert main([*words, "--fail-on", "differs", "undecided"]) == 1


def test_the_page_has_a_section_for_them(tmp_path: Path, own_thresholds: Path) -> None:
    results(tmp_path / "r")
    file(own_thresholds, threshold(at_most=TIME_S * 1.002), threshold(at_least=1.0, source="<b>"))
    site = built(tmp_path)
    rows = table(site, "reproduction-thresholds")
    assert [(row["outcome"], row["jobs"]) for row in rows] == [("pass", "2"), ("pass", "2")]
    page = (site / "reproduction.html").read_text()
    assert 'id="acceptance"' in page
    assert "&lt;b&gt;" in page
    first = (site / "index.html").read_text()
    assert '<li class="fine">' in first
    assert 'href="reproduction.html#acceptance"' in first


def test_without_thresholds_there_is_no_section_and_the_command_says_where_they_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], own_thresholds: Path
) -> None:
    assert main(["accept", "--results", results(tmp_path / "r")]) == 2
    said = capsys.readouterr().err
    assert str(own_thresholds) in said
    assert said.count("\n") == 1
    assert 'id="acceptance"' not in (built(tmp_path) / "reproduction.html").read_text()


def test_a_threshold_has_one_limit() -> None:
    with pytest.raises(ValueError, match="one limit"):
        accept(Interval(1.0, 2.0), 2)


def test_a_job_that_failed_leaves_a_kept_threshold_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted: a third job of the point, without a time, beside two that keep the limit."""
    given = file(tmp_path, threshold(at_most=TIME_S * 1.002))
    folder = results(tmp_path / "r")
    save([train(job=9, failure="it hung", series="axonn-sc24", overlap="oar,ors,oag")], tmp_path / "r" / "more")
    assert main(["accept", "--thresholds", str(given), "--results", folder, "--json"]) == 2
    (found,) = json.loads(capsys.readouterr().out)["thresholds"]
    assert (found["outcome"], found["measured"]["jobs"]) == ("undecided", 2)
    assert "1 job" in found["why"]
