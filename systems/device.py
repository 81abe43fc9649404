"""Devices that ranks compute on. What makers advertise is in devices/, by the name that PyTorch gives."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import Field

from engine.schema import Record
from systems.files import read_as

FOLDER = Path(__file__).parent / "devices"
Dtype = Literal["bf16", "fp16", "fp32", "tf32", "fp64"]
Value = TypeVar("Value")


class Sourced(Record, Generic[Value]):
    """Value and its source."""

    value: Value
    source: str = Field(min_length=1)


Fact = Sourced[Annotated[float, Field(gt=0)]]
Count = Sourced[Annotated[int, Field(gt=0)]]


Share = Sourced[Annotated[float, Field(gt=0, le=1)]]


class Reached(Record):
    """Shares of a data sheet that trainings reach on such devices, for machines that nobody has calibrated."""

    products: Share
    """Share of the peak that products reach where they fill the device."""
    attention: Share
    """Share of the peak that fused attention reaches, both halves of the scores counted."""
    memory: Share
    """Share of the memory's rate that kernels reach which only read and write."""


class Device(Record):
    """One device."""

    name: str = Field(min_length=1)
    """Name; of a GPU the whole one that PyTorch gives, by which devices/ has the rest."""
    kind: Literal["cpu", "cuda"]
    memory_bytes: Fact | None = None
    memory_bytes_per_s: Fact | None = None
    """Rate as advertised."""
    peak_flops: dict[Dtype, Fact] = {}
    """Flop/s of dense matrix products, as advertised."""
    empirical_peak_flops: dict[Dtype, Fact] = {}
    """Best that a GEMM benchmark has sustained; the source says at which size."""
    processors: Count | None = None
    """Streaming multiprocessors, or compute units, of a GPU."""
    reached: dict[Dtype, Reached] = {}


class Advertised(Record):
    """Data sheet of a device."""

    aliases: tuple[str, ...] = ()
    """Names that PyTorch gives it on older drivers."""
    memory_bytes: Fact
    memory_bytes_per_s: Fact
    peak_flops: dict[Dtype, Fact] = Field(min_length=1)
    processors: Count | None = None
    reached: dict[Dtype, Reached] = {}


class Devices(Record):
    """Devices of a maker's file, by their whole names."""

    kind: Literal["cpu", "cuda"]
    devices: dict[str, Advertised]


@cache
def devices() -> dict[str, Device]:
    """Return all devices of the folder, by each of their names. Raises SystemFileError for a bad file."""
    by_name: dict[str, Device] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        family = read_as(Devices, path, what="a devices", holds="kind and devices")
        for name, sheet in family.devices.items():
            facts = {key: value for key, value in sheet if key != "aliases"}
            device = Device(name=name, kind=family.kind, **facts)
            by_name |= dict.fromkeys((name, *sheet.aliases), device)
    return by_name


def device_called(name: str) -> Device | None:
    """Return the GPU that PyTorch calls exactly so, as advertised; None for one that is in no file.

    Forms and memory sizes of one model differ in bandwidth and peaks, and a slice of a GPU has less of both: part of a
    name says too little.
    """
    return devices().get(name)


def completed(given: Any) -> Any:
    """Add to a device of a system's file what is advertised of it. What the file says counts, also for one dtype."""
    if not isinstance(given, dict) or not isinstance(name := given.get("name"), str):
        return given
    known = device_called(name)
    if known is None:
        if "kind" not in given:
            raise ValueError(
                f"systems/devices has no {name!r}: give the whole name of a GPU there, or its kind and facts"
            )
        return given
    own = given.get("peak_flops", {})
    peaks = {"peak_flops": {**known.peak_flops, **own}} if isinstance(own, dict) else {}
    return {**dict(known), **given, **peaks, "name": known.name}
