"""Where the time of a step goes: sums of a recorder whose clock is set by hand."""

import math
from typing import ClassVar

import pytest
import torch
from ticks import Hands

from engine.measure.pending import Pending
from engine.measure.recorder import Recorder, Tally, TraceEvent


class Step:
    """A recorder's step, told moment by moment."""

    def __init__(self) -> None:
        self.hands = Hands()
        self.recorder = Recorder(self.hands)  # type: ignore[arg-type]
        self.recorder.start_step("forward")

    def at(self, now: float) -> "Step":
        self.hands.now = now
        return self

    def issue(self, axis: str, lane: str, *, blocking: bool = False):  # type: ignore[no-untyped-def]
        return self.recorder.issued("all_gather", axis, lane, 8, blocking=blocking)


def test_a_step_without_collectives_is_all_compute() -> None:
    step = Step()
    step.at(2.0).recorder.mark("backward")
    assert step.at(5.0).recorder.end_step() == 5.0
    phases = step.recorder.total.phases
    assert {name: phase.compute_s for name, phase in phases.items()} == {"forward": 2.0, "backward": 3.0}


def test_waits_flights_and_compute_are_told_apart() -> None:
    """0-1 compute; 1-3 a blocking wait on y; 3-6 compute with z in flight since 0; 6-7 wait for z; 7-10 compute."""
    step = Step()
    gather = step.issue("z", "z gather")
    blocking = step.at(1.0).issue("y", "y", blocking=True)
    blocking.waited = blocking.issued
    blocking.done = blocking.resumed = 3.0
    step.at(5.0).recorder.mark("backward")
    gather.waited, gather.done, gather.resumed = 6.0, 7.0, 7.0
    assert step.at(10.0).recorder.end_step() == 10.0
    total = step.recorder.total
    forward, backward = total.phases["forward"], total.phases["backward"]
    assert (forward.compute_s, forward.blocking_s, forward.exposed_s) == (3.0, 2.0, 0.0)
    assert (backward.compute_s, backward.blocking_s, backward.exposed_s) == (4.0, 0.0, 1.0)
    # z was in flight for 7 s: 2 s of them behind the wait for y, and 1 s in its own wait.
    assert (forward.hidden_s, backward.hidden_s) == (3.0, 1.0)
    assert (total.axes["z"].exposed_s, total.axes["z"].hidden_s) == (1.0, 4.0)
    assert (total.axes["y"].exposed_s, total.axes["y"].hidden_s) == (2.0, 0.0)
    gathers, others = total.tallies["all_gather", "z"], total.tallies["all_gather", "y"]
    assert (gathers.calls, gathers.time_s, gathers.exposed_s, gathers.hidden_s) == (1, 7.0, 1.0, 4.0)
    assert (others.calls, others.time_s, others.exposed_s, others.hidden_s) == (1, 2.0, 2.0, 0.0)
    assert TraceEvent("compute", "wait", "all_gather z", 6.0, 7.0) in total.events
    assert TraceEvent("z gather", "collective", "all_gather", 0.0, 7.0, issued_s=0.0) in total.events


def test_collectives_of_one_lane_follow_each_other_and_of_two_lanes_run_at_once() -> None:
    step = Step()
    first, second, other = step.issue("z", "z"), step.issue("z", "z"), step.issue("x", "x")
    for pending, done in ((first, 2.0), (second, 5.0), (other, 4.0)):
        pending.waited = pending.resumed = 6.0
        pending.done = done
    step.at(6.0).recorder.end_step()
    total = step.recorder.total
    assert total.axes["z"].hidden_s == 5.0
    assert total.axes["x"].hidden_s == 4.0
    assert total.phases["forward"].hidden_s == 5.0  # what is in flight together hides behind the same compute
    assert (total.lanes["z"], total.lanes["x"]) == (5.0, 4.0)
    assert total.tallies["all_gather", "z"].time_s == 5.0


def test_one_that_is_never_waited_for_is_exposed_for_no_time() -> None:
    step = Step()
    step.issue("z", "z")
    step.at(3.0).recorder.end_step()
    assert step.recorder.total.axes["z"].exposed_s == 0.0
    assert step.recorder.total.axes["z"].hidden_s == 3.0
    assert step.recorder.total.phases["forward"].compute_s == 3.0


def test_steps_add_up_and_events_are_those_of_the_last() -> None:
    step = Step()
    for length in (1.0, 2.0):
        step.at(0.0).recorder.start_step("forward")
        pending = step.issue("z", "z", blocking=True)
        pending.waited, pending.done, pending.resumed = 0.0, length / 2, length / 2
        step.at(length).recorder.end_step()
    total = step.recorder.total
    assert (total.steps, total.time_s) == (2, 3.0)
    assert total.phases["forward"].compute_s == pytest.approx(1.5)
    assert max(event.end_s for event in total.events) == 2.0


