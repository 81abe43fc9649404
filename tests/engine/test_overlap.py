"""Communication behind compute: the same numbers and the same bytes, within bounds of memory, whatever happens."""

import logging
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product

import pytest
import torch
from closed_form import Volume
from real_ranks import run_processes
from test_parity import EAGER, SMALL, TOLERANCE, serial
from test_volume import counting
from torch import nn
from training import Case, Outcome, Written, error, start, step_parallel, train_parallel, worst_error
from virtual_ranks import LazyComm, run_ranks

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.models.llama.config import LlamaConfig
from engine.overlap.flags import Overlap
from engine.overlap.tasks import StageTask
from engine.parallel.model import ParallelModel
from engine.parallel.serial_state import full_gradients, full_state_dict
from engine.training.optim import AdamW
from engine.training_record import OptimConfig

THREE_BLOCKS: dict[str, Architecture] = {
    "gpt": replace(SMALL, layers=3),
    "llama": LlamaConfig("tiny", layers=3, hidden=16, heads=4, kv_heads=2, ffn=8, vocabulary=8, sequence=6),
}
CASE = Case(THREE_BLOCKS["gpt"], sequences=8, micro_batches=2, checkpoint=True, overlap=EAGER)
EVERY_COMBINATION = [
    replace(EAGER, oar=oar, ors=ors, oag=oag, cache=cache, data=data)
    for oar, ors, oag, data, cache in product((False, True), (False, True), (False, True), (False, True), (0, 2))
]
FEW = [overlap for overlap in EVERY_COMBINATION if len(str(overlap).split(",")) in (1, 5)]
"""Overlaps of no flag, each flag alone, and all: what is done when is the same for every family."""
OFTEN = [
    pytest.param("gpt", overlap, marks=() if overlap in FEW or place % 6 == 0 else pytest.mark.weekly)
    for place, overlap in enumerate(EVERY_COMBINATION)
]
Z_AND_DATA = Grid(1, 1, 2, 2)


@pytest.fixture(params=THREE_BLOCKS)
def case(request: pytest.FixtureRequest) -> Case:
    return replace(CASE, config=THREE_BLOCKS[request.param])


def trained(case: Case) -> tuple[Outcome, Volume]:
    """Train, and count what is sent in the last step, which knows the order of the layers."""

    def one(comm: Comm) -> tuple[Outcome, Volume]:
        sent = Volume()
        return train_parallel(case, comm, lambda step: counting(comm, sent)), sent

    return run_ranks(Grid(2, 1, 2, 2), one, record=True)[0]


@cache
def sent_without_overlap(case: Case) -> Volume:
    return trained(replace(case, overlap=Overlap()))[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "overlap"), [*OFTEN, *product(["llama"], FEW[::3])], ids=str)
def test_every_combination_of_flags_trains_like_the_serial_model_and_sends_the_same_but_what_the_cache_saves(
    name: str, overlap: Overlap
) -> None:
    case = replace(CASE, config=THREE_BLOCKS[name])
    ours, sent = trained(replace(case, overlap=overlap))
    assert worst_error(ours, serial(replace(case, overlap=Overlap()))) < TOLERANCE
    plain, gathers, layers, others = sent_without_overlap(case), ("all_gather", "z"), 3 * 4, 2
    saved = overlap.cache * 4 if overlap.cache else 0
    assert plain.calls[gathers] == case.micro_batches * (2 * layers + others)
    assert sent.calls[gathers] == case.micro_batches * (2 * layers - saved + others)
    for key in plain.num_bytes.keys() | sent.num_bytes.keys():
        if key == gathers and saved:
            assert sent.num_bytes[key] < plain.num_bytes[key]
        else:
            assert sent.num_bytes[key] == plain.num_bytes[key], key


def train_model(case: Case, model: ParallelModel, steps: int = 3) -> None:
    for step in range(steps):
        step_parallel(case, model, step)


def test_another_order_stays_correct_and_is_told_once(case: Case, caplog: pytest.LogCaptureFixture) -> None:
    """A block is skipped in the third step, and is there again in the fifth."""

    def train(comm: Comm, overlap: Overlap) -> dict[str, torch.Tensor]:
        own = replace(case, overlap=overlap)
        model = start(own, comm)
        whole = model.module.blocks
        for step, count in enumerate([3, 3, 2, 2, 3, 3]):
            model.module.blocks = nn.ModuleList(list(whole)[:count])
            step_parallel(own, model, step)
            model.module.blocks = whole
            for parameter in model.parameters():
                parameter.data.sub_(parameter.grad)  # type: ignore[arg-type]
        return full_state_dict(model)

    oracle = run_ranks(Z_AND_DATA, lambda comm: train(comm, Overlap()))[0]
    with caplog.at_level(logging.WARNING, "engine.overlap.prefetch"):
        ours = run_ranks(Z_AND_DATA, lambda comm: train(comm, EAGER))[0]
    assert max(error(ours[name], oracle[name]) for name in oracle) < TOLERANCE
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == Z_AND_DATA.size, "once on every rank"
    assert all("another order" in words for words in told)


