"""Data are who they say they are: their digests, a resume on others, and the tokenizer of a network's folder."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from manifests import as_saved
from pretrained_folders import LLAMA, write
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.checkpoint.manifest import Manifest
from engine.cli.main import main
from engine.data.corpus import prepare
from engine.data.folder import LEFT_OUT
from engine.data.image_set import LABELS, PIXELS, ImageSet
from engine.data.pictures import prepare as prepare_images
from engine.data.prepared import HEADER
from engine.data.tokenizer import TOKENIZER
from engine.data.tokens import Tokens
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.adapters.files import export
from engine.models.adapters.folder import open_pretrained
from engine.models.choice import ModelChoice
from engine.training.checks import checked, notices
from engine.training.config import TrainConfig

SHAPE = ModelChoice(layers=1, hidden=32, heads=4, vocab=300, seq=8)


@pytest.fixture
def copy(corpus: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(corpus, tmp_path / "copy"))


def config(data: Path | str, folder: Path, **changed: object) -> TrainConfig:
    whole = TrainConfig(
        model=SHAPE, grid=Grid(), batch=Batch(2), data=str(data), out=folder / "result.json", iterations=1, warmup=0
    )
    return replace(whole, **changed)  # type: ignore[arg-type]


def saved(folder: Path, data: str | None) -> Path:
    """A checkpoint as far as a check reads it."""
    folder.mkdir()
    shape = SHAPE.resolve().shape
    as_saved(folder, Manifest(step=1, seed=0, batch_size=2, dtype="fp32", model=shape, files={}, data=data))
    return folder


def flip(file: Path, at: int = 5) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def edit(folder: Path, **changed: object) -> None:
    header = json.loads((folder / HEADER).read_text())
    (folder / HEADER).write_text(json.dumps(header | changed))


@pytest.mark.parametrize("changed", [{}, {"end_of_text": 7}, {"vocabulary": 299}, {"tokenizer_sha256": "0" * 64}])
def test_what_tokens_stand_for_is_part_of_their_identity_and_not_where_they_lie(
    changed: dict[str, object], corpus: Path, copy: Path
) -> None:
    edit(copy, **changed)
    known = Tokens.open(corpus, 8).identity
    assert known is not None
    assert (Tokens.open(copy, 8).identity == known) == (changed == {})


def test_one_bit_of_any_file_is_found_where_all_is_read(corpus: Path, tmp_path: Path) -> None:
    Tokens.open(corpus, 8).verify()
    for file in corpus.iterdir():
        if file.name in (HEADER, LEFT_OUT):
            continue
        copy = Path(shutil.copytree(corpus, tmp_path / file.name))
        flip(copy / file.name)
        with pytest.raises(UsageError, match=file.name):
            Tokens.open(copy, 8).verify()


@pytest.mark.parametrize("command", ["train", "check"])
def test_commands_read_all_where_they_are_asked_to(
    command: str, copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(copy / "tokens-00002.bin")
    words = ["--layers", "1", "--hidden", "32", "--heads", "4", "--vocab", "300", "--seq", "8", "--batch-size", "2"]
    words += ["--data", str(copy), "--verify", "--out", str(tmp_path / "result.json"), "--device", "cpu"]
    assert main([command, *words, *(["--ranks", "1"] if command == "check" else [])]) == 2
    assert "tokens-00002.bin" in capsys.readouterr().err


@pytest.mark.parametrize("unlabelled", [False, True])
def test_images_have_an_identity_too(unlabelled: bool, tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a", "b"):
        (tmp_path / "in" / name).mkdir(parents=True)
        Image.new("RGB", (9, 9), "red" if name == "a" else "blue").save(tmp_path / "in" / name / "1.png")
    prepare_images(tmp_path / "in", tmp_path / "out", 4, unlabelled=unlabelled)
    known = ImageSet.open(tmp_path / "out")
    assert known.identity is not None
    known.verify()
    for name in (PIXELS,) if unlabelled else (PIXELS, LABELS):
        flip(tmp_path / "out" / name)
        with pytest.raises(UsageError, match=name):
            known.verify()
        flip(tmp_path / "out" / name)
    if not unlabelled:
        edit(tmp_path / "out", classes=["b", "a"])
        assert ImageSet.open(tmp_path / "out").identity != known.identity


@pytest.fixture
def older(copy: Path) -> Path:
    """A corpus as an older Par4D wrote it."""
    header = json.loads((copy / HEADER).read_text())
    del header["tokenizer_sha256"]
    header["version"] = 1
    header["shards"] = [{"file": shard["file"], "tokens": shard["tokens"]} for shard in header["shards"]]
    (copy / HEADER).write_text(json.dumps(header))
    return copy


def test_data_without_digests_are_read_but_nobody_knows_who_they_are(older: Path, corpus: Path) -> None:
    found = Tokens.open(older, 8)
    assert (found.read(0, np.arange(3))["tokens"] == Tokens.open(corpus, 8).read(0, np.arange(3))["tokens"]).all()
    assert found.identity is None
    with pytest.raises(UsageError, match="no digests"):
        found.verify()


def test_a_resume_on_other_data_is_refused_unless_it_is_asked_for(corpus: Path, tmp_path: Path) -> None:
    own = Tokens.open(corpus, 8).identity
    of_this = saved(tmp_path / "this", own)
    assert notices(checked(config(corpus, tmp_path, resume=of_this), 1)) == []
    for folder, data in ((of_this, "synthetic"), (saved(tmp_path / "other", "0" * 64), corpus)):
        with pytest.raises(UsageError, match="--other-data"):
            checked(config(data, tmp_path, resume=folder), 1)
        checked(config(data, tmp_path, resume=folder, other_data=True), 1)
    with pytest.raises(UsageError, match="--resume"):
        checked(config(corpus, tmp_path, other_data=True), 1)


def test_where_the_data_of_a_checkpoint_are_not_known_that_is_said(corpus: Path, older: Path, tmp_path: Path) -> None:
    before = saved(tmp_path / "before", None)
    for folder, data in ((before, corpus), (saved(tmp_path / "known", "0" * 64), older)):
        (said,) = notices(checked(config(data, tmp_path, resume=folder), 1))
        assert str(folder) in said


def test_a_result_tells_what_it_was_trained_on(corpus: Path, tmp_path: Path) -> None:
    assert checked(config(corpus, tmp_path), 1).as_options()["data_sha256"] == Tokens.open(corpus, 8).identity
    assert checked(config("synthetic", tmp_path), 1).as_options()["data_sha256"] == "synthetic"


def learnt(folder: Path, *, end: str = "</s>", prefix: bool = False) -> Path:
    """A tokenizer of single letters, as a network's folder may have one."""
    letters = {chr(code): number for number, code in enumerate(range(32, 127))}
    made = Tokenizer(models.BPE({"<s>": 100, end: 120, "▁": 121, "\n": 122, **letters}, []))
    made.add_special_tokens(["<s>", end])
    if prefix:
        made.normalizer = normalizers.Prepend("▁")
    else:
        made.pre_tokenizer = pre_tokenizers.Split("\n", "isolated")
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 100)])
    folder.mkdir(exist_ok=True)
    made.save(str(folder / TOKENIZER))
    return folder