def test_nothing_is_recorded_between_steps_and_of_a_step_that_is_begun_again_nothing_stays() -> None:
    step = Step()
    step.issue("x", "x")
    step.at(2.0).recorder.start_step("forward")
    step.issue("z", "z")
    assert step.at(3.0).recorder.end_step() == 1.0
    assert step.recorder.issued("all_gather", "y", "y", 8, blocking=False) is None
    total = step.recorder.total
    assert {key: tally.calls for key, tally in total.tallies.items()} == {("all_gather", "z"): 1}
    assert len(total.collectives) == 1
    step.recorder.start_step("forward")
    step.recorder.clear()
    assert step.recorder.issued("all_gather", "y", "y", 8, blocking=False) is None
    assert step.recorder.total.steps == 0


def test_a_lane_that_says_when_it_began_is_believed_and_an_end_after_the_wait_is_not() -> None:
    step = Step()
    pending = step.issue("z", "z")
    step.at(2.0)
    pending.begin()
    pending.waited, pending.done, pending.resumed = 5.0, 9.0, 6.0
    step.at(9.0).recorder.end_step()
    (event,) = [event for event in step.recorder.total.events if event.kind == "collective"]
    assert (event.issued_s, event.start_s, event.end_s) == (0.0, 2.0, 6.0)


def test_one_whose_end_is_not_told_ends_with_its_wait_and_one_that_overtakes_another_takes_no_time() -> None:
    step = Step()
    slow, quick, silent = step.issue("z", "z"), step.issue("z", "z"), step.issue("x", "x")
    slow.waited, slow.done, slow.resumed = 5.0, 5.0, 6.0
    quick.waited, quick.done, quick.resumed = 6.0, 2.0, 6.0
    silent.waited, silent.resumed = 7.0, 8.0
    step.at(9.0).recorder.end_step()
    events = [event for event in step.recorder.total.events if event.kind == "collective"]
    assert [(event.start_s, event.end_s) for event in events] == [(0.0, 5.0), (2.0, 2.0), (0.0, 8.0)]


def test_a_blocking_wait_begins_when_it_is_issued_and_only_the_first_end_of_a_wait_counts() -> None:
    step = Step()
    blocking, other = step.issue("y", "y", blocking=True), step.issue("z", "z")
    step.at(1.0)
    blocking.wait(unavoidable=False)
    other.wait(unavoidable=True)
    for moment in (2.0, 3.0):
        step.at(moment)
        blocking.resume()
        other.resume()
    assert (blocking.waited, blocking.resumed, blocking.blocking) == (0.0, 2.0, True)
    assert (other.waited, other.resumed, other.blocking) == (1.0, 2.0, True)


def test_a_wait_that_failed_is_exposed_for_no_time() -> None:
    step = Step()
    pending = step.issue("z", "z")
    step.at(1.0)
    pending.wait(unavoidable=False)
    step.at(3.0).recorder.end_step()
    assert step.recorder.total.axes["z"].exposed_s == 0.0


def test_without_timing_calls_bytes_and_the_length_of_a_step_are_recorded_and_no_more() -> None:
    recorder = Recorder(hands := Hands(), timing=False)  # type: ignore[arg-type]
    recorder.start_step("forward")
    assert recorder.issued("all_gather", "z", "z", 8, blocking=False) is None
    recorder.mark("backward")
    hands.now = 4.0
    assert recorder.end_step() == 4.0
    total = recorder.total
    assert (total.timed, total.steps, total.time_s) == (False, 1, 4.0)
    assert total.tallies == {("all_gather", "z"): Tally(calls=1, num_bytes=8)}
    assert not total.phases
    assert not total.axes
    assert not total.events


