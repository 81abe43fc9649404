"""Parts of a predicted step of a trainer's row: where its time goes. No torch."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from statistics import fmean
from typing import TYPE_CHECKING

from engine.simulator.events import Attention, Convolution, MatrixProduct, Sweep, Trace
from engine.simulator.machine import MachineModel

if TYPE_CHECKING:
    from engine.tracing.predict import Traced


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of a step; their sum is its predicted time."""

    products: float
    attention: float
    memory: float
    """Kernels of the engine's step that only read and write, the optimizer's among them."""
    beside: float
    """Passes over memory of the trainer's own program."""
    slowed: float
    """Loss of compute to collectives in flight."""
    exposed: float
    """Communication that nothing hides."""


def part_of(traces: Sequence["Traced"], beside: Sweep, machine: MachineModel) -> Parts:
    """Part the mean of some traces, each with the passes beside it."""
    parted = [_part(traced, machine.compute_s(beside), machine) for traced in traces]
    return Parts(*map(fmean, zip(*map(astuple, parted), strict=True)))


def _part(traced: "Traced", beside_s: float, machine: MachineModel) -> Parts:
    found = traced.on(machine)
    products, attention, memory = _computed(traced, machine)
    slowed = found.compute_s - products - attention - memory
    return Parts(products, attention, memory, beside_s, slowed, found.communication_s)


def _computed(traced: "Traced", machine: MachineModel) -> tuple[float, ...]:
    """Add up kernels of all layers."""
    each = [[often * seconds for seconds in _add_up(trace, machine)] for trace, often in traced.terms]
    return tuple(map(sum, zip(*each, strict=True)))


def _add_up(trace: Trace, machine: MachineModel) -> tuple[float, float, float]:
    products = attention = memory = 0.0
    for event in trace:
        match event:
            case MatrixProduct() | Convolution():
                products += machine.compute_s(event)
            case Attention():
                attention += machine.compute_s(event)
            case Sweep():
                memory += machine.compute_s(event)
    return products, attention, memory


NAMES = tuple(field.name for field in fields(Parts))