def test_evaluation_in_the_middle_of_a_step_changes_nothing(case: Case) -> None:
    tokens = torch.arange(2 * case.config.sequence).view(2, -1) % case.config.vocabulary

    def gradients(comm: Comm, overlap: Overlap, *, evaluate: bool) -> dict[str, torch.Tensor]:
        model = start(replace(case, overlap=overlap), comm)
        for _ in range(3):
            model.start_step()
            loss = model.loss({"tokens": tokens, "targets": tokens})
            if evaluate:
                with torch.no_grad():
                    model(tokens)
                model(tokens)  # with gradients, but of no step
            loss.backward()
            model.finish_step()
        return full_gradients(model)

    oracle = run_ranks(Z_AND_DATA, lambda comm: gradients(comm, Overlap(), evaluate=False))[0]
    ours = run_ranks(Z_AND_DATA, lambda comm: gradients(comm, EAGER, evaluate=True))[0]
    assert max(error(ours[name], oracle[name]) for name in oracle) < TOLERANCE


class Interrupted(Exception): ...


def _interrupted(comm: Comm, case: Case) -> tuple[float, float]:
    """Fail in the middle of the second step's backward, on every rank, and repeat it."""

    def interrupt(gradient: torch.Tensor) -> None:
        raise Interrupted

    def plant(block: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        output.register_hook(interrupt)

    losses = []
    for fails in (False, True):
        model = start(case, comm)
        step_parallel(case, model, 0)
        if fails:
            hook = model.module.blocks[0].register_forward_hook(plant)
            with pytest.raises(Interrupted):
                step_parallel(case, model, 1)
            hook.remove()
        losses.append(step_parallel(case, model, 1) + model.flat_gradients.sum().item())
    add = model.schedule.accumulate

    def interrupt_layer(weight, *others):  # type: ignore[no-untyped-def]
        add(weight, *others)
        if weight.placement.name.startswith("blocks.1.feed_forward"):
            raise Interrupted

    model.schedule.accumulate = interrupt_layer  # type: ignore[method-assign]
    with pytest.raises(Interrupted):
        step_parallel(case, model, 2)
    assert comm.outstanding.in_flight
    model.abort_step()  # and a clean exit follows
    assert not comm.outstanding.in_flight
    return losses[0], losses[1]


@pytest.mark.parametrize("run", [run_processes, run_ranks], ids=["processes", "virtual"])
def test_an_exception_in_a_step_leaves_nothing_in_flight(run, case: Case) -> None:  # type: ignore[no-untyped-def]
    for undisturbed, repeated in run(Z_AND_DATA, partial(_interrupted, case=case)):
        assert undisturbed == repeated


def test_the_optimizer_steps_each_piece_once_while_later_ones_are_in_flight(case: Case) -> None:
    case = replace(case, overlap=replace(EAGER, bucket_bytes=1))

    def train(comm: Comm, *, early: bool) -> tuple[dict[str, torch.Tensor], list[int]]:
        assert isinstance(comm, LazyComm)
        model = start(case, comm)
        optimizer = AdamW(model, OptimConfig())
        flying = []
        for step in range(3):
            pieces: list[tuple[int, int]] = []
            optimizer.start_step(step)

            def step_piece(start: int, stop: int, pieces=pieces) -> None:  # type: ignore[no-untyped-def]
                pieces.append((start, stop))
                flying.append(comm.in_flight)
                optimizer.step(start, stop)

            step_parallel(case, model, step, step_piece if early else None)
            if not early:
                optimizer.step()
            else:
                ends = [0, *(stop for _, stop in sorted(pieces))]
                assert [start for start, _ in sorted(pieces)] == ends[:-1]
                assert ends[-1] == len(model.flat_gradients)
        return full_state_dict(model), flying

    oracle = run_ranks(Z_AND_DATA, lambda comm: train(comm, early=False))[0][0]
    ours, flying = run_ranks(Z_AND_DATA, lambda comm: train(comm, early=True))[0]
    assert all(torch.equal(ours[name], oracle[name]) for name in oracle)
    assert flying[-1] == 0
    assert max(flying) > 2
    assert any(later < earlier for earlier, later in pairwise(flying))


@pytest.mark.parametrize("order", ["F0 B0 F1 B1", "F0 F1 B0 B1", "F0 F1 B1 B0"])
def test_the_sum_over_data_begins_in_the_last_backward_and_not_before(case: Case, order: str) -> None:
    case = replace(case, overlap=replace(EAGER, bucket_bytes=1), order=Written(order))
    when: Counter[str] = Counter()
    moment = {0: "", 1: ""}

    class Noting(LazyComm):
        """Comm that notes the moments of the sums over data."""

        def _start(self, kind, axis, lane, *others):  # type: ignore[no-untyped-def]
            if axis is Axis.DATA and kind is Kind.ALL_REDUCE and others[0].numel() > 1:
                when[moment[self.rank]] += 1
            return super()._start(kind, axis, lane, *others)

    def train(comm: Comm) -> None:
        model = start(case, comm)
        finish = model.finish_step
        start_task = model.schedule.start_task

        def note_task(task: StageTask) -> None:
            moment[comm.rank] = f"{task.direction} {task.number}"
            start_task(task)

        def finish_step(on_summed=None) -> None:  # type: ignore[no-untyped-def]
            moment[comm.rank] = "finish"
            finish(on_summed)
            moment[comm.rank] = "after"

        model.schedule.start_task = note_task  # type: ignore[method-assign]
        model.finish_step = finish_step  # type: ignore[method-assign]
        train_model(case, model)

    run_ranks(Grid(1, 1, 1, 2), train, of=Noting)
    weights, ranks, steps = 3 * 4 + 2, 2, 3
    last = f"backward {order[-1]}"
    assert when == {last: ranks * steps * weights, "finish": ranks * steps}, "replicated ones come at the end"
