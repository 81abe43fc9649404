"""Where the time of a step goes: sums of a recorder whose clock is set by hand."""

import pytest

from engine.measure.recorder import Recorder, TraceEvent


class Hands:
    """A clock that shows what it is set to."""

    now = 0.0

    def stamp(self) -> float:
        return self.now

    stamp_end = stamp

    def seconds(self, start: float, end: float) -> float:
        return end - start


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
    assert (forward.hidden_s, backward.hidden_s) == (4.0, 0.0)
    assert (total.axes["z"].exposed_s, total.axes["z"].hidden_s) == (1.0, 4.0)
    assert (total.axes["y"].exposed_s, total.axes["y"].hidden_s) == (2.0, 0.0)
    assert (total.tallies["all_gather", "z"].calls, total.tallies["all_gather", "z"].time_s) == (1, 7.0)
    assert TraceEvent("compute", "wait", "all_gather z", 6.0, 7.0) in total.events
    assert TraceEvent("z gather", "collective", "all_gather", 0.0, 7.0, issued_s=0.0) in total.events


def test_collectives_of_one_lane_follow_each_other_and_of_two_lanes_run_at_once() -> None:
    step = Step()
    first, second, other = step.issue("z", "z"), step.issue("z", "z"), step.issue("x", "x")
    for flight, done in ((first, 2.0), (second, 5.0), (other, 4.0)):
        flight.waited = flight.resumed = 6.0
        flight.done = done
    step.at(6.0).recorder.end_step()
    total = step.recorder.total
    assert total.axes["z"].hidden_s == 5.0
    assert total.axes["x"].hidden_s == 4.0
    assert total.tallies["all_gather", "z"].time_s == 5.0


def test_one_that_is_never_waited_for_is_exposed_for_no_time() -> None:
    step = Step()
    step.issue("z", "z")
    step.at(3.0).recorder.end_step()
    assert step.recorder.total.axes["z"].exposed_s == 0.0
    assert step.recorder.total.phases["forward"].compute_s == 3.0


def test_steps_add_up_and_events_are_those_of_the_last() -> None:
    step = Step()
    for length in (1.0, 2.0):
        step.at(0.0).recorder.start_step("forward")
        flight = step.issue("z", "z", blocking=True)
        flight.waited, flight.done, flight.resumed = 0.0, length / 2, length / 2
        step.at(length).recorder.end_step()
    total = step.recorder.total
    assert (total.steps, total.time_s) == (2, 3.0)
    assert total.phases["forward"].compute_s == pytest.approx(1.5)
    assert max(event.end_s for event in total.events) == 2.0
