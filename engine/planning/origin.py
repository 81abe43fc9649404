"""Where a plan's numbers of its machine come from, and whether they are another machine's. No torch in it."""

from typing import TYPE_CHECKING

from engine.result.provenance import processor_name
from engine.schema import Record

if TYPE_CHECKING:
    from systems import Measured, System


class Origin(Record):
    """system: whose numbers they are. date, device: of its calibration; absent without one. fitted_to: the measured
    times behind its four numbers. other: what the device is there or here, where the calibration is of another one.
    """

    system: str
    date: str | None = None
    device: str | None = None
    fitted_to: tuple[str, ...] = ()
    other: str | None = None


def origin(system: "System", measured: "Measured | None") -> Origin:
    """Of what engine.planning.machine.Machine takes of a system."""
    if measured is None or measured.performance is None:
        own = system.performance
        return Origin(system=system.name, fitted_to=own.fitted_to if own else ())
    device = measured.source.device
    return Origin(
        system=system.name,
        date=measured.date,
        device=device,
        fitted_to=measured.performance.fitted_to,
        other=_other(system, device),
    )


def told(of: Origin) -> str:
    """In a sentence or two."""
    command = f"par4d calibrate --system {of.system}"
    if of.device is None and of.fitted_to:
        return f"The machine's numbers are fitted to published times of {' and '.join(of.fitted_to)}."
    if of.device is None:
        return f"Nobody has calibrated {of.system}: its numbers are what is usual ({command} measures them)."
    if of.other is None:
        return f"Calibrated on {of.date}, {of.device}."
    return f"The calibration of {of.date} is of another machine: {of.device}, not {of.other}; {command} mends that."


def _other(system: "System", device: str) -> str | None:
    """What the machine has instead; None where the calibration may be its own."""
    from systems import device_called  # loads pydantic

    if system.device.kind == "cuda":
        known = device_called(device)
        return None if known is None or known.name == system.device.name else system.device.name
    here = processor_name()
    return None if device == here or not system.may_be_here() else f"this one, {here}"
