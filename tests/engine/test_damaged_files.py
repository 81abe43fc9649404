"""Files that are damaged, or say less than their writer did: refused by name, in one sentence."""

import errno
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from test_folder_edges import GPT2, VIT, _folder

from engine.checkpoint import owner
from engine.cli.main import main
from engine.data.image_set import Header as ImageHeader
from engine.data.tokens import Header
from engine.errors import UsageError
from engine.files import json_of
from engine.models.adapters.folder import Pretrained, open_pretrained, read_network
from engine.models.adapters.safetensors import read_header
from engine.training.data_checks import check_classes

DEEP = "[" * 200_000


def test_json_that_is_nested_too_deeply_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested"):
        json_of(DEEP)


@pytest.mark.parametrize(
    "words",
    [
        ("check", "--model", "gpt-test", "--batch-size", "4", "--ranks", "1", "--data", "AT"),
        ("plan", "--model", "hf:AT", "--gpus", "8", "--system", "frontier", "--batch-tokens", "4M"),
        ("breakdown", "AT/header.json"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_names_a_file_that_is(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("header.json", "config.json"):
        (tmp_path / name).write_text(DEEP)
    assert main([word.replace("AT", str(tmp_path)) for word in words]) == 2
    said = capsys.readouterr().err
    assert said.startswith(str(tmp_path))
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "changed",
    [
        *({"model_type": value} for value in (["gpt2"], {}, 5, None)),
        *({"architectures": value} for value in (5, True, 1e308, {"a": 1}, "GPT2LMHeadModel", [5])),
    ],
    ids=str,
)
def test_a_key_of_another_type_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)):
        read_network(_folder(tmp_path, GPT2 | changed))


@pytest.mark.parametrize("size", [[None], {"height": [1], "width": 32}, {}, None, "x"], ids=str)
def test_a_preprocessors_size_of_another_type_is_refused(size: object, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"preprocessor_config\.json"):
        read_network(_folder(tmp_path, VIT, preprocessor_config={"size": size}))


def _safetensors(file: Path, **changed: dict[str, Any]) -> Path:
    header = {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
    }
    text = json.dumps({name: entry | changed.get(name, {}) for name, entry in header.items()}).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    return file


@pytest.mark.parametrize(
    "changed",
    [
        {"a": {"data_offsets": [8, 16]}},
        {"b": {"data_offsets": [4, 12]}},
        {"a": {"shape": [2.0]}},
        {"a": {"shape": ["2"]}},
        {"a": {"shape": [-2]}},
        {"b": {"data_offsets": [8.0, 16]}},
        {"a": {"shape": 2}},
        {"a": {"data_offsets": [True, 8]}},
        {"b": {"data_offsets": [8, 24]}},
    ],
    ids=str,
)
def test_tensors_tile_their_file_and_are_told_by_whole_numbers(changed: dict[str, Any], tmp_path: Path) -> None:
    assert read_header(_safetensors(tmp_path / "good")).keys() == {"a", "b"}
    with pytest.raises(UsageError, match="bad"):
        read_header(_safetensors(tmp_path / "bad", **changed))


@pytest.mark.parametrize("content", ["{", "\udcff", DEEP, "[]"], ids=["cut", "no text", "deep", "a list"])
def test_a_file_that_an_export_would_copy_can_be_read(content: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path, GPT2)
    (folder / "generation_config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=r"generation_config\.json"):
        open_pretrained(folder)


NO = "0" * 64
SHARD = {"file": "tokens-00000.bin", "tokens": 99, "sha256": NO}
SOURCE = {"folder": "f", "files": 4, "skipped": 0}
CORPUS: dict[str, Any] = {"dtype": "uint16", "vocabulary": 300, "end_of_text": 0, "shards": [SHARD]}
CORPUS |= {"tokenizer": "tokenizer.json", "tokenizer_sha256": NO, "source": SOURCE | {"bytes": 1}}
IMAGES: dict[str, Any] = {"size": 8, "images": 4, "classes": ["a", "b"], "source": SOURCE}
IMAGES |= {"pixels_sha256": NO, "labels_sha256": NO}


@pytest.mark.parametrize(
    ("record", "whole", "changed"),
    [
        (Header, CORPUS, {"tokenizer_sha256": None}),
        (Header, CORPUS, {"shards": [SHARD | {"sha256": None}]}),
        (Header, CORPUS, {"shards": [SHARD, SHARD]}),
        (Header, CORPUS, {"version": 1}),
        (ImageHeader, IMAGES, {"pixels_sha256": None}),
        (ImageHeader, IMAGES, {"labels_sha256": None}),
        (ImageHeader, IMAGES, {"classes": ["a", "a"]}),
        (ImageHeader, IMAGES, {"version": 1}),
    ],
    ids=str,
)
def test_a_header_that_says_less_than_its_version_does_is_damaged(
    record: type[Header | ImageHeader], whole: dict[str, Any], changed: dict[str, Any]
) -> None:
    record.model_validate(whole)
    with pytest.raises(ValueError, match=r"digest|twice"):
        record.model_validate(whole | changed)


def test_an_owner_that_can_not_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(owner.os, "fsync", full)
        with pytest.raises(UsageError, match="No space left"):
            owner.own(tmp_path)
    assert not list(tmp_path.iterdir())
    owner.own(tmp_path).release()


def test_classes_in_another_order_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _folder(tmp_path, VIT | {"id2label": {"0": "c", "1": "b", "2": "a"}})
    pretrained = Pretrained(folder, read_network(folder)[1], None, {}, ())  # type: ignore[arg-type]
    assert pretrained.classes == ("c", "b", "a")

    class Photographs:
        classes = ("a", "b", "c")

    with pytest.raises(UsageError, match="c, b, a"):
        check_classes(pretrained, Photographs())  # type: ignore[arg-type]
    Photographs.classes = ("x", "y")
    check_classes(pretrained, Photographs())  # type: ignore[arg-type]
