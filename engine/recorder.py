"""Counts what the funnel sends: calls, bytes and seconds for each kind of collective on each axis."""

import time
from dataclasses import dataclass, field, replace

import torch


@dataclass(slots=True)
class Tally:
    """Sums for one kind of collective along one axis. num_bytes: the input buffers of this rank."""

    calls: int = 0
    num_bytes: int = 0
    time_s: float = 0.0


class Clock:
    """Stamps moments of this rank's work: host time, or events on the current stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def stamp(self) -> "float | torch.cuda.Event":
        """The present moment of the stream that computes."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: "float | torch.cuda.Event", end: "float | torch.cuda.Event") -> float:
        """Time between two stamps; on CUDA, waits for the second one."""
        if isinstance(start, torch.cuda.Event):
            assert isinstance(end, torch.cuda.Event)
            end.synchronize()
            return start.elapsed_time(end) / 1e3
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start


@dataclass(slots=True)
class Recorder:
    """Told by Comm of every collective; read() sums up what came since the last clear().

    time_s is from the issue to the end of wait(): as long as nothing is overlapped, the whole time that the
    rank spends on it, waiting for slower ranks included.
    """

    clock: Clock = field(default_factory=lambda: Clock(torch.device("cpu")))
    _tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    _spans: list[tuple[Tally, object, object]] = field(default_factory=list)

    def issued(self, kind: str, axis: str, num_bytes: int) -> Tally:
        """Count one collective; returns the tally that its time is added to."""
        tally = self._tallies.setdefault((kind, axis), Tally())
        tally.calls += 1
        tally.num_bytes += num_bytes
        return tally

    def finished(self, tally: Tally, start: "float | torch.cuda.Event") -> None:
        """Note the end of a collective that was issued at start."""
        self._spans.append((tally, start, self.clock.stamp()))

    def read(self) -> dict[tuple[str, str], Tally]:
        """A copy of the tallies by (kind, axis)."""
        self.settle()
        return {key: replace(tally) for key, tally in self._tallies.items()}

    def settle(self) -> None:
        """Add up the times noted so far. Once a step, or they pile up; on CUDA it waits for the device."""
        for tally, start, end in self._spans:
            tally.time_s += self.clock.seconds(start, end)  # type: ignore[arg-type]
        self._spans.clear()

    def clear(self) -> None:
        """Forget everything counted so far."""
        self._tallies.clear()
        self._spans.clear()