class CudaEvent:
    """A timing event on the stream that is the current one, whose time passes as the test says."""

    made: ClassVar[int] = 0
    now: ClassVar[float] = 0.0

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing
        CudaEvent.made += 1
        self.at = math.nan

    def record(self) -> None:
        self.at = CudaEvent.now

    def elapsed_time(self, end: "CudaEvent") -> float:
        return 1e3 * (end.at - self.at)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Host waits for a device whose events are doubles."""
    found: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "synchronize", found.append)
    monkeypatch.setattr(torch.cuda, "Event", CudaEvent)
    monkeypatch.setattr(CudaEvent, "made", 0)
    return found


def _step_on_cuda(recorder: Recorder, *, in_line: bool) -> None:
    """As NCCL has it: 0-1 compute; a gather is in flight from 0 to 4, and one behind it on its lane until 6; at 1 the
    rank waits for a sum, which takes 2 s; at 5 for the first gather and the second.
    """

    def at(now: float) -> None:
        CudaEvent.now = now

    def issue(axis: str, began: float, done: float, *, blocking: bool = False) -> Pending:
        now = CudaEvent.now
        pending = recorder.issued("all_gather", axis, axis, 8, blocking=blocking)
        assert pending is not None
        at(began)
        pending.begin(in_line=in_line)
        at(done)
        pending.end()
        at(now)
        return pending

    def wait(pending: Pending, until: float) -> None:
        pending.wait(unavoidable=False)
        at(until)
        pending.resume()

    at(0.0)
    recorder.start_step("forward")
    first, second = issue("z", 0.0, 4.0), issue("z", 4.0, 6.0)
    at(1.0)
    wait(issue("x", 1.0, 3.0, blocking=True), 3.0)
    at(5.0)
    recorder.mark("backward")
    wait(first, 5.0)
    wait(second, 6.0)
    at(9.0)
    recorder.end_step()


@pytest.mark.parametrize("timing", [False, True])
def test_on_cuda_the_host_waits_once_a_step_at_its_end(timing: bool, waits: list[torch.device]) -> None:
    device = torch.device("cuda", 1)
    recorder = Recorder.on(device, breakdown=timing)
    recorder.start_step("forward")
    pending = recorder.issued("all_gather", "z", "z", 8, blocking=False)
    recorder.mark("backward")
    if pending is not None:
        pending.wait(unavoidable=False)
        pending.resume()
    assert not waits
    recorder.end_step()
    assert waits == [device]
    assert recorder.total.timed == timing
    assert bool(CudaEvent.made) == timing
    assert Recorder.on(torch.device("cpu"), breakdown=False).total.timed, "where it costs nothing"


def test_what_a_stream_orders_is_told_without_a_stamp_and_the_same(waits: list[torch.device]) -> None:
    stamped, in_line = (Recorder.on(torch.device("cuda"), breakdown=True) for _ in range(2))
    _step_on_cuda(stamped, in_line=False)
    events_of_a_step = CudaEvent.made
    _step_on_cuda(in_line, in_line=True)
    assert (events_of_a_step, CudaEvent.made - events_of_a_step) == (3 + 2 * 5 + 4, 3 + 2 * 3 + 2)
    assert in_line.total.events == stamped.total.events
    for part in ("time_s", "tallies", "phases", "axes", "lanes"):
        assert getattr(in_line.total, part) == getattr(stamped.total, part)
    waited = in_line.total.axes
    assert (waited["x"].exposed_s, waited["z"].exposed_s, waited["z"].hidden_s) == (2.0, 1.0, 3.0)


def test_after_a_first_step_no_event_is_made_and_each_tells_of_its_own_step(waits: list[torch.device]) -> None:
    recorder = Recorder.on(torch.device("cuda"), breakdown=True)
    _step_on_cuda(recorder, in_line=True)
    made, first = CudaEvent.made, recorder.total.events
    recorder.start_step("forward")
    recorder.issued("all_gather", "z", "z", 8, blocking=False)  # and the step fails
    for _ in range(3):
        _step_on_cuda(recorder, in_line=True)
    assert CudaEvent.made == made
    assert recorder.total.events == first
    assert recorder.total.steps == 4


def test_a_step_takes_processor_seconds_and_what_lies_between_two_steps_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = iter([1.0, 3.0, 10.0, 10.5])
    carried = iter([(0, 0), (70, 30), (500, 500), (570, 530)])
    monkeypatch.setattr("engine.measure.recorder.processor_s", lambda: next(taken))
    monkeypatch.setattr("engine.measure.recorder.link_bytes", lambda: next(carried))
    recorder = Recorder(Hands())  # type: ignore[arg-type]
    for _ in range(2):
        recorder.start_step("forward")
        recorder.end_step()
    total = recorder.total
    assert (total.processor_s, total.received_bytes, total.sent_bytes) == (2.5, 140, 60)


def test_where_no_times_are_told_nothing_is_read_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.measure.recorder.link_bytes", lambda: pytest.fail("it was read"))
    recorder = Recorder(Hands(), timing=False)  # type: ignore[arg-type]
    recorder.start_step("forward")
    recorder.end_step()
    assert (recorder.total.steps, recorder.total.processor_s) == (1, 0)


def test_each_recording_holds_the_steps_that_were_recorded_into_it() -> None:
    recorder = Recorder(Hands())  # type: ignore[arg-type]
    one, two = recorder.new_recording(), recorder.new_recording()
    for recording in (one, two, one):
        recorder.record_into(recording)
        recorder.start_step("forward")
        recorder.end_step()
    assert (one.steps, two.steps) == (2, 1)
