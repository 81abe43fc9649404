"""On CUDA nothing but events orders a lane and the computing stream: they are enough, and each of them is needed."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from training import Case, start, step_parallel
from vector_clocks import NcclOnStreams, RaceDetector, Streams

from engine.comm.backend import Handle
from engine.comm.collective import POINT_TO_POINT, Kind
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.comm.nccl import CudaStreams, group_options
from engine.grid import Axis, Grid
from engine.measure.recorder import Recorder
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL, Overlap
from engine.parallel import runner
from engine.parallel.link import StageLink
from engine.parallel.model import clip_scale
from engine.pipeline.registry import ScheduleChoice
from engine.training.offload import Buckets
from engine.training.optim import AdamW
from engine.training_record import OptimConfig

TINY = GPTConfig("tiny", layers=2, hidden=16, heads=2, vocabulary=32, sequence=4, tied=True)
EVERYTHING = replace(ALL, cache=1, prefetch_depth=3, reduce_window=2, bucket_bytes=1)
CASE = Case(TINY, sequences=8, micro_batches=2, checkpoint=True, steps=2, overlap=EVERYTHING)
GRID, RANK = Grid(2, 1, 2, 2), 3


def _races(work: Callable[[Comm], None], streams: Streams | None = None, grid: Grid = GRID) -> list[str]:
    streams = streams or Streams()
    with fake_group(grid, RANK):
        comm = Comm(grid, backend=NcclOnStreams(streams, RANK))
        with RaceDetector(streams) as detector:
            work(comm)
            detector.check_freed()
    return detector.races


def _train(case: Case, *switched: Overlap) -> Callable[[Comm], None]:
    """Make steps that change the weights piece by piece as gradients become final, then once more after clipping.

    switched: overlaps of one more step each.
    """

    def train(comm: Comm) -> None:
        model = start(case, comm)
        optimizer = AdamW(model, OptimConfig())
        for step, overlap in enumerate([case.overlap] * case.steps + list(switched)):
            model.switch(overlap)
            optimizer.start_step(step)
            step_parallel(case, model, step, optimizer.step)
            optimizer.step(scale=clip_scale(model.gradient_norm(), 1.0))

    return train


def _spread() -> Iterator[Any]:
    """Yield every combination in both precisions: a quarter every time."""
    for flags in product((False, True), repeat=5):
        for number, precision in enumerate(("fp64", "bf16")):
            often = () if (sum(flags) + 2 * number) % 4 == 0 else pytest.mark.weekly
            yield pytest.param(*flags, precision, marks=often)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("oar", "ors", "oag", "cache", "data", "precision"), list(_spread()))
def test_every_access_is_ordered_whatever_overlaps(
    oar: bool, ors: bool, oag: bool, cache: bool, data: bool, precision: str
) -> None:
    overlap = replace(EVERYTHING, oar=oar, ors=ors, oag=oag, cache=int(cache), data=data)
    assert _races(_train(replace(CASE, overlap=overlap, precision=precision))) == []


def test_every_access_is_ordered_when_overlap_is_switched_between_steps() -> None:
    others = [Overlap(), Overlap.parse("oag,cache=2"), EVERYTHING, Overlap.parse("oar,ors,data"), EVERYTHING]
    assert _races(_train(CASE, *others)) == []


def _waits() -> dict[str, int]:
    streams = Streams()
    _races(_train(CASE), streams)
    return streams.waits


def test_without_one_of_its_waits_for_a_collective_the_step_has_a_race() -> None:
    count = _waits()["computing for an event"]
    assert count > 100
    for number in range(1, count + 1, 7):
        assert _races(_train(CASE), Streams(("computing for an event", number))), f"wait {number} of {count}"


def test_lanes_and_process_groups_have_high_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []

    class Options:
        def __init__(self, **options: object) -> None:
            asked.append(options)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device, **options: asked.append(options))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", type("NCCL", (), {"Options": Options}), raising=False)
    CudaStreams(torch.device("cuda")).lane()
    assert group_options(timedelta(seconds=7))._timeout == timedelta(seconds=7)
    assert asked == [{"priority": -1}, {"is_high_priority_stream": True}]


def test_a_lane_that_does_not_wait_for_what_it_sends_is_a_race() -> None:
    lanes = {wait: count for wait, count in _waits().items() if wait.startswith("lane")}
    assert len(lanes) == 4, "x, z, z's gathers and data"
    for lane, count in lanes.items():
        assert _races(_train(CASE), Streams((lane, count // 3))), lane


def test_a_buffer_that_nobody_keeps_while_it_is_sent_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Handle, result, sent=None, *others) -> None:  # type: ignore[no-untyped-def]
        keep(self, result, None, *others)

    keep = Handle.__init__
    case = replace(CASE, precision="bf16")  # what is sent is a cast copy
    assert _races(_train(case)) == []
    monkeypatch.setattr(Handle, "__init__", forgetful)
    assert any("freed" in race for race in _races(_train(case)))


def _two_at_once(comm: Comm) -> None:
    handle = comm.issue(Kind.ALL_REDUCE, Axis.Z, torch.ones(2))
    comm.run(Kind.ALL_REDUCE, Axis.Z, torch.ones(2))
    handle.wait()


def test_one_communicator_sees_one_order_though_what_blocks_stays_on_the_computing_stream() -> None:
    assert _races(_two_at_once) == []
    streams = Streams()
    _races(_two_at_once, streams)
    (blocking,) = [wait for wait in streams.waits if wait.startswith("computing for lane")]
    assert _races(_two_at_once, Streams((blocking, 1)))


def _exchange(comm: Comm) -> None:
    """Exchange with the neighbour on z; then the buffers are used for something else."""
    mine, theirs, other = torch.ones(2), torch.zeros(2), 1 - comm.coords.z
    sent = comm.issue(Kind.SEND, Axis.Z, mine, peer=other)
    received = comm.issue(Kind.RECV, Axis.Z, theirs, peer=other)
    comm.run(Kind.ALL_REDUCE, Axis.Z, torch.ones(2))
    again = comm.issue(Kind.SEND, Axis.Z, torch.ones(2), peer=other)
    sent.wait()
    mine.zero_()
    received.wait()
    theirs.add_(1)
    again.wait()


def test_messages_leave_when_they_are_ready_and_before_the_next_collective() -> None:
    streams = Streams()
    assert _races(_exchange, streams) == []
    (lane,) = [wait for wait in streams.waits if wait.startswith("lane") and wait.endswith("event")]
    assert streams.waits[lane] == 2
    for number in (1, 2):
        assert _races(_exchange, Streams((lane, number)))


def test_what_is_launched_on_a_stream_is_stamped_there_and_a_send_is_no_receive() -> None:
    done: list[str] = []

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            if func.namespace == "c10d" or func._opname == "zero_":
                done.append(func._opname)
            return func(*args, **(kwargs or {}))

    def work(comm: Comm) -> None:
        comm.recorder.start_step("all")  # type: ignore[union-attr]
        with Noting():
            _exchange(comm)
            _two_at_once(comm)
        comm.recorder.end_step()  # type: ignore[union-attr]

    recorder = Recorder()
    with fake_group(GRID, RANK):
        work(Comm(GRID, backend=NcclOnStreams(Streams(), RANK), recorder=recorder))
    assert done == ["send", "recv_", "allreduce_", "zero_", "send", "allreduce_", "allreduce_"]
    collectives = [collectives.pending for collectives in recorder.total.collectives]
    assert len(collectives) == 6
    assert all(pending.done is not None for pending in collectives)
    assert [pending.in_line for pending in collectives] == [
        pending.kind not in POINT_TO_POINT for pending in collectives
    ]
    assert all((pending.began is None) == pending.in_line for pending in collectives), (
        "who waits for a peer says when it came"
    )


def _offloaded(streams: Streams) -> list[str]:
    """Make two steps of an optimizer whose state lies on the host, which somebody reads after each."""

    def work(_: Comm) -> None:
        host = torch.ones(10), torch.ones(10)
        buckets = Buckets(host, torch.device("cpu"), 3, streams)
        for _step in range(2):
            for _low, _high, (weights, moments) in buckets.visits(0, 10):
                weights.add_(moments.mul_(2))
            assert host[0].add(host[1]).shape == (10,)

    return _races(work, streams)


def test_a_bucket_comes_before_it_is_changed_and_goes_back_after_that_and_before_the_next_takes_its_place() -> None:
    streams = Streams()
    assert _offloaded(streams) == []
    lane, steps, buckets = "lane 5", 2, 4  # others are for collectives
    assert streams.waits == {
        f"{lane} for computing": 1 + steps * buckets,
        "computing for an event": steps * buckets,
        f"computing for {lane}": steps,
    }
    needed = [(wait, number) for wait, count in streams.waits.items() for number in range(1, count + 1)]
    needed.remove((f"{lane} for computing", 1))  # before the first bucket there was nothing
    for wait in needed:
        assert _offloaded(Streams(wait)), wait


STAGES = Grid(x=2, pipe=3)
"""RANK is in the middle stage."""


@pytest.fixture
def _untailed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages of fake ranks, which name no task."""
    monkeypatch.setattr(StageLink, "_check", lambda *_: None)


