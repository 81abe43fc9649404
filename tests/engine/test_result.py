"""result.json: written whole, read strictly, refused in one sentence."""

import json
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.result import provenance
from engine.result.schema import Iteration, Result, ResultError, parse, read, write


def _result() -> Result:
    return Result(
        kind="train",
        status="ok",
        config={"seed": 1, "model": {"name": "m"}},
        ranks=2,
        grid="2x1x1x1",
        dtype="fp32",
        iterations=(Iteration(index=0, time_s=0.5, loss=2.0, grad_norm=1.0, learning_rate=0.1, warmup=False),),
        provenance=provenance.collect(start=provenance.now(), launcher="none"),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "a" / "result.json"
    write(_result(), file)
    assert read(file) == _result().model_copy(update={"provenance": read(file).provenance})
    assert [f.name for f in file.parent.iterdir()] == ["result.json"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 7}, "version 7, .*up to 6"),
        ({"schema": "other"}, "'schema' is not 'par4d.result'"),
        ({"ranks": "two"}, "at ranks: "),
        ({"grid": "2x1"}, "four positive numbers"),
        ({"surprise": 1}, "at surprise: "),
        ({"iterations": [{"index": 0}]}, r"at iterations\.0\.time_s: field required"),
    ],
)
def test_a_wrong_document_names_the_key(change: dict[str, object], said: str) -> None:
    data = json.loads(_result().to_json()) | change
    with pytest.raises((ResultError, UsageError), match=said):
        parse(data, "result.json")


def test_a_result_that_is_older_than_a_field_is_read_without_it() -> None:
    old = json.loads(_result().to_json()) | {"version": 4}
    del old["provenance"]["modules"], old["provenance"]["clocks_hz"]
    old["breakdown"] = {"compute_s": 2.0, "collectives_s": 1.0}
    found = parse(old, "old.json")
    assert (found.version, found.provenance.modules, found.provenance.clocks_hz) == (4, (), {})
    assert found.breakdown is not None
    assert found.breakdown.hosts == ()


def test_a_file_cut_short_or_missing_is_said(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text(_result().to_json()[:200])
    with pytest.raises(ResultError, match="cut short"):
        read(file)
    with pytest.raises(ResultError, match="can't be read"):
        read(tmp_path / "none.json")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    write(_result(), file)
    before = file.read_text()
    broken = _result().model_copy(update={"status": "perhaps"})
    with pytest.raises(ValueError, match="status"):
        write(broken, file)
    assert file.read_text() == before
