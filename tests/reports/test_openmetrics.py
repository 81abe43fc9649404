"""OpenMetrics of verdicts and nights, read back by the parser of prometheus_client."""

import json
from pathlib import Path

import pytest
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from sample_ablation import ablation
from sample_nights import slowed, store
from sample_results import save, train

from engine.published import UNITS
from reports import openmetrics
from reports.par4d import main
from reports.reproduction_document import BASE_UNITS

SLOW_S = 3 * 17.9127


def read(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family: Metric, **labels: str) -> list[float]:
    return [one.value for one in family.samples if labels.items() <= one.labels.items()]


def states(family: Metric, **labels: str) -> set[str]:
    found = [one for one in family.samples if labels.items() <= one.labels.items() and one.value == 1]
    return {one.labels[family.name] for one in found}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Metric], dict[str, object]]:
    """Metrics and document of GPT-5B on 512 GCDs three times too slow, and of an ablation elsewhere."""
    folder = tmp_path_factory.mktemp("r")
    times = [SLOW_S * off for off in (0.9999, 1.0001)]
    slow = [
        train(time_s=one, job=job, series="axonn-sc24", overlap="oar,ors,oag", tuning={"tune_matmul": True})
        for job, one in enumerate(times)
    ]
    save([*slow, *ablation(jobs=2, job=30)], folder)
    text, out = folder / "m.txt", folder / "all.json"
    assert main(["reproduce", "--results", str(folder), "--openmetrics", str(text), "--out", str(out)]) == 0
    assert text.read_text().endswith("# EOF\n")
    return read(text.read_text()), json.loads(out.read_text())


def test_a_figure_has_one_state(written: tuple[dict[str, Metric], dict[str, object]]) -> None:
    families, document = written
    verdicts = families["par4d_figure_verdict"]
    assert verdicts.type == "stateset"
    assert states(verdicts, paper="axonn-sc24", figure="Fig. 6") == {"differs"}
    assert states(verdicts, paper="par4d", figure="Fig. 9") == {"not run here"}
    figures = document["figures"]
    assert isinstance(figures, list)
    assert sum(one.value for one in verdicts.samples) == len(figures)
    assert len(verdicts.samples) == len(figures) * len(openmetrics.VERDICTS)


def test_a_measured_value_stands_between_its_ends_in_its_unit(
    written: tuple[dict[str, Metric], dict[str, object]],
) -> None:
    families, _ = written
    of = {"paper": "axonn-sc24", "figure": "Fig. 6", "claim": "times on Frontier", "machine": "frontier"}
    (middle,) = value(families["par4d_measured_seconds"], **of)
    (low,) = value(families["par4d_measured_low_seconds"], **of)
    (high,) = value(families["par4d_measured_high_seconds"], **of)
    assert families["par4d_measured_seconds"].unit == "seconds"
    assert low < middle < high
    assert middle == pytest.approx(SLOW_S)
    (target,) = {
        one.labels["target"] for one in families["par4d_measured_seconds"].samples if of.items() <= one.labels.items()
    }
    known = {"paper": "axonn-sc24", "figure": "Fig. 6", "claim": "times on Frontier", "target": target}
    (most,) = value(families["par4d_tolerated_high_seconds"], **known)
    assert most == pytest.approx(1.1 * 17.9127)
    assert states(families["par4d_measured_verdict"], **of) == {"differs"}


def test_every_rate_has_a_unit_of_its_own() -> None:
    rates = [unit for unit in UNITS if unit.endswith("/s")]
    assert [unit for unit in rates if unit not in BASE_UNITS] == []


def test_every_sample_is_one_alone(written: tuple[dict[str, Metric], dict[str, object]]) -> None:
    families, _ = written
    for family in families.values():
        places = [(one.name, tuple(sorted(one.labels.items()))) for one in family.samples]
        assert len(set(places)) == len(places), family.name


def test_hostile_names_are_labels_and_nothing_else() -> None:
    """Planted: quotes, backslashes and lines that would begin a metric of their own."""
    name = 'a"b\\c\n# EOF\npar4d_up 1'
    one = {"system": name, "suite": "peak", "point": name, "metric": "time_s", "side": "at most", "limit": 1.0}
    document = {"figures": [], "thresholds": [one | {"outcome": "fail", "measured": None}]}
    text = openmetrics.of_document(document)
    families = read(text)
    assert "par4d_up" not in families
    (sample,) = families["par4d_acceptance_limit"].samples
    assert (sample.labels["system"], sample.value) == (name, 1.0)
    assert states(families["par4d_acceptance_outcome"]) == {"fail"}
    assert text.count("\n# EOF\n") == 1


@pytest.mark.usefixtures("own_references")
def test_nights_leave_as_json_and_openmetrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database, text = store(tmp_path / "results.db", slowed(jobs=3)), tmp_path / "night.txt"
    words = ["--system", "frontier", "--database", str(database)]
    main(["reference", "make", *words])
    capsys.readouterr()
    code = main(["verdict", *words, "--last", "2", "--json", "--openmetrics", str(text)])
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["version"], len(document["nights"])) == ("par4d.nights", 2, 2)
    assert document["nights"][-1]["code"] == code == 1
    families = read(text.read_text())
    last = document["nights"][-1]
    for one in last["verdicts"]:
        labels = {"night": last["night"], "test": one["test"], "figure": one["figure"]}
        assert states(families["par4d_night_verdict"], **labels) == {one["verdict"]}
        assert value(families["par4d_night_in_episode"], **labels) == [float(one["episode"] is not None)]
    assert value(families["par4d_night_opened"], night=last["night"]) == [len(last["opened"])] == [1]
    (episode,) = document["episodes"]
    of_episode = {"night": last["night"], "episode": f"{episode['episode']}"}
    assert states(families["par4d_episode_state"], **of_episode) == {episode["state"]} == {"open"}
    assert value(families["par4d_episode_size_ratio"], **of_episode) == [pytest.approx(episode["size"])]
    assert families["par4d_night_start_seconds"].unit == "seconds"
