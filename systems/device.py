"""Devices: what a rank computes on. What makers advertise of theirs is in devices/, by the name that PyTorch gives."""

from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from engine.schema import Record
from systems.files import read_as
from systems.performance import Count, Dtype, Fact

FOLDER = Path(__file__).parent / "devices"


class Device(Record):
    """One device. Peaks are flop/s of dense matrix products, by dtype.

    name: a GPU has the whole name that PyTorch gives it, by which devices/ has the rest. empirical_peak_flops: the best
    that a GEMM benchmark has sustained; the source says at which size. memory_bytes_per_s: is as advertised.
    processors: of a GPU are its streaming multiprocessors, or compute units.
    """

    name: str = Field(min_length=1)
    kind: Literal["cpu", "cuda"]
    memory_bytes: Fact | None = None
    memory_bytes_per_s: Fact | None = None
    peak_flops: dict[Dtype, Fact] = {}
    empirical_peak_flops: dict[Dtype, Fact] = {}
    processors: Count | None = None


class Advertised(Record):
    """Data sheet of a device. aliases: names that PyTorch gives it on older drivers."""

    aliases: tuple[str, ...] = ()
    memory_bytes: Fact
    memory_bytes_per_s: Fact
    peak_flops: dict[Dtype, Fact] = Field(min_length=1)
    processors: Count | None = None


class Devices(Record):
    """Devices of a maker's file, by their whole names."""

    kind: Literal["cpu", "cuda"]
    devices: dict[str, Advertised]


@cache
def devices() -> dict[str, Device]:
    """Return all devices of the folder, by each of their names. Raises SystemFileError for a bad file."""
    found: dict[str, Device] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        family = read_as(Devices, path, what="a devices", holds="kind and devices")
        for name, said in family.devices.items():
            device = Device(
                name=name,
                kind=family.kind,
                memory_bytes=said.memory_bytes,
                processors=said.processors,
                memory_bytes_per_s=said.memory_bytes_per_s,
                peak_flops=said.peak_flops,
            )
            found |= dict.fromkeys((name, *said.aliases), device)
    return found


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
