"""A trace is what the engine does: its order, its memory, its micro-batches; and the ranks of a group agree."""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from dry_plans import dry_plan, few_layers

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.layers.embedding import TokenEmbedding
from engine.models.catalogue import lookup
from engine.models.unet.config import UNetConfig
from engine.overlap.flags import ALL, Overlap
from engine.pipeline.registry import PipelineOptions
from engine.simulator import events
from engine.simulator.events import Attention, Event, Issue, Mark, MatrixProduct, Sweep, Trace, Wait
from engine.tracing import carried_out, step
from engine.tracing.dry import corners, disagreements, some_groups
from engine.tracing.step import trace

SMALL = lookup("gpt-test")
GRID, BATCH = Grid(2, 2, 2, 2), Batch(16, 2)
UNET = UNetConfig("one-level", base=64, multipliers=(1,), depth=1, attention=(), head_channels=32, image=4)


def traced(overlap: str = "none", batch: Batch = BATCH, **other: object) -> Trace:
    return trace(*dry_plan(SMALL, GRID, batch, overlap=Overlap.parse(overlap), **other), 5)  # type: ignore[arg-type]


def kinds(found: Iterable[Event]) -> list[type]:
    return [type(event) for event in found]


def test_without_overlap_every_collective_is_waited_for_where_it_is_issued() -> None:
    found = list(traced())
    for event, after in pairwise(found):
        if isinstance(event, Issue):
            assert isinstance(after, Wait)
            assert after.back == 1


@pytest.mark.parametrize(
    ("flag", "kind", "axis"), [("oar", "all_reduce", "x"), ("ors", "reduce_scatter", "z"), ("oag", "all_gather", "z")]
)
def test_each_flag_puts_products_between_issue_and_wait(flag: str, kind: str, axis: str) -> None:
    def products_in_flight(overlap: str) -> int:
        found, issued, hidden = list(traced(overlap)), [], 0
        for index, event in enumerate(found):
            if isinstance(event, Issue):
                issued.append(index)
            if isinstance(event, Wait):
                start = issued[-event.back]
                sent = found[start]
                assert isinstance(sent, Issue)
                if (sent.kind, sent.axis) == (kind, axis):
                    hidden += kinds(found[start:index]).count(MatrixProduct)
        return hidden

    assert products_in_flight("none") == 0
    assert products_in_flight(flag) > 0


def test_with_the_offload_a_device_sweeps_as_much_for_the_way_to_the_host_is_not_counted() -> None:
    training, grid = dry_plan(SMALL, Grid(), Batch(2), precision="bf16")
    here, offloaded = (trace(replace(training, offload=offload), grid) for offload in (False, True))
    swept = [sum(event.num_bytes for event in found if isinstance(event, Sweep)) for found in (here, offloaded)]
    assert swept[0] == pytest.approx(swept[1], abs=100)


def test_gradients_over_data_travel_during_the_last_backward_only_with_their_flag() -> None:
    def phases_of_issue(overlap: str) -> set[str]:
        found, phase = set(), ""
        plan = dry_plan(SMALL, GRID, Batch(16, 2), overlap=replace(Overlap.parse(overlap), bucket_bytes=1e4))
        for event in trace(*plan):
            if isinstance(event, Mark):
                phase = event.phase
            if isinstance(event, Issue) and (event.kind, event.axis) == ("all_reduce", "data") and event.num_bytes > 8:
                found.add(phase)
        return found

    assert phases_of_issue("none") == {"reduce"}
    assert phases_of_issue("data") == {"backward", "reduce"}


def test_the_middle_micro_batches_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    folded = traced("oar,ors,oag,cache=1,data", Batch(48, 2))
    assert [segment.repeats for segment in folded.segments] == [1, 4, 1]
    monkeypatch.setattr(step, "MOST_PASSES", 6)
    whole = traced("oar,ors,oag,cache=1,data", Batch(48, 2))
    assert [segment.repeats for segment in whole.segments] == [1]
    assert list(folded)[1:] == list(whole)[1:], "but for the copies of tokens that begin a step"
    assert folded.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.01), "but for the tokens of the others"


def test_passes_that_are_under_way_together_are_all_traced() -> None:
    plan = dry_plan(SMALL, GRID, Batch(48, 2))
    found, one_by_one = trace(replace(plan[0], pipeline=PipelineOptions("gpipe")), *plan[1:]), trace(*plan)
    assert [segment.repeats for segment in found.segments] == [1]
    marks = [event.phase for event in found if isinstance(event, Mark)]
    assert marks[:12] == ["forward"] * 6 + ["backward"] * 6
    assert found.flops == one_by_one.flops
    assert found.peak_bytes > one_by_one.peak_bytes, "the activations of all passes are kept"


