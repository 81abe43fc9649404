"""Files of energy as the kernel and Cray's nodes have them, below a folder that stands for /sys."""

from collections.abc import Sequence
from pathlib import Path

PACKAGE_RANGE_J, MEMORY_RANGE_J = 262143.328850, 65712.999613
"""Of a server's packages and memory: 32 bits of 61 and 15.3 microjoules."""


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def zone(root: Path, number: str, name: str, joules: float, range_j: float = PACKAGE_RANGE_J) -> Path:
    """A zone of RAPL (Documentation/power/powercap/powercap.rst); the class folder holds those of all levels."""
    folder = root / "class" / "powercap" / number
    _write(folder / "name", name)
    _write(folder / "energy_uj", str(round(joules * 1e6)))
    _write(folder / "max_energy_range_uj", str(round(range_j * 1e6)))
    return folder


def rapl(root: Path, packages: Sequence[float] = (1000.0, 2000.0), memory: Sequence[float] = (300.0, 400.0)) -> None:
    """Two sockets with their memory, cores that are part of a package, and the first package once more, by MMIO."""
    for place, joules in enumerate(packages):
        zone(root, f"intel-rapl:{place}", f"package-{place}", joules)
        zone(root, f"intel-rapl:{place}:0", "core", joules / 2)
    for place, joules in enumerate(memory):
        zone(root, f"intel-rapl:{place}:1", "dram", joules, MEMORY_RANGE_J)
    zone(root, "intel-rapl:9", "psys", 9e4)
    zone(root, "intel-rapl-mmio:0", "package-0", packages[0])


def cray(root: Path, *, node: int, processor: int, memory: int, devices: tuple[int, ...], stamp: str = "") -> Path:
    """Cray's pm_counters (HPE, "User Access to Compute Node Power Data"): joules, newer ones with a time stamp."""
    folder = root / "cray" / "pm_counters"
    joules = {"energy": node, "cpu_energy": processor, "memory_energy": memory, "accel_energy": sum(devices)}
    joules |= {f"accel{place}_energy": value for place, value in enumerate(devices)}
    for name, value in joules.items():
        _write(folder / name, f"{value} J{stamp}")
    _write(folder / "power", f"560 W{stamp}")
    _write(folder / "freshness", "123456")
    return folder
