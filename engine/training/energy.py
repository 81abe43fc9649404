"""Measure the energy of a job: choose which rank reads which counter, so that each counts once, and sum over all."""

import logging
import time
from collections.abc import Callable, Sequence

import torch

from engine.comm.agreement import gather_texts
from engine.comm.funnel import Comm
from engine.energy import meter as metering
from engine.energy.counter import Found
from engine.energy.meter import Meter
from engine.measure.machine import kernel_name, sysfs
from engine.result import metrics
from engine.result.schema.step import COMPONENTS, Component, ComponentEnergy, Energy
from engine.training.config import EnergyOption

log = logging.getLogger(__name__)

OFF = "it was turned off by --energy off"
READING_BYTES, REASON_LETTERS = 800, 240
_NAMES = {"device": "devices", "processor": "processors", "memory": "memory", "node": "nodes"}


class JobMeter:
    """Part of a rank in measuring the job's energy. Making it is collective.

    The first rank of a machine reads what the machine counts, the first rank of a device what the device does.
    """

    def __init__(self, comm: Comm, wanted: EnergyOption, clock: Callable[[], float] = time.monotonic) -> None:
        self._comm, self._on = comm, wanted == "auto"
        self._machines: list[str] = []
        found = self._find() if self._on else Found()
        self.meter = Meter(found, clock)
        for component in COMPONENTS:
            why = found.missing.get(component)
            if why is not None and why.mend:
                log.warning("Energy of the %s is not measured: %s.", _NAMES[component], why)

    def _find(self) -> Found:
        comm = self._comm
        on_devices = comm.device.type != "cpu"
        index = comm.device.index or 0
        uuid = str(getattr(torch.cuda.get_device_properties(comm.device), "uuid", "")) if on_devices else ""
        self._machines = gather_texts(comm, kernel_name())
        devices = gather_texts(comm, uuid or f"{comm.rank}")
        mine = self._machines[comm.rank], devices[comm.rank]
        earlier = list(zip(self._machines, devices, strict=True))[: comm.rank]
        return metering.find(
            sysfs(),
            metering.MeteredDevice(index, uuid) if on_devices and mine not in earlier else None,
            of_machine=mine[0] not in self._machines[: comm.rank],
            on_devices=on_devices,
        )

    def result(self, iterations: int, tokens: int) -> Energy:
        """Sum the energy of the job, over so many counted iterations of so many tokens each. Collective."""
        self.meter.close()
        if not self._on:
            return Energy(unmeasured=OFF)
        own = self.meter.readings()
        seconds = self._comm.gather_rows(torch.tensor([self.meter.seconds], dtype=torch.float64)).max().item()
        parts = []
        for component in COMPONENTS:
            written = gather_texts(self._comm, _to_text(own.get(component)), READING_BYTES)
            readings = {r: ComponentEnergy.model_validate_json(text) for r, text in enumerate(written) if text}
            if readings:
                parts.append(self._summed(component, readings, iterations, tokens))
        return Energy(seconds=seconds, iterations=iterations, components=tuple(parts))

    def _summed(
        self, component: Component, readings: dict[int, ComponentEnergy], iterations: int, tokens: int
    ) -> ComponentEnergy:
        """Sum one component, by the rank that read it."""
        known = [reading.joules for reading in readings.values() if reading.joules is not None]
        missing = [reading.unmeasured for reading in readings.values() if reading.joules is None]
        if missing:
            some = f" ({len(missing)} of {len(readings)} that were to read it say so)" if known else ""
            return ComponentEnergy(component=component, unmeasured=f"{missing[0]}{some}")
        joules = sum(known)
        return ComponentEnergy(
            component=component,
            joules=joules,
            joules_per_iteration=metrics.joules_per_iteration(joules, iterations),
            tokens_per_joule=metrics.tokens_per_joule(tokens * iterations, joules),
            counters=sum(reading.counters for reading in readings.values()),
            machines=len({self._machines[rank] for rank in readings}),
            scope=_each_once([reading.scope for reading in readings.values()]),
            source=_each_once([reading.source for reading in readings.values()]),
            sample_s=max((reading.sample_s for reading in readings.values() if reading.sample_s), default=None),
        )


def _to_text(reading: ComponentEnergy | None) -> str:
    """Write a reading as text, short enough to be exchanged; empty for none."""
    if reading is None:
        return ""
    reason = reading.unmeasured and reading.unmeasured[:REASON_LETTERS]
    return reading.model_copy(update={"unmeasured": reason}).model_dump_json(exclude_none=True)


def _each_once(words: Sequence[str | None]) -> str:
    return " and ".join(dict.fromkeys(filter(None, words)))
