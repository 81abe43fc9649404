"""What a grid needs of a model and a batch, and the grid that is chosen when none is asked for."""

import pytest

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.planning.choose import choose_grid
from engine.planning.fit import check_grid

MODEL = GPTConfig("m", layers=2, hidden=96, heads=12, vocabulary=100, sequence=16)


@pytest.mark.parametrize(
    ("grid", "batch", "said"),
    [
        (Grid(x=3), Batch(8), "vocabulary of 102, or x one of 1, 2, 4"),
        (Grid(x=10), Batch(8), "12 heads are not a multiple of 10: x may be one of 1, 2, 4"),
        (Grid(y=5), Batch(8), "96 is not a multiple of 5: y may be one of 1, 2, 3, 4, 6, 8, 12"),
        (Grid(z=7), Batch(7), "shards tokens.weight over z=7"),
        (Grid(z=2, data=3), Batch(8), "into 6 parts.*8 sequences is not a multiple.*--batch-size 12"),
        (Grid(data=2), Batch(8, micro=3), "has 4 of the 8 sequences.*--micro-batch one of 1, 2, 4"),
        (Grid(), Batch(0), "--batch-size 1"),
    ],
)
def test_a_grid_that_does_not_divide_is_refused_with_what_would_fit(grid: Grid, batch: Batch, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_grid(MODEL, grid, batch)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (Grid(x=16), "splits the key and value heads over x=16, but 8 heads .*: x may be one of 1, 2, 4, 8"),
        (Grid(x=3), "8 heads are not a multiple of 3"),
        (Grid(y=3), "4096 is not a multiple of 3: y may be one of 1, 2, 4, 8"),
    ],
)
def test_llamas_key_and_value_heads_bound_x(grid: Grid, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_grid(lookup("llama-3.1-8b"), grid, Batch(48))
    check_grid(lookup("llama-3.1-8b"), Grid(x=8, y=2, z=4), Batch(48))


def test_a_feed_forward_that_x_does_not_divide_is_refused() -> None:
    llama = LlamaConfig("m", layers=1, hidden=96, heads=6, kv_heads=6, ffn=100, vocabulary=96, sequence=8)
    with pytest.raises(UsageError, match="100 features are not a multiple of 3: x may be one of 1, 2"):
        check_grid(llama, Grid(x=3), Batch(8))


def test_a_published_vocabulary_that_x_does_not_divide_names_the_next() -> None:
    gpt2 = GPTConfig("gpt2", layers=12, hidden=768, heads=12, vocabulary=50257, sequence=1024)
    check_grid(gpt2, Grid(z=2), Batch(2))
    with pytest.raises(UsageError, match="vocabulary of 50258, or x one of 1"):
        check_grid(gpt2, Grid(x=2), Batch(2))


def test_tensor_parallelism_stays_in_the_node_then_shards_then_data() -> None:
    frontier = {"devices_per_node": 8, "device_memory": 64e9}
    assert choose_grid(lookup("gpt-5b"), 512, Batch(8192), **frontier) == Grid(4, 1, 1, 128)
    assert choose_grid(lookup("gpt-80b"), 8192, Batch(8192), **frontier) == Grid(8, 1, 8, 128)
    assert choose_grid(lookup("gpt-local-2"), 2, Batch(8)) == Grid(data=2)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, 2**k) for name in ("gpt-5b", "gpt-320b") for k in range(13)] + [("gpt-100b", 48), ("gpt-100b", 384)],
)
def test_the_chosen_grid_is_valid(name: str, ranks: int) -> None:
    config, batch = lookup(name), Batch(16384)
    grid = choose_grid(config, ranks, batch, devices_per_node=8, device_memory=64e9)
    assert grid.size == ranks
    check_grid(config, grid, batch)


def test_no_valid_grid_is_said_with_the_closest_one_s_reason() -> None:
    with pytest.raises(
        UsageError, match=r"No grid of 7 ranks fits gpt-test with 8 sequences; the closest failed so: .*7"
    ):
        choose_grid(lookup("gpt-test"), 7, Batch(8))


def test_a_batch_smaller_than_the_ranks_moves_them_off_data() -> None:
    grid = choose_grid(lookup("gpt-test"), 8, Batch(2))
    assert grid.size == 8
    assert grid.batch_split <= 2
