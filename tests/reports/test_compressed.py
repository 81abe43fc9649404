"""Results that gzip has compressed are read as others are."""

import gzip
import os
from datetime import UTC, datetime
from pathlib import Path

from sample_results import save, train

from reports.read import compressed
from reports.read.load import load

WRITTEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_damaged_file_is_left_out_and_named(tmp_path: Path) -> None:
    (plain,) = save([train()], tmp_path)
    whole = gzip.compress(plain.read_bytes())
    plain.unlink()
    for name, content in {"good": whole, "cut": whole[:-20], "none": b"{}", "odd": whole[:30] + b"\0" * 90}.items():
        (tmp_path / f"{name}.json.gz").write_bytes(content)
    loaded = load([tmp_path])
    assert [Path(run.source).name for run in loaded.runs] == ["good.json.gz"]
    assert sorted(Path(one.source).name for one in loaded.skipped) == ["cut.json.gz", "none.json.gz", "odd.json.gz"]


def test_it_was_written_when_its_header_says_and_else_when_the_file_was(tmp_path: Path) -> None:
    told, silent, plain = tmp_path / "told.json.gz", tmp_path / "silent.json.gz", tmp_path / "plain.json"
    told.write_bytes(gzip.compress(b"{}", mtime=int(WRITTEN.timestamp())))
    silent.write_bytes(gzip.compress(b"{}", mtime=0))
    plain.write_bytes(b"{}")
    for path in (told, silent, plain):
        os.utime(path, (1e9, 1e9))
    of_the_file = datetime.fromtimestamp(1e9, UTC)
    assert [compressed.written(path) for path in (told, silent, plain)] == [WRITTEN, of_the_file, of_the_file]
    assert {compressed.read_bytes(path) for path in (told, silent, plain)} == {b"{}"}
