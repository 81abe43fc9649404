"""A folder of text becomes token shards, whole or not at all."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from text_files import ORDER, TEXTS, all_tokens, decoded
from waiting import LONG_S

from engine.data import corpus as corpus_module
from engine.data.corpus import KIND, prepare
from engine.data.folder import LEFT_OUT, replacing
from engine.data.tokens import Tokens
from engine.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def test_every_text_comes_back_byte_for_byte_in_sorted_order(corpus: Path) -> None:
    assert decoded(corpus) == [TEXTS[name] for name in ORDER]


def test_files_that_are_not_text_are_counted_and_left_out(corpus: Path, source: Path) -> None:
    origin = Tokens.open(corpus, 1).header.source
    assert (origin.files, origin.skipped) == (4, 4)
    assert origin.bytes == sum(len(text.encode()) for text in TEXTS.values())
    assert set(left_out(corpus)) == {source / name for name in ("image.png", "zero.txt", "latin.txt", ".hidden")}


def left_out(corpus: Path) -> dict[Path, str]:
    """What a corpus names as left out, with the causes."""
    lines = os.fsdecode((corpus / LEFT_OUT).read_bytes()).splitlines()
    return {Path(path): cause for path, cause in (line.split("\t") for line in lines)}


NOT_TEXT = {
    "latin-1": (b"plain text line\n" * 65536 + b"caf\xe9\n", "byte 1048579 is 0xe9"),
    "zero": (b"plain text line\n" * 65536 + b"\0\n", "byte 1048576 is 0"),
    "cut": ("café".encode()[:-1], "byte 3 is 0xc3"),
    "surrogates": (b"\xed\xa0\xbd\xed\xb8\x80\n", "byte 0 is 0xed"),
    "utf-16": ("text".encode("utf-16"), "UTF-16"),
    "utf-32": ("text".encode("utf-32"), "UTF-32"),
    "gzip": (gzip.compress(b"text"), "gzip"),
}


@pytest.mark.parametrize("name", NOT_TEXT)
def test_a_file_that_is_no_text_is_named_with_its_cause(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, cause = NOT_TEXT[name]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.txt").write_text("good\n")
    (tmp_path / "in" / "tried.txt").write_bytes(content)
    prepare(tmp_path / "in", tmp_path / "out", 257)
    assert decoded(tmp_path / "out") == ["good\n"]
    assert cause in left_out(tmp_path / "out")[tmp_path / "in" / "tried.txt"]
    assert any("tried.txt" in message and cause in message for message in caplog.messages)


def test_what_no_file_of_text_is_named_too(tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "closed").mkdir(parents=True)
    (source / "a.txt").write_text("good\n")
    (source / "link").symlink_to(tmp_path)
    (source / "nothing").symlink_to(source / "nowhere")
    os.mkfifo(source / "pipe")
    (source / ".git").mkdir()
    (source / os.fsdecode(b"\xe9.bin")).write_bytes(b"\0")
    header = prepare(source, tmp_path / "out", 257)
    names = {"link", "nothing", "pipe", ".git", os.fsdecode(b"\xe9.bin")}
    assert set(left_out(tmp_path / "out")) == {source / name for name in names}
    assert (header.source.files, header.source.skipped) == (1, 5)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_bytes("\ufeffcafé\n".encode())
    prepare(tmp_path / "in", tmp_path / "out", 257)
    assert decoded(tmp_path / "out") == ["café\n"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.json"])
def test_each_line_of_json_lines_is_a_document(name: str, tmp_path: Path) -> None:
    texts = ['Line one.\nA café and a "quote".\n', "", "long " * 20_000, "last"]
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(texts)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text("\n".join([*lines[:2], "", *lines[2:]]))
    prepare(tmp_path / "in", tmp_path / "out", 257)
    assert decoded(tmp_path / "out") == texts
    assert not (tmp_path / "out" / LEFT_OUT).exists()


def test_one_document_of_json_is_text_as_it_stands(tmp_path: Path) -> None:
    text = json.dumps({"name": "x", "text": ["no text"]}, indent=1)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "package.json").write_text(text)
    prepare(tmp_path / "in", tmp_path / "out", 257)
    assert decoded(tmp_path / "out") == [text]


def test_lines_without_a_text_are_named_and_another_key_may_be_given(tmp_path: Path) -> None:
    lines = [
        '{"text": "first"}',
        "no JSON",
        '{"content": "second"}',
        '{"text": 7}',
        "[" * 100_000,
        '{"text": "\\ud800"}',
    ]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines))
    header = prepare(tmp_path / "in", tmp_path / "out", 257)
    assert decoded(tmp_path / "out") == ["first"]
    assert header.source.skipped == 1
    said = (tmp_path / "out" / LEFT_OUT).read_text().splitlines()
    assert [line.split("\t")[1].split()[:2] for line in said] == [["line", str(number)] for number in range(2, 7)]
    prepare(tmp_path / "in", tmp_path / "out", 257, text_key="content")
    assert decoded(tmp_path / "out") == ["second"]
    (tmp_path / "in" / "b.txt").write_text("good")
    prepare(tmp_path / "in", tmp_path / "out", 257, text_key="body")
    assert decoded(tmp_path / "out") == ["good"]
    assert "'body'" in left_out(tmp_path / "out")[tmp_path / "in" / "a.jsonl"]


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    file = tmp_path / "in" / "a.txt"
    file.write_text("before\n" * 10)
    train = corpus_module._train

    def meanwhile(text: Iterator[str], size: int) -> "Tokenizer":
        made = train(text, size)
        file.write_text("after\n")
        return made

    monkeypatch.setattr(corpus_module, "_train", meanwhile)
    with pytest.raises(UsageError, match=r"a\.txt was changed"):
        prepare(tmp_path / "in", tmp_path / "out", 257)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["source", "out"])
def test_a_folder_whose_name_is_not_utf_8_is_refused_before_anything_is_read(option: str, tmp_path: Path) -> None:
    named = tmp_path / os.fsdecode(b"caf\xe9")
    named.mkdir()
    (named / "a.txt").write_text("text")
    folders = {"source": tmp_path, "out": tmp_path / "out"} | {option: named}
    with pytest.raises(UsageError, match=f"--{option}.*not UTF-8"):
        prepare(folders["source"], folders["out"], 257)


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
    [({}, "holds no text"), ({"a.bin": b"\0\1"}, "1 left out"), ({"empty.txt": b""}, "all others empty")],
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
