"""Files of a site's own thresholds: what they may say, and what is refused by name."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from systems import acceptance as thresholds
from systems.acceptance import METRICS, acceptance, known
from systems.files import SystemFileError

ONE: dict[str, Any] = {
    **{"suite": "weak_scaling", "point": "local-2-gpt-local-2", "metric": "time_s", "at_most": 1.5, "unit": "s"},
    "source": "contract, section 4",
}


def written(folder: Path, *thresholds: dict[str, Any], **fields: Any) -> Path:
    path = folder / "local.yaml"
    path.write_text(yaml.safe_dump({"system": "local", "thresholds": list(thresholds) or [ONE]} | fields))
    return path


def test_a_threshold_is_read_in_si_units(tmp_path: Path) -> None:
    rate = {"metric": "hardware_flops_per_s", "at_least": 2, "unit": "Tflop/s", "at_most": None}
    found = acceptance(written(tmp_path, ONE | {"at_most": 1500, "unit": "ms"}, ONE | rate))
    assert [(one.side, one.limit, one.text) for one in found.thresholds] == [
        ("at most", pytest.approx(1.5), "at most 1500 ms"),
        ("at least", 2e12, "at least 2 Tflop/s"),
    ]
    assert known(tmp_path) == [found]
    assert known(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"suite": "week_scaling"}, "weak_scaling"),
        ({"metric": "times_s"}, "time_s"),
        ({"unit": "Tflop/s"}, "ms"),
        ({"at_least": 1.0}, "at_most"),
        ({"at_most": None}, "at_least"),
        ({"at_most": -1.0}, "at_most"),
        ({"at_most": "soon"}, "soon"),
        ({"point": "local"}, "point"),
        ({"source": ""}, "source"),
        ({"limit": 3}, "limit"),
    ],
)
def test_a_fault_is_refused_by_name_in_one_sentence(fields: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(SystemFileError) as refused:
        acceptance(written(tmp_path, ONE | fields))
    assert named in str(refused.value)
    assert "local.yaml" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [("[1, 2]", "thresholds"), ("system: local", "thresholds"), ("a: !!python/object:os.system {}", "YAML")],
)
def test_another_file_is_refused(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(Exception, match=named):
        acceptance(path)


def test_one_figure_has_one_limit_a_side(tmp_path: Path) -> None:
    with pytest.raises(SystemFileError, match="at most"):
        acceptance(written(tmp_path, ONE, ONE | {"at_most": 2.0}))


def test_a_file_is_of_the_system_that_it_is_named_after(tmp_path: Path) -> None:
    written(tmp_path, ONE, system="frontier")
    with pytest.raises(SystemFileError, match="frontier"):
        known(tmp_path)


def test_a_folder_that_a_variable_names_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "none"
    monkeypatch.setattr(thresholds, "FOLDER", folder)
    monkeypatch.setenv("PAR4D_ACCEPTANCE", str(folder))
    with pytest.raises(SystemFileError, match="PAR4D_ACCEPTANCE"):
        known(folder)


def test_each_metric_has_units_that_are_known() -> None:
    for name, metric in METRICS.items():
        assert metric.units, name
