"""Meter of a rank: its counters are read at the start and at the end of its training, outside the steps. No torch."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.energy import devices
from engine.energy.counter import Count, Found, Unreadable
from engine.energy.sysfs import find_cray, find_rapl
from engine.result.schema.step import Component, ComponentEnergy

ROUND_S = 20.0
"""Seconds after which a counter that goes round is read between steps."""
SHORTEST = 10
"""Shortest stretch by a counter's age: a shorter one would be measured worse than by a tenth."""


@dataclass(frozen=True, slots=True)
class MeteredDevice:
    """Accelerator of this process: its number there, and its name in the world."""

    index: int
    uuid: str


def find(root: Path, device: MeteredDevice | None, *, of_machine: bool, on_devices: bool) -> Found:
    """Find what this rank is to read. root: of sysfs. device: its accelerator, unless another rank reads that.

    of_machine: this is the rank that reads its machine's counters; on_devices: the job trains on accelerators. Cray's
    counters are taken where others count a component, too: they take a node whole.
    """
    cray, found = find_cray(root), Found()
    if of_machine:
        found = (cray if on_devices else cray.without("device")).or_else(find_rapl(root))
    if device is not None and "device" not in cray.components:
        found = found.or_else(devices.find(device.index, device.uuid))
    return found


class Meter:
    """Sum of what counters count from start() to stop(), as often as asked. A counter that fails on the way ends its
    component's sum.
    """

    def __init__(self, found: Found, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = [Count(counter) for counter in found.counters]
        self._missing: dict[Component, str] = {component: str(why) for component, why in found.missing.items()}
        self._since_s = self._read_s = 0.0
        self.seconds = 0.0
        """Between the starts and their stops."""
        self._stretches = 0
        """Between pauses; each has an end and a beginning that a counter says late."""

    def start(self) -> None:
        """Count from here on."""
        self._since_s = self._read_s = self._clock()
        self._stretches += 1
        self._each(Count.start, self._counts)

    def between_steps(self) -> None:
        """Keep up with counters that go round, if it is time."""
        if self._clock() - self._read_s >= ROUND_S:
            self._read_s = self._clock()
            self._each(Count.stop, [count for count in self._counts if count.counter.round_j is not None])

    def stop(self) -> None:
        """Count nothing from here on."""
        self._each(Count.stop, self._counts)
        self.seconds += self._clock() - self._since_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out something that is no part of training."""
        self.stop()
        yield
        self.start()

    def close(self) -> None:
        """End what runs beside it."""
        for count in self._counts:
            count.counter.close()

    def _each(self, call: Callable[[Count, float], None], counts: Sequence[Count]) -> None:
        for count in counts:
            if count.counter.component in self._missing:
                continue
            try:
                call(count, self._clock())
            except Unreadable as why:
                self._missing[count.counter.component] = str(why)

    def readings(self) -> dict[Component, ComponentEnergy]:
        """Return every component that this rank reads, as it has read it."""
        found = {of: ComponentEnergy(component=of, unmeasured=why) for of, why in self._missing.items()}
        for component in {count.counter.component for count in self._counts} - set(found):
            found[component] = self._reading([c for c in self._counts if c.counter.component == component])
        return found

    def _reading(self, counts: Sequence[Count]) -> ComponentEnergy:
        counter, joules = counts[0].counter, sum(count.joules for count in counts)
        why = None
        if self.seconds < SHORTEST * counter.renewed_s * self._stretches:
            short = f"renewed every {counter.renewed_s:g} s, too rarely for the {self.seconds:.2g} s"
            why = f"{counter.source} is {short} of the counted iterations: take more of them"
        elif not joules:
            why = f"no counter of {counter.source} moved in {self.seconds:.1f} s"
        if why is not None:
            return ComponentEnergy(component=counter.component, unmeasured=why)
        return ComponentEnergy(
            component=counter.component,
            joules=joules,
            counters=len(counts),
            scope=counter.scope,
            source=counter.source,
            sample_s=counter.sample_s,
        )