def test_attention_is_one_event_also_where_blocks_are_run_again() -> None:
    plain, again = traced(checkpoint=False), traced(checkpoint=True)
    for found, forwards in ((plain, 1), (again, 2)):
        backward = [event.backward for event in found if isinstance(event, Attention)]
        assert backward.count(True) == found.micro_batches * SMALL.layers
        assert backward.count(False) == forwards * backward.count(True)


def test_the_memory_of_every_event_is_told_and_the_most_is_the_peak() -> None:
    found = traced("all")
    for segment in found.segments:
        assert [index for index, _ in segment.memory] == list(range(len(segment.events)))
    assert max(size for segment in found.segments for _, size in segment.memory) == found.peak_bytes
    assert found.state_bytes < found.peak_bytes


def test_cache_auto_takes_what_memory_is_left() -> None:
    model = few_layers("gpt-5b", 4)
    grid, batch, block_bytes = Grid(1, 1, 8, 1), Batch(16, 1), 12 * model.hidden**2 * 2
    plan = dry_plan(model, grid, batch, overlap=ALL)
    some = trace(*dry_plan(model, grid, batch, overlap=replace(ALL, cache_bytes=2.5 * block_bytes)))
    none, every = trace(*plan, device_memory=1e9), trace(*plan, device_memory=1e12)
    assert [found.cached_blocks for found in (none, some, every)] == [0, 2, 4]
    for found in (some, every):
        saved = 2 * 4 * found.cached_blocks
        assert found.sent()["all_gather", "z"][0] == none.sent()["all_gather", "z"][0] - saved


def test_a_trace_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    found = traced("all", Batch(64, 2))
    events.write(found, file)
    assert events.read(file) == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda told: told | {"schema": "par4d.result"}, "is not a Par4D trace"),
        (lambda told: told | {"version": 99}, "has schema version 99"),
        (lambda told: told | {"layers": "many"}, "is not a valid trace: at layers"),
        (lambda told: told | {"segments": [{"repeats": 1, "events": [["warp", 1]], "memory": []}]}, "no trace has"),
        (lambda told: told | {"segments": [{"repeats": 1, "events": [["mark"]], "memory": []}]}, "no trace has"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, change, words: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "trace.json"
    file.write_text(json.dumps(change(events.as_json(traced()))))
    with pytest.raises(UsageError, match=words):
        events.read(file)
    file.write_text(file.read_text()[:-20])
    with pytest.raises(UsageError, match="cut short"):
        events.read(file)


def test_the_ranks_of_every_group_issue_the_same_and_one_that_does_not_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = Grid(4, 2, 2, 2)
    plan = dry_plan(SMALL, grid, Batch(4), overlap=Overlap.parse("oar,ors,oag,cache=1,data"))
    ranks = corners(grid) | some_groups(grid, 4)
    assert len(ranks) > 16
    assert disagreements(grid, ranks, lambda rank: trace(*plan, rank)) == []
    plain = TokenEmbedding.forward

    def forward(self, tokens_BS):  # type: ignore[no-untyped-def]
        out = plain(self, tokens_BS)
        return plain(self, tokens_BS) if self.comm.coords.x == 3 else out

    monkeypatch.setattr(TokenEmbedding, "forward", forward)
    found = disagreements(grid, (0, 3), lambda rank: trace(*plan, rank))
    assert any(re.search(r"lane x\b.*\b0 and 3\b", sentence) for sentence in found)


def test_groups_are_drawn_of_every_axis_that_has_any() -> None:
    assert corners(Grid()) == {0}
    assert some_groups(Grid(), 3) == set()
    grid = Grid(8, 4, 16, 64)
    assert len(corners(grid)) == 16
    drawn = some_groups(grid, 40)
    assert drawn == some_groups(grid, 40)
    assert max(drawn) < grid.size


@pytest.mark.parametrize("name", ["gpt-test", "llama-test", "bert-test", "vit-test", "unet"])
def test_shapes_that_are_known_are_those_that_torch_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = dry_plan(
        UNET if name == "unet" else lookup(name), GRID, BATCH, overlap=Overlap.parse("oar,ors,oag,cache=1,data")
    )
    first, again = trace(*plan), trace(*plan)
    monkeypatch.setattr(carried_out, "IN_PLACE", ())
    monkeypatch.setattr(carried_out, "_makes_new", lambda _: False)
    assert trace(*plan) == first == again
