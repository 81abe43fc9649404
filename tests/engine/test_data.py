"""Every grid reads the same samples, and a corpus that is damaged is told."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from text_files import all_tokens

from engine.batch import Batch
from engine.data import prepared, sampler
from engine.data.dataset import Dataset, Text, open_dataset
from engine.data.shuffle import key, permute, shuffle
from engine.data.tokens import Tokens, read_header
from engine.errors import RunError, UsageError
from engine.grid import Axis, Grid
from engine.models.tasks import NextToken


def batch(dataset: Dataset, **which: Any) -> list[np.ndarray]:
    """Tokens and targets."""
    read = sampler.batch(dataset, NextToken(Text(50, 1)).batch, **which)
    return [read["tokens"], read["targets"]]


def synthetic(vocabulary: int, sequence: int) -> Dataset:
    return Text(vocabulary, sequence).synthetic()


def damaged(corpus: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in corpus.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_corpus_or_shard_that_is_missing_or_truncated_is_named(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="data prepare --source DIR"):
        Tokens.open(tmp_path / "nothing", 1)
    copy = damaged(corpus, tmp_path / "copy")
    shard = copy / "tokens-00001.bin"
    os.truncate(shard, 998)
    with pytest.raises(UsageError, match=r"00001\.bin has 998.* 1000"):
        Tokens.open(copy, 1)
    shard.unlink()
    with pytest.raises(UsageError, match=r"tokens-00001.bin can't be read"):
        Tokens.open(copy, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:100], "cut short"),
        (lambda text: json.dumps(json.loads(text) | {"version": 3}), "format version 3"),
        (lambda text: json.dumps(json.loads(text) | {"format": "other"}), "'format'"),
        (lambda text: json.dumps(json.loads(text) | {"dtype": "float32"}), "at dtype"),
        (lambda text: text.replace("tokens-00000.bin", "../tokens.bin"), "at shards.0.file"),
        (lambda text: json.dumps(json.loads(text) | {"vocabulary": 70_000}), "holds no token"),
        (lambda text: json.dumps(json.loads(text) | {"end_of_text": 300}), "end_of_text 300"),
    ],
)
def test_a_bad_header_is_explained(corpus: Path, tmp_path: Path, change: Callable[[str], str], says: str) -> None:
    copy = damaged(corpus, tmp_path / "copy")
    (copy / "header.json").write_text(change((copy / "header.json").read_text()))
    with pytest.raises(UsageError, match=says):
        Tokens.open(copy, 1)


def test_a_token_beyond_the_vocabulary_is_named_with_its_file(corpus: Path, tmp_path: Path) -> None:
    copy = damaged(corpus, tmp_path / "copy")
    shard = copy / "tokens-00001.bin"
    tokens = np.fromfile(shard, np.uint16)
    tokens[7] = 65_535
    tokens.tofile(shard)
    dataset = Tokens.open(copy, 8)
    with pytest.raises(RunError, match=r"00001\.bin has 65535.* 7,"):
        dataset.read(0, np.arange(dataset.sequences))


def test_a_shard_that_is_cut_short_or_gone_while_it_is_read_is_named(corpus: Path, tmp_path: Path) -> None:
    """Where a shard is mapped, the reader dies of SIGBUS."""
    copy = damaged(corpus, tmp_path / "copy")
    dataset, later = Tokens.open(copy, 8), Tokens.open(copy, 8)
    dataset.read(0, np.arange(dataset.sequences))
    os.truncate(copy / "tokens-00001.bin", 10)
    with pytest.raises(RunError, match=r"00001\.bin ends at"):
        dataset.read(0, np.arange(dataset.sequences))
    (copy / "tokens-00001.bin").unlink()
    with pytest.raises(RunError, match=r"tokens-00001.bin can't be read"):
        later.read(0, np.arange(dataset.sequences))


def test_data_of_another_kind_are_refused(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "KINDS", prepared.KINDS | {"other": prepared.DataKind("sounds", "library", "data")})
    copy = damaged(corpus, tmp_path / "copy")
    (copy / "header.json").write_text('{"format": "other"}')
    with pytest.raises(UsageError, match=r"sounds, .* text"):
        open_dataset(str(copy), Text(300, 8))


def test_opening_a_dataset_checks_it_against_the_model(corpus: Path) -> None:
    count = read_header(corpus).tokens
    assert open_dataset("synthetic", Text(7, 10)).read(0, np.arange(2))["tokens"].shape == (2, 11)
    assert open_dataset(str(corpus), Text(300, count - 1)).read(0, np.arange(1))["tokens"].shape == (1, count)
    with pytest.raises(UsageError, match=f"needs at least {count + 1}"):
        open_dataset(str(corpus), Text(300, count))
    with pytest.raises(UsageError, match=r"--vocab 300 .*--vocab-size 200"):
        open_dataset(str(corpus), Text(200, 8))


def test_checking_a_dataset_needs_no_torch(corpus: Path) -> None:
    code = (
        "import sys; from engine.data.dataset import Text, open_dataset; "
        f"open_dataset({str(corpus)!r}, Text(300, 8)); "
        "sys.exit('torch' in sys.modules or 'tokenizers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("size", [*range(1, 40), 97, 1000, 4097])
def test_the_permutation_moves_every_index_to_a_place_of_its_own(size: int) -> None:
    assert sorted(permute(np.arange(size), size, key(3, size))) == list(range(size))


def test_epochs_are_shuffled_each_in_its_own_way_and_any_sequence_may_come_first() -> None:
    order = shuffle(5, np.arange(3000), 1000).reshape(3, 1000)
    assert (np.sort(order) == np.arange(1000)).all()
    for first, second in [(order[0], order[1]), (order[1], order[2]), (order[0], np.arange(1000))]:
        assert (first == second).sum() < 10
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.15
    assert (order[0] != shuffle(6, np.arange(1000), 1000)).sum() > 990
    firsts = shuffle(1, np.arange(0, 10 * 5000, 10), 10)
    assert np.bincount(firsts, minlength=10) == pytest.approx(np.full(10, 500), abs=110)


def test_targets_are_the_next_tokens_and_an_epoch_covers_the_corpus_once(corpus: Path) -> None:
    stream, length = all_tokens(corpus), 7
    tokens = Tokens.open(corpus, length)
    count = tokens.sequences
    inputs, targets = batch(tokens, seed=2, step=0, batch_size=count, rows=range(count))
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    expected = {tuple(stream[i * length : (i + 1) * length + 1].tolist()) for i in range(count)}
    assert {(*row, target) for row, target in zip(inputs.tolist(), targets[:, -1].tolist(), strict=True)} == expected


def test_batches_are_contiguous_int64_of_the_callers_own(corpus: Path) -> None:
    for dataset in (Tokens.open(corpus, 6), synthetic(50, 6)):
        for array in batch(dataset, seed=0, step=1, batch_size=4, rows=range(4)):
            assert array.dtype == np.int64
            assert array.shape == (4, 6)
            assert array.flags.c_contiguous
            assert array.flags.writeable


@pytest.mark.parametrize("kind", ["tokens", "synthetic"])
def test_all_grids_see_the_same_global_batch(corpus: Path, kind: str) -> None:
    dataset = Tokens.open(corpus, 5) if kind == "tokens" else synthetic(50, 5)
    arguments = {"seed": 4, "step": 9, "batch_size": 24}
    whole = batch(dataset, rows=range(24), **arguments)
    for text in ("1x1x1x1", "2x1x3x1", "1x2x2x2", "1x1x4x3", "3x2x1x2"):
        grid = Grid.parse(text)
        for z, data in ((z, data) for z in range(grid.z) for data in range(grid.data)):
            coords = grid.coords(grid.rank(z=z, data=data))
            share = Batch(24).rows(grid, coords)
            for part, expected in zip(batch(dataset, rows=share, **arguments), whole, strict=True):
                assert (part == expected[share.start : share.stop]).all()
            micro = [batch(dataset, rows=share[i : i + 1], **arguments)[0] for i in range(len(share))]
            assert (np.concatenate(micro) == whole[0][share.start : share.stop]).all()


@pytest.mark.parametrize("text", ["1x1x1x1", "2x1x3x1", "1x2x2x2", "1x1x4x3"])
def test_the_shares_cover_the_batch_once_and_x_and_y_repeat_them(text: str) -> None:
    grid = Grid.parse(text)
    shares = [Batch(24).rows(grid, grid.coords(rank)) for rank in range(grid.size)]
    counts = np.bincount(list(chain.from_iterable(shares)), minlength=24)
    assert (counts == grid.x * grid.y).all()
    for rank in range(grid.size):
        for axis in (Axis.X, Axis.Y):
            assert len({shares[other] for other in grid.members(axis, rank)}) == 1


def test_neighbours_on_z_hold_neighbouring_shares_of_a_batch_that_the_grid_divides() -> None:
    grid = Grid.parse("2x1x2x3")
    assert Batch(12).rows(grid, grid.coords(grid.rank(z=1, data=2))) == range(10, 12)
    assert Batch(12).rows(grid, grid.coords(grid.rank(x=1, z=1, data=0))) == range(2, 4)
    grid = Grid.parse("1x1x2x2")
    for batch_size, fits in ((10, 12), (3, 4)):
        with pytest.raises(UsageError, match=f"--batch-size {fits}"):
            Batch(batch_size).rows(grid, grid.coords(0))


def test_a_resumed_run_goes_on_where_it_stopped(corpus: Path) -> None:
    dataset = Tokens.open(corpus, 16)
    steps = [batch(dataset, seed=1, step=step, batch_size=8, rows=range(8))[0] for step in range(6)]
    again = batch(Tokens.open(corpus, 16), seed=1, step=4, batch_size=8, rows=range(8))[0]
    assert (again == steps[4]).all()
    assert not any((again == other).all() for other in steps[:4])


def test_synthetic_tokens_are_uniform_and_differ_by_seed_step_and_row() -> None:
    one = batch(synthetic(10, 400), seed=1, step=0, batch_size=50, rows=range(50))[0]
    assert np.bincount(one.ravel(), minlength=10) == pytest.approx(np.full(10, 2000), abs=250)
    assert len(np.unique(one, axis=0)) == 50
    for seed, step in ((2, 0), (1, 1)):
        other = batch(synthetic(10, 400), seed=seed, step=step, batch_size=50, rows=range(50))[0]
        assert (one == other).mean() == pytest.approx(0.1, abs=0.02)
