"""A folder of text becomes token shards, whole or not at all."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from text_files import ORDER, TEXTS, all_tokens, decoded
from waiting import LONG_S

from engine.data import corpus as corpus_module
from engine.data.corpus import KIND, prepare
from engine.data.folder import LEFT_OUT, replacing
from engine.data.tokens import Header, Tokens
from engine.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Prepare = Callable[..., Header]


def write(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Prepare:
    """Prepare files of `in` as `out`."""

    def prepared(files: Mapping[str, str | bytes], vocabulary: int = 257, **options: Any) -> Header:
        return prepare(write(tmp_path / "in", files), tmp_path / "out", vocabulary, **options)

    return prepared


def left_out(corpus: Path) -> dict[Path, str]:
    """Files that a corpus leaves out, with the causes."""
    lines = os.fsdecode((corpus / LEFT_OUT).read_bytes()).splitlines()
    return {Path(path): cause for path, cause in (line.split("\t") for line in lines)}


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_every_text_comes_back_in_sorted_order_and_the_header_bounds_its_tokens(corpus: Path, source: Path) -> None:
    assert decoded(corpus) == [TEXTS[name] for name in ORDER]
    header = Tokens.open(corpus, 1).header
    assert (header.source.files, header.source.skipped) == (4, 4)
    assert header.source.bytes == sum(len(text.encode()) for text in TEXTS.values())
    assert set(left_out(corpus)) == {source / name for name in ("image.png", "zero.txt", "latin.txt", ".hidden")}
    assert header.dtype == "uint16"
    assert all_tokens(corpus).max() < header.vocabulary <= 300
    assert len(header.shards) > 1
    assert header.tokens == len(all_tokens(corpus))


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
    name: str, made: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content, cause = NOT_TEXT[name]
    made({"good.txt": "good\n", "tried.txt": content})
    assert decoded(tmp_path / "out") == ["good\n"]
    assert cause in left_out(tmp_path / "out")[tmp_path / "in" / "tried.txt"]
    assert any("tried.txt" in message and cause in message for message in caplog.messages)


def test_what_no_file_of_text_is_named_too(made: Prepare, tmp_path: Path) -> None:
    source = tmp_path / "in"
    (source / "closed").mkdir(parents=True)
    (source / "link").symlink_to(tmp_path)
    (source / "nothing").symlink_to(source / "nowhere")
    os.mkfifo(source / "pipe")
    (source / ".git").mkdir()
    header = made({"a.txt": "good\n", os.fsdecode(b"\xe9.bin"): b"\0"})
    names = {"link", "nothing", "pipe", ".git", os.fsdecode(b"\xe9.bin")}
    assert set(left_out(tmp_path / "out")) == {source / name for name in names}
    assert (header.source.files, header.source.skipped) == (1, 5)


LINES = ['Line one.\nA café and a "quote".\n', "", "long " * 20_000, "last"]
AS_JSON = [json.dumps({"id": number, "text": text}) for number, text in enumerate(LINES)]
JSON_LINES = "\n".join([*AS_JSON[:2], "", *AS_JSON[2:]])
PACKAGE = json.dumps({"name": "x", "text": ["no text"]}, indent=1)


@pytest.mark.parametrize(
    ("name", "content", "texts"),
    [
        *((name, JSON_LINES, LINES) for name in ("a.jsonl", "a.JSONL", "a.ndjson", "a.json")),
        ("package.json", PACKAGE, [PACKAGE]),
        ("mark.txt", "\ufeffcafé\n", ["café\n"]),
        ("line.txt", "é0123456789" * 20_000, ["é0123456789" * 20_000]),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_documents_of_a_file_come_back(
    name: str, content: str, texts: list[str], made: Prepare, tmp_path: Path
) -> None:
    """JSON Lines have one a line, other files are one, of which a byte-order mark is no part and lines may be long."""
    made({name: content})
    assert decoded(tmp_path / "out") == texts
    assert not (tmp_path / "out" / LEFT_OUT).exists()


def test_lines_without_a_text_are_named_and_another_key_may_be_given(made: Prepare, tmp_path: Path) -> None:
    lines = ['{"text": "first"}', "no JSON", '{"content": "second"}', '{"text": 7}', "[" * 100_000]
    header = made({"a.jsonl": "\n".join([*lines, '{"text": "\\ud800"}'])})
    assert decoded(tmp_path / "out") == ["first"]
    assert header.source.skipped == 1
    said = (tmp_path / "out" / LEFT_OUT).read_text().splitlines()
    assert [line.split("\t")[1].split()[:2] for line in said] == [["line", str(number)] for number in range(2, 7)]
    made({}, text_key="content")
    assert decoded(tmp_path / "out") == ["second"]
    made({"b.txt": "good"}, text_key="body")
    assert decoded(tmp_path / "out") == ["good"]
    assert "'body'" in left_out(tmp_path / "out")[tmp_path / "in" / "a.jsonl"]


def test_a_file_that_changes_while_it_is_read_is_named(
    made: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = corpus_module._train

    def meanwhile(text: Iterator[str], size: int) -> "Tokenizer":
        tokenizer = train(text, size)
        (tmp_path / "in" / "a.txt").write_text("after\n")
        return tokenizer

    monkeypatch.setattr(corpus_module, "_train", meanwhile)
    with pytest.raises(UsageError, match=r"a\.txt was changed"):
        made({"a.txt": "before\n" * 10})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["source", "out"])
def test_a_folder_whose_name_is_not_utf_8_is_refused_before_anything_is_read(option: str, tmp_path: Path) -> None:
    named = write(tmp_path / os.fsdecode(b"caf\xe9"), {"a.txt": "text"})
    folders = {"source": tmp_path, "out": tmp_path / "out"} | {option: named}
    with pytest.raises(UsageError, match=f"--{option}.*not UTF-8"):
        prepare(folders["source"], folders["out"], 257)


def test_a_vocabulary_beyond_two_bytes_is_stored_in_four(made: Prepare, tmp_path: Path) -> None:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    text = " ".join("".join(word) for word in np.random.default_rng(0).choice(letters, (40_000, 8)))
    header = made({"text": text}, 66_000)
    assert (header.vocabulary, header.dtype) == (66_000, "uint32")
    assert decoded(tmp_path / "out") == [text]


def test_max_bytes_takes_the_first_text_only(source: Path, tmp_path: Path) -> None:
    size = len(TEXTS["b.txt"].encode())
    header = prepare(source, tmp_path / "out", 300, max_bytes=size + 10)
    assert header.source.bytes == size + 10
    assert decoded(tmp_path / "out") == [TEXTS["b.txt"], TEXTS["c.txt"][:10]]


def test_preparing_twice_gives_the_same_bytes_and_a_replacement_that_fails_puts_them_back(
    source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "corpus"
    prepare(source, out, 280)
    before = contents(out)
    prepare(source, out, 280)
    assert contents(out) == before
    with pytest.raises(UsageError, match="can't be written"), replacing(out, KIND) as fresh:
        fresh.rmdir()
    assert contents(out) == before
    assert list(tmp_path.iterdir()) == [out]


def test_a_corpus_inside_its_own_source_is_not_read_as_text(tmp_path: Path) -> None:
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
FULL = """
import resource, sys
from pathlib import Path
from engine.data.corpus import prepare

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
prepare(Path(sys.argv[1]), Path(sys.argv[2]), 257)
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, str(folder / "in"), str(folder / "out")]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONG_S, check=False)


