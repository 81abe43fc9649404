"""A prepared corpus for the tests that read one, and contests for those that don't ask for their speed."""

from pathlib import Path

import pytest
from real_ranks import CONTEXT
from text_files import TEXTS

from engine.data.corpus import prepare


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for name, text in TEXTS.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (folder / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (folder / "zero.txt").write_bytes(b"text with a \0 byte")
    (folder / "latin.txt").write_bytes("café".encode("latin-1"))
    (folder / ".hidden").write_text("never read")
    return folder


@pytest.fixture(scope="module")
def corpus(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "corpus"
    prepare(source, out, 300, shard_tokens=500)
    return out


@pytest.fixture
def forked_contests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that `bench peers` starts are forked from the server that has torch loaded."""
    monkeypatch.setattr("engine.peers.ranks.OWN", CONTEXT.get_start_method())
