"""A folder of text becomes token shards, whole or not at all."""

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from text_files import ORDER, TEXTS, all_tokens, decoded
from waiting import LONG_S

from engine.data.corpus import KIND, prepare
from engine.data.folder import replacing
from engine.data.tokens import Tokens
from engine.errors import UsageError


def test_every_text_comes_back_byte_for_byte_in_sorted_order(corpus: Path) -> None:
    assert decoded(corpus) == [TEXTS[name] for name in ORDER]


def test_files_that_are_not_text_are_counted_and_left_out(corpus: Path) -> None:
    origin = Tokens.open(corpus, 1).header.source
    assert (origin.files, origin.skipped) == (4, 3)
    assert origin.bytes == sum(len(text.encode()) for text in TEXTS.values())


def test_the_header_bounds_every_token(corpus: Path) -> None:
    header = Tokens.open(corpus, 1).header
    assert header.dtype == "uint16"
    assert all_tokens(corpus).max() < header.vocabulary <= 300
    assert len(header.shards) > 1
    assert header.tokens == len(all_tokens(corpus))


def test_a_vocabulary_beyond_two_bytes_is_stored_in_four(source: Path, tmp_path: Path) -> None:
    words = tmp_path / "words"
    words.mkdir()
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    text = " ".join("".join(word) for word in rng.choice(letters, (40_000, 8)))
    (words / "text").write_text(text)
    header = prepare(words, tmp_path / "out", 66_000)
    assert header.vocabulary == 66_000
    assert header.dtype == "uint32"
    assert decoded(tmp_path / "out") == [text]


def test_a_long_line_is_cut_into_pieces_and_comes_back_whole(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    text = "é0123456789" * 20_000
    (tmp_path / "in" / "line.txt").write_text(text)
    prepare(tmp_path / "in", tmp_path / "out", 257)
    assert decoded(tmp_path / "out") == [text]


def test_max_bytes_takes_the_first_text_only(source: Path, tmp_path: Path) -> None:
    size = len(TEXTS["b.txt"].encode())
    header = prepare(source, tmp_path / "out", 300, max_bytes=size + 10)
    assert header.source.bytes == size + 10
    assert decoded(tmp_path / "out") == [TEXTS["b.txt"], TEXTS["c.txt"][:10]]


def test_preparing_twice_gives_the_same_bytes_and_leaves_nothing_else(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    prepare(source, out, 280)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    prepare(source, out, 280)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_corpus_inside_its_own_source_is_not_read_as_text(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("some text\n")
    first = prepare(tmp_path, tmp_path / "out", 257)
    assert prepare(tmp_path, tmp_path / "out", 257).source == first.source


KILLED = """
import os, signal, sys
from pathlib import Path
from engine.data.corpus import prepare

opened = []

def look(event, arguments):
    if event == "open" and "/tokens-" in str(arguments[0]):
        opened.append(arguments[0])
        if len(opened) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(look)
prepare(Path(sys.argv[1]), Path(sys.argv[2]), 300)
"""


def test_a_killed_prepare_leaves_the_former_corpus(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("first\n" * 100)
    prepare(tmp_path / "in", tmp_path / "out", 257)
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    for number in range(400):
        (tmp_path / "in" / f"{number}.txt").write_text(f"line {number} of many\n" * 4000)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path / "in", tmp_path / "out"], timeout=LONG_S, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".out.*/tokens-*.bin")), "it had begun"
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_a_replacement_that_fails_at_the_last_moment_puts_the_former_corpus_back(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(source, out, 257)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    with pytest.raises(UsageError, match="can't be written"), replacing(out, KIND) as fresh:
        fresh.rmdir()
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes(bytes(range(1, 128)) * 2000)
    code = (
        "import resource, sys; from pathlib import Path; from engine.data.corpus import prepare\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "prepare(Path(sys.argv[1]), Path(sys.argv[2]), 257)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "in"), str(tmp_path / "out")], capture_output=True, text=True
    )
    assert "UsageError: The corpus can't be written to" in process.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ({}, "holds no text"),
        ({"a.bin": b"\0\1"}, "1 of its files are not UTF-8"),
        ({"empty.txt": b""}, "all others empty"),
    ],
)
def test_a_folder_without_text_is_refused(tmp_path: Path, text: dict[str, bytes], says: str) -> None:
    (tmp_path / "in").mkdir()
    for name, content in text.items():
        (tmp_path / "in" / name).write_bytes(content)
    with pytest.raises(UsageError, match=says):
        prepare(tmp_path / "in", tmp_path / "out", 300)
    assert not (tmp_path / "out").exists()


def test_bad_arguments_of_prepare_are_refused_and_change_nothing(source: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("text")
    for arguments, says in [
        ((tmp_path / "nowhere", tmp_path / "out", 300), "nowhere doesn't exist"),
        ((tmp_path / "file", tmp_path / "out", 300), "not a folder"),
        ((source, tmp_path / "out", 256), "at least 257"),
        ((source, mine, 300), "not a prepared corpus"),
        ((source, tmp_path / "file", 300), "not a folder"),
        ((source, source, 300), "lies inside"),
        ((source, source.parent, 300), "lies inside"),
        ((source, tmp_path / "file" / "out", 300), "can't be written"),
    ]:
        with pytest.raises(UsageError, match=says):
            prepare(*arguments)
    assert (mine / "thesis.txt").read_text() == "years of work"
