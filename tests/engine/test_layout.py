"""How peers split ranks in their own ways."""

import pytest

from engine.batch import Batch
from engine.errors import UsageError
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.peers.layout import SPLITS, Layout, every, usual

GPT = GPTConfig("tiny", layers=4, hidden=32, heads=4, vocabulary=64, sequence=16)


def test_a_layout_is_read_and_written() -> None:
    layout = Layout.parse("tensor=2,micro_batches=8,pipeline=3")
    assert layout == Layout(tensor=2, pipeline=3, micro_batches=8)
    assert str(layout) == "tensor=2,pipeline=3,micro_batches=8"
    assert (layout.size, str(Layout())) == (6, "tensor=1")


@pytest.mark.parametrize(
    "text", ["", "tensor", "tensor=0", "tensor=2,tensor=2", "expert=2", "tensor=2;data=2", "data=-1"]
)
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"tensor, .*micro_batches .*{text!r}"):
        Layout.parse(text)


def test_the_usual_layout_gives_prime_factors_in_turn() -> None:
    assert usual(8, SPLITS) == Layout(tensor=2, pipeline=2, data=2)
    assert usual(12, SPLITS) == Layout(tensor=2, pipeline=2, data=3)
    assert usual(6, ("pipeline", "data")) == Layout(pipeline=2, data=3)
    assert usual(1, SPLITS) == Layout()


def test_a_pipeline_takes_as_many_micro_batches_as_its_stages_need() -> None:
    assert Layout(pipeline=2).for_batch(Batch(64)).micro_batches == 8
    assert Layout(pipeline=2).for_batch(Batch(6)).micro_batches == 6
    assert Layout(pipeline=2, data=2).for_batch(Batch(6)).micro_batches == 3
    assert Layout(pipeline=2, micro_batches=2).for_batch(Batch(64)).micro_batches == 2
    assert Layout(tensor=2).for_batch(Batch(64)).micro_batches == 1


def test_every_layout_of_some_ranks_that_fits() -> None:
    found = every(8, SPLITS, GPT, 8)
    assert len(set(found)) == len(found)
    assert {layout.size for layout in found} == {8}
    assert Layout(tensor=8) not in found
    assert Layout(tensor=2, pipeline=2, data=2) in found
    assert every(8, ("data",), GPT, 8) == [Layout(data=8)]
    assert every(8, ("data",), GPT, 4) == []


def test_tensor_ranks_divide_the_heads_of_keys_which_may_be_fewer() -> None:
    model = LlamaConfig("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocabulary=64, sequence=16)
    Layout(tensor=2).check(model, 8)
    with pytest.raises(UsageError, match=r"tensor is 4,\D+2 heads"):
        Layout(tensor=4).check(model, 8)


def test_data_ranks_share_the_batch() -> None:
    layout = Layout(tensor=2, data=2)
    assert [list(layout.rows(index, 6)) for index in (0, 1)] == [[0, 1, 2], [3, 4, 5]]
