"""Where a plan's numbers of its machine come from, and whether they are another machine's. No torch in it."""

from typing import TYPE_CHECKING

from engine.result.provenance import processor, processor_name
from engine.schema import Record

if TYPE_CHECKING:
    from systems import Measured, System


class Origin(Record):
    """system: whose numbers they are. date, device: of what was measured there; absent if nothing was. calibrated:
    whether that is more than its links. fitted_to: the measured times behind the model's four numbers; none where they
    aren't used. other: what the device is there or here, where another one was measured.
    """

    system: str
    date: str | None = None
    device: str | None = None
    calibrated: bool = False
    fitted_to: tuple[str, ...] = ()
    other: str | None = None


def origin(system: "System", measured: "Measured | None", *, simulated: bool) -> Origin:
    """Of what a plan takes of a system; simulated: whether it tells times."""
    own = (measured and measured.performance) or system.performance
    found = Origin(system=system.name, fitted_to=own.fitted_to if own and simulated else ())
    if measured is None:
        return found
    source = measured.source
    return found.model_copy(
        update={
            "date": measured.date,
            "device": source.device,
            "calibrated": measured.performance is not None,
            "other": _other(system, source.device, source.processor),
        }
    )


def describe(of: Origin) -> str:
    """In a sentence or two."""
    command = f"par4d calibrate --system {of.system}"
    if of.device is not None and (of.calibrated or not of.fitted_to):
        what = "calibration" if of.calibrated else "links"
        if of.other is not None:
            return f"The {what} of {of.date} are another machine's: {of.device}, not {of.other}; {command} mends that."
        return f"{what.capitalize()} measured on {of.date}: {of.device}."
    if of.fitted_to:
        unused = f" The links measured on {of.date} count in it after {command}." if of.date else ""
        return f"The machine's numbers are fitted to published times of {' and '.join(of.fitted_to)}.{unused}"
    return f"Nobody has calibrated {of.system}: {command} does, and times are closer then."


def _other(system: "System", device: str, known: str | None) -> str | None:
    """What the machine has instead; None where what was measured may be its own."""
    from systems import device_called  # loads pydantic

    if system.device.kind == "cuda":
        found = device_called(device)
        return None if found is not None and found.name == system.device.name else system.device.name
    same = processor() == known if known else processor_name() == device
    return None if same or not system.may_be_here() else f"this one, {processor() if known else processor_name()}"
