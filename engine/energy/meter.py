"""A rank's counters are read at the start and at the end of its training, outside the steps. No torch."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.energy import devices, pm_counters, rapl
from engine.energy.counter import Count, Counter, Found, Unreadable
from engine.result.schema.step import Component, ComponentEnergy

ROUND_S = 20.0
"""A counter that goes round is read so often between steps."""
SHORTEST = 10
"""What is shorter than so many times a counter's age would be measured worse than by a tenth."""


@dataclass(frozen=True, slots=True)
class Device:
    """It is an accelerator of this process: its number there, and its name in the world."""

    index: int
    uuid: str


def find(root: Path, device: Device | None, *, of_machine: bool, on_devices: bool) -> Found:
    """Find what this rank is to read. root: of sysfs. device: its accelerator, unless another rank reads that.

    of_machine: this is the rank that reads its machine's counters; on_devices: the job trains on accelerators. Of
    pm_counters and others, pm_counters are taken where both count a component: they take a node whole.
    """
    cray = pm_counters.find(root)
    found: list[Found] = []
    if of_machine:
        found.append(cray if on_devices else _without_devices(cray))
        found.append(rapl.find(root))
    if device is not None and "device" not in cray.components:
        found.append(devices.find(device.index, device.uuid))
    counters: list[Counter] = []
    missing: dict[Component, Unreadable] = {}
    for source in found:
        taken = {counter.component for counter in counters}
        counters += [counter for counter in source.counters if counter.component not in taken]
        missing |= source.missing
    have = {counter.component for counter in counters}
    return Found(tuple(counters), {component: why for component, why in missing.items() if component not in have})


def _without_devices(found: Found) -> Found:
    return Found(
        tuple(counter for counter in found.counters if counter.component != "device"),
        {component: why for component, why in found.missing.items() if component != "device"},
    )


class Meter:
    """A meter counts from start() to stop(), as often as asked. A counter that fails on the way ends its component's
    sum.
    """

    def __init__(self, found: Found, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts = [Count(counter) for counter in found.counters]
        self._missing: dict[Component, str] = {component: str(why) for component, why in found.missing.items()}
        self._since_s = self._read_s = 0.0
        self.seconds = 0.0
        """These pass between the starts and their stops."""
        self._stretches = 0
        """They lie between pauses; each has an end and a beginning that a counter says late."""

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
        """Give every component that this rank reads, as it has read it."""
        found = {of: ComponentEnergy(component=of, unmeasured=why) for of, why in self._missing.items()}
        for component in {count.counter.component for count in self._counts} - set(found):
            found[component] = self._reading([c for c in self._counts if c.counter.component == component])
        return found

    def _reading(self, counts: Sequence[Count]) -> ComponentEnergy:
        """Make the reading of the counts of one component."""
        counter, joules = counts[0].counter, sum(count.joules for count in counts)
        component = counter.component
        if self.seconds < SHORTEST * counter.renewed_s * self._stretches:
            short = (
                f"{counter.source} is renewed every {counter.renewed_s:g} s, too rarely for the {self.seconds:.2g} s"
            )
            return ComponentEnergy(
                component=component, unmeasured=f"{short} of the counted iterations: take more of them"
            )
        if not joules:
            still = f"no counter of {counter.source} moved in {self.seconds:.1f} s"
            return ComponentEnergy(component=component, unmeasured=still)
        return ComponentEnergy(
            component=component,
            joules=joules,
            counters=len(counts),
            scope=counter.scope,
            source=counter.source,
            sample_s=counter.sample_s,
        )
