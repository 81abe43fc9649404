"""Record where a plan's numbers of its machine come from, and whether they are another machine's. No torch."""

from typing import TYPE_CHECKING

from engine.result.provenance import processor, processor_name
from engine.schema import Record

if TYPE_CHECKING:
    from systems import Measured, System


class Origin(Record):
    """The numbers of a system come from its file, from what was measured on it, or from both.

    date, device: when and on what it was measured, if it was. calibrated: whether more than its links was measured.
    fitted_to: the measured times behind the four fitted numbers; none where these aren't used. other: the system's own
    device, where another one was measured.
    """

    system: str
    date: str | None = None
    device: str | None = None
    calibrated: bool = False
    fitted_to: tuple[str, ...] = ()
    other: str | None = None


def origin(system: "System", measured: "Measured | None", *, simulated: bool) -> Origin:
    """Say where a plan's numbers of a system come from. simulated: whether the plan predicts times."""
    own = (measured and measured.performance) or system.performance
    fitted_to = own.fitted_to if own and simulated else ()
    if measured is None:
        return Origin(system=system.name, fitted_to=fitted_to)
    return Origin(
        system=system.name,
        date=measured.date,
        device=measured.source.device,
        calibrated=measured.performance is not None,
        fitted_to=fitted_to,
        other=_other(system, measured.source.device, measured.source.processor),
    )


def describe(of: Origin) -> str:
    """Write a sentence or two for a person."""
    command = f"par4d calibrate --system {of.system}"
    if of.device is not None and (of.calibrated or not of.fitted_to):
        what, are = ("calibration", "is") if of.calibrated else ("links", "are")
        if of.other is not None:
            return (
                f"The {what} of {of.date} {are} another machine's: {of.device}, not {of.other}; {command} mends that."
            )
        return f"{what.capitalize()} measured on {of.date}: {of.device}."
    if of.fitted_to:
        unused = f" The links measured on {of.date} count in it after {command}." if of.date else ""
        return f"The machine's numbers are fitted to published times of {' and '.join(of.fitted_to)}.{unused}"
    return f"Nobody has calibrated {of.system}: {command} does, and times are closer then."


def _other(system: "System", device: str, known: str | None) -> str | None:
    """Name what the system has instead of the measured device; None where the measured one may be its own."""
    from systems import device_called  # loads pydantic

    if system.device.kind == "cuda":
        found = device_called(device)
        return None if found is not None and found.name == system.device.name else system.device.name
    same = processor() == known if known else processor_name() == device
    return None if same or not system.may_be_here() else f"this one, {processor() if known else processor_name()}"