def _pipeline(schedule: str) -> Callable[[Comm], None]:
    """Train three stages, of two chunks if interleaved."""
    case = replace(CASE, config=replace(TINY, layers=6), sequences=12, micro_batches=6, steps=1, precision="bf16")
    return _train(replace(case, order=ScheduleChoice(schedule).make()))


@pytest.mark.usefixtures("_untailed")
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zero-bubble"])
def test_every_access_to_a_message_between_stages_is_ordered(schedule: str) -> None:
    assert _races(_pipeline(schedule), grid=STAGES) == []


@pytest.mark.usefixtures("_untailed")
def test_a_message_that_is_begun_too_early_or_taken_before_it_is_there_is_a_race() -> None:
    streams, passes = Streams(), 6
    _races(_pipeline("1f1b"), streams, STAGES)
    begun = [wait for wait, count in streams.waits.items() if wait.endswith("for computing") and count == passes]
    assert len(begun) == 4, "sent and received, forward and backward"
    for wait in [*((lane, 3) for lane in begun), *(("computing for an event", number) for number in (1, 10, 20, 30))]:
        assert _races(_pipeline("1f1b"), Streams(wait), STAGES), wait


def test_the_host_chooses_a_task_once_the_device_has_begun_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []

    class Computing:
        tasks = 0

        def record_event(self) -> SimpleNamespace:
            return SimpleNamespace(synchronize=partial(ended.append, self.tasks))

    stream, launched = Computing(), deque[Any]()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    for stream.tasks in range(4):
        runner._keep_pace(torch.device("cuda"), launched)
        assert ended == list(range(stream.tasks)), "all tasks but the last one"
