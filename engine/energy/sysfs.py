"""Counters of energy in files below sysfs: RAPL's of processors and memory, and Cray's of a node and its parts.

RAPL (Documentation/power/powercap/powercap.rst of the kernel): on servers a package's zone leaves memory out. Since
2020 most kernels let only root read the counters (CVE-2020-8694). Zones of another control type (intel-rapl-mmio) are
the same packages once more. zeus reads these files too, but with a process of its own that looks at them every second.

Cray (HPE, "User Access to Compute Node Power Data", Cray System Management): /sys/cray/pm_counters/energy is of the
node with its accelerators, cpu_energy and memory_energy of those domains, accel_energy of all accelerators; nodes of
several also have accel0_energy and on. A file says `123456 J`, newer ones with a time stamp: `123456 J 1700000000000000
us`. Everybody may read them.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from engine.energy.counter import Counter, Found, Unreadable
from engine.measure.machine import read_or_nothing
from engine.result.schema.step import Component

RAPL_RENEWED_S = 0.001
"""About every millisecond (Intel 64 Software Developer's Manual, volume 3, "RAPL Interfaces")."""
CRAY_RENEWED_S = 0.1
_ZONES: dict[Component, tuple[str, str, str]] = {
    "processor": (r"intel-rapl:\d+", "package", "packages"),
    "memory": (r"intel-rapl:\d+:\d+", "dram", "dram zones"),
}
"""Name of a zone's folder, beginning of what its file `name` says, and words for the source."""
_WHOSE: dict[Component, str] = {
    "device": "all accelerators of the job's nodes",
    "processor": "all processors of the job's nodes",
    "memory": "all memory of the job's nodes",
    "node": "the job's nodes, whole",
}


def find_rapl(root: Path) -> Found:
    """Find the packages and memories below a sysfs root, each once."""
    folder = root / "class/powercap"

    def zones(component: Component) -> Iterable[Counter]:
        folder_name, name, words = _ZONES[component]
        found = [
            zone
            for zone in sorted(folder.glob("intel-rapl:*"))
            if re.fullmatch(folder_name, zone.name) and read_or_nothing(zone / "name").startswith(name)
        ]
        if not found:
            what = "processors" if component == "processor" else "memory"
            raise Unreadable(f"RAPL counts no energy of {what} here ({folder})")
        for zone in found:
            round_j = _microjoules(zone / "max_energy_range_uj")
            read = partial(_microjoules, zone / "energy_uj")
            yield _opened(component, f"RAPL, {words}", read, RAPL_RENEWED_S, round_j)

    return Found.open({component: partial(zones, component) for component in _ZONES})


def find_cray(root: Path) -> Found:
    """Find the counters of a Cray node below a sysfs root."""
    folder = root / "cray/pm_counters"
    files: dict[Component, list[Path]] = {
        "device": sorted(folder.glob("accel[0-9]*_energy")),
        "processor": [folder / "cpu_energy"],
        "memory": [folder / "memory_energy"],
        "node": [folder / "energy"],
    }
    if not files["device"] and not read_or_nothing(folder / "accel_energy").startswith("0 "):  # 0 of no accelerators
        files["device"] = [folder / "accel_energy"]

    def counters(component: Component) -> Iterable[Counter]:
        there = [file for file in files[component] if file.exists()]
        if not there and component == "node":
            raise Unreadable(f"there is no counter of whole nodes here ({folder})")
        for file in there:
            yield _opened(component, "Cray pm_counters", partial(_joules, file), CRAY_RENEWED_S)

    return Found.open({component: partial(counters, component) for component in files})


def _opened(
    component: Component, source: str, read: Callable[[], float], renewed_s: float, round_j: float | None = None
) -> Counter:
    """Make a counter that can be read."""
    read()
    return Counter(component, source, _WHOSE[component], read, renewed_s, round_j)


def _microjoules(file: Path) -> float:
    return 1e-6 * _number(file, r"(\d+)", "may only be read by root: let others read it (chmod a+r)")


def _joules(file: Path) -> float:
    return _number(file, r"(\d+) J(?: \d+ us)?", "may not be read by this user: ask the system's administrators")


def _number(file: Path, pattern: str, forbidden: str) -> float:
    try:
        text = file.read_text().strip()
    except PermissionError:
        raise Unreadable(f"{file} {forbidden}", mend=True) from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{file} can't be read: {error}") from None
    found = re.fullmatch(pattern, text)
    if found is None:
        raise Unreadable(f"{file} says {text[:40]!r}, not a number of joules")
    return float(found[1])