TEXT = "a line of the first text\nand </s> spelt out\n"


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text(TEXT)
    return tmp_path / "texts"


@pytest.mark.parametrize("as_file", [False, True])
def test_text_is_prepared_with_the_tokenizer_of_a_folder(as_file: bool, texts: Path, tmp_path: Path) -> None:
    own = learnt(tmp_path / "own")
    header = prepare(texts, tmp_path / "out", tokenizer=own / TOKENIZER if as_file else own)
    assert (tmp_path / "out" / TOKENIZER).read_bytes() == (own / TOKENIZER).read_bytes()
    assert (header.end_of_text, header.vocabulary) == (120, 123)
    tokens = np.fromfile(tmp_path / "out" / header.shards[0].file, header.storage)
    ids = {chr(code): number for number, code in enumerate(range(32, 127))} | {"\n": 122}
    letters = [ids[letter] for letter in TEXT]
    assert tokens.tolist() == [*letters, 120], "nothing is put before it"


def test_a_document_is_given_whole_to_a_tokenizer_that_puts_something_before_each(texts: Path, tmp_path: Path) -> None:
    (texts / "a.txt").write_text("x" * 100_000)
    header = prepare(texts, tmp_path / "out", tokenizer=learnt(tmp_path / "own", prefix=True))
    tokens = np.fromfile(tmp_path / "out" / header.shards[0].file, header.storage)
    assert (tokens == 121).sum() == 1


