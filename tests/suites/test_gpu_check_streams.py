"""What ci/gpu looks at in collectives on their lanes: each fault that it must find is planted, on played streams.

The engine's channel for NCCL runs on them. A lane does what it is given as late as its result is waited for, and what
it sends is no number where it does not wait itself for the computing stream.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.collective import IN_PLACE, Kind
from engine.comm.contact import Route
from engine.comm.groups import ProcessGroups
from engine.comm.nccl import NcclChannel
from engine.result.schema.gpu_check import Finding
from gpu_check import streams

CPU = torch.device("cpu")
SENT, RESULT, BEFORE = "no wait for what is sent", "no wait for a result", "no wait for what the lane still does"
ELSEWHERE, FORGOTTEN = "a collective on another stream than its event", "a gather that gathers nothing"
STANDS = "no overlap"


class Lane:
    """One group's stream."""

    def __init__(self, fault: str) -> None:
        self.fault, self.ready = fault, False
        self.given: list[Callable[[], object]] = []

    def wait_stream(self, computing: object) -> None:
        self.ready = self.fault != SENT

    def give(self, source: Tensor, target: Tensor) -> None:
        self.given.append(partial(target.copy_, source if self.ready else torch.full_like(source, torch.nan)))
        self.ready = False

    def record_event(self) -> Callable[[], None]:
        return partial(self.run, len(self.given))

    def run(self, until: int | None = None) -> None:
        for number, work in enumerate(self.given[:until]):
            work()
            self.given[number] = lambda: None


class Computing:
    """Which does at once what it is given."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def wait_stream(self, lane: Lane) -> None:
        if self.fault != BEFORE:
            lane.run()

    def wait_event(self, event: Callable[[], None]) -> None:
        if self.fault != RESULT:
            event()

    def give(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)


class Streams:
    """In the place of CudaStreams."""

    def __init__(self, fault: str) -> None:
        self.fault = fault
        self.computing = Computing(fault)
        self.now: Any = self.computing

    def lane(self) -> Lane:
        return Lane(self.fault)

    def current(self) -> Any:
        return self.now

    @contextmanager
    def use(self, lane: Lane) -> Iterator[None]:
        self.now = Lane(self.fault) if self.fault == ELSEWHERE else lane
        yield
        self.now = self.computing


class Channel(NcclChannel):
    """Collectives of one rank: copies."""

    def carry_out(self, kind: Kind, source: Tensor, target: Tensor, root: object, flight: object) -> None:
        played: Any = self._streams
        if kind not in IN_PLACE and not (kind is Kind.ALL_GATHER and played.fault == FORGOTTEN):
            played.current().give(source, target)


def _found(monkeypatch: pytest.MonkeyPatch, fault: str) -> Finding:
    def channel(*given: object) -> Channel:
        played: Any = Streams(fault)
        assert dist.group.WORLD is not None
        return Channel(dist.group.WORLD, played, Route(0, "on an axis", [], "nccl"))

    monkeypatch.setattr(ProcessGroups, "channel", channel)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(streams, "NUMBERS", 16)
    monkeypatch.setattr(streams, "_goes_on", lambda device: fault != STANDS)
    return streams.lanes(CPU)


def test_collectives_on_their_lanes_pass_over_gloo_and_on_streams_that_are_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert streams.lanes(CPU).status == "pass"
    assert _found(monkeypatch, "none").status == "pass"


@pytest.mark.parametrize("fault", [SENT, RESULT, BEFORE, ELSEWHERE, FORGOTTEN, STANDS])
def test_a_lane_out_of_order_fails(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    found = _found(monkeypatch, fault)
    assert (found.status, found.name) == ("fail", "collectives on their lanes, one rank over nccl")
    assert (streams.STANDS in found.sentence) == (fault == STANDS)


@dataclass
class Clock:
    """Seconds as the host has them."""

    now: float = 0.0


@dataclass
class Moment:
    """An event: when a stream comes to it."""

    clock: Clock
    at: float

    def synchronize(self) -> None:
        self.clock.now = max(self.clock.now, self.at)

    def query(self) -> bool:
        return self.at <= self.clock.now


@dataclass
class Timed:
    """A stream that is busy until then."""

    clock: Clock
    until: float = 0.0

    def record_event(self) -> Moment:
        return Moment(self.clock, self.until)

    def wait_event(self, event: Moment) -> None:
        self.until = max(self.until, event.at)

    def wait_stream(self, other: "Timed") -> None:
        self.wait_event(other.record_event())

    def keep_busy(self) -> None:
        self.until = max(self.until, self.clock.now) + 1


class TimedStreams:
    """In the place of CudaStreams."""

    def __init__(self, fault: str) -> None:
        self.fault, self.clock = fault, Clock()
        self.computing = self.now = Timed(self.clock)

    def lane(self) -> Timed:
        return self.computing if self.fault == "a lane that is the computing stream" else Timed(self.clock)

    def current(self) -> Timed:
        return self.now

    @contextmanager
    def use(self, lane: Timed) -> Iterator[None]:
        self.now = self.now if self.fault == "a lane that nobody uses" else lane
        yield
        self.now = self.computing


@pytest.mark.parametrize(
    "fault",
    ["none", "a lane that is the computing stream", "a lane that nobody uses", "a result that is waited for at once"],
)
def test_a_computing_stream_that_stands_still_beside_a_lane_is_seen(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    played, start = TimedStreams(fault), NcclChannel.start

    def waits(self: NcclChannel, *given: Any, blocking: bool) -> Callable[[], None]:
        finish = start(self, *given, blocking=blocking)
        if fault == "a result that is waited for at once":
            finish()
        return finish

    monkeypatch.setattr(streams, "streams_of", lambda device: played)
    monkeypatch.setattr(streams, "keep_busy", lambda device, cycles: played.current().keep_busy())
    monkeypatch.setattr(NcclChannel, "start", waits)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert streams._goes_on(CPU) == (fault == "none")
    finally:
        dist.destroy_process_group()