def test_a_killed_prepare_leaves_the_former_corpus(made: Prepare, tmp_path: Path) -> None:
    made({"a.txt": "first\n" * 100})
    before = contents(tmp_path / "out")
    write(tmp_path / "in", {f"{number}.txt": f"line {number} of many\n" * 4000 for number in range(400)})
    killed = run(KILLED, tmp_path)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".out.*/tokens-*.bin")), "it had begun"
    assert contents(tmp_path / "out") == before


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    write(tmp_path / "in", {"a.txt": bytes(range(1, 128)) * 2000})
    ended = run(FULL, tmp_path)
    assert "UsageError" in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("files", "says"),
    [({}, "holds no text"), ({"a.bin": b"\0\1"}, "1 left out"), ({"empty.txt": b""}, "all others empty")],
)
def test_a_folder_without_text_is_refused(files: dict[str, bytes], says: str, made: Prepare, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        made(files, 300)
    assert not (tmp_path / "out").exists()


def test_bad_arguments_of_prepare_are_refused_and_change_nothing(source: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine", {"thesis.txt": "years of work"})
    (tmp_path / "file").write_text("text")
    for given, out, vocabulary, says in [
        (tmp_path / "nowhere", tmp_path / "out", 300, "nowhere doesn't exist"),
        (tmp_path / "file", tmp_path / "out", 300, "not a folder"),
        (source, tmp_path / "out", 256, "at least 257"),
        (source, mine, 300, "not a prepared corpus"),
        (source, tmp_path / "file", 300, "not a folder"),
        (source, source, 300, "lies inside"),
        (source, source.parent, 300, "lies inside"),
        (source, tmp_path / "file" / "out", 300, "can't be written"),
    ]:
        with pytest.raises(UsageError, match=says):
            prepare(given, out, vocabulary)
    assert (mine / "thesis.txt").read_text() == "years of work"