@pytest.mark.parametrize(
    ("file", "content", "end"),
    [
        ("config.json", '{"eos_token_id": [64, 65]}', "`"),
        ("tokenizer_config.json", '{"eos_token": {"content": "A"}}', "A"),
        ("other.json", "{}", "</s>"),
    ],
)
def test_a_text_ends_as_the_folder_says(file: str, content: str, end: str, texts: Path, tmp_path: Path) -> None:
    own = learnt(tmp_path / "own")
    (own / file).write_text(content)
    found = prepare(texts, tmp_path / "out", tokenizer=own).end_of_text
    assert Tokenizer.from_file(str(own / TOKENIZER)).id_to_token(found) == end


def test_options_of_tokenizers_that_can_not_be_meant_are_refused(texts: Path, tmp_path: Path) -> None:
    strange = learnt(tmp_path / "strange", end="<|that is it|>")
    damaged = tmp_path / "damaged.json"
    damaged.write_text("{}")
    for options, says in [
        ({"tokenizer": strange}, "--end-of-text"),
        ({"tokenizer": strange, "end_of_text": "nothing"}, "no token nothing"),
        ({"tokenizer": strange, "vocab_size": 300}, "--vocab-size"),
        ({"end_of_text": "</s>"}, "--tokenizer"),
        ({"tokenizer": damaged}, "no tokenizer.json"),
        ({"tokenizer": tmp_path / "nowhere"}, "can't be read"),
    ]:
        with pytest.raises(UsageError, match=says):
            prepare(texts, tmp_path / "out", **options)  # type: ignore[arg-type]
    assert prepare(texts, tmp_path / "out", tokenizer=strange, end_of_text="<|that is it|>").end_of_text == 120


def network(folder: Path) -> Path:
    write(folder, LLAMA | {"vocab_size": 300})
    (folder / TOKENIZER).unlink(missing_ok=True)
    return folder


def test_a_network_is_trained_on_tokens_of_its_own_tokenizer_alone(corpus: Path, texts: Path, tmp_path: Path) -> None:
    folder = learnt(network(tmp_path / "network"))
    choice = ModelChoice(model=f"hf:{folder}", seq=8)
    with pytest.raises(UsageError, match="--tokenizer"):
        checked(config(corpus, tmp_path, model=choice), 1)
    prepare(texts, tmp_path / "own", tokenizer=folder)
    assert notices(checked(config(tmp_path / "own", tmp_path, model=choice), 1)) == []
    written = json.loads((folder / TOKENIZER).read_text())
    (folder / TOKENIZER).write_text(json.dumps(written | {"post_processor": None}))
    checked(config(tmp_path / "own", tmp_path, model=choice), 1)  # the same tokens, otherwise written
    checked(config("synthetic", tmp_path, model=choice), 1)


@pytest.mark.parametrize("with_own", [True, False])
def test_an_exported_network_has_the_tokenizer_that_trained_it(with_own: bool, texts: Path, tmp_path: Path) -> None:
    folder = network(tmp_path / "network")
    (folder / "tokenizer.model").write_bytes(b"of sentencepiece")
    own = learnt(folder if with_own else tmp_path / "elsewhere")
    prepare(texts, tmp_path / "own", tokenizer=own)
    pretrained = open_pretrained(folder)
    run_ranks(Grid(), lambda comm: export(pretrained, comm, {}, tmp_path / "out", tmp_path / "own" / TOKENIZER))
    assert (tmp_path / "out" / TOKENIZER).read_bytes() == (own / TOKENIZER).read_bytes()
    assert (tmp_path / "out" / "tokenizer.model").exists() == with_own
    if not with_own:
        run = checked(config(tmp_path / "own", tmp_path, model=ModelChoice(model=f"hf:{folder}", seq=8)), 1)
        assert any(str(folder) in said for said in notices(run))
