"""RAPL counts joules of processor packages, and of memory where it has a zone; Linux shows it in /sys/class/powercap.

The files: Documentation/power/powercap/powercap.rst of the kernel. On servers a package's zone leaves memory out. Since
2020 most kernels let only root read the counters (CVE-2020-8694). Zones of another control type (intel-rapl-mmio) are
the same packages once more. zeus reads these files too, but with a process of its own that looks at them every second.
"""

import re
from pathlib import Path

from engine.energy.counter import Counter, Found, Unreadable
from engine.measure.machine import read_or_nothing
from engine.result.schema.step import Component

FOLDER = "class/powercap"
_PACKAGE, _PART = re.compile(r"intel-rapl:\d+"), re.compile(r"intel-rapl:\d+:\d+")
RENEWED_S = 0.001
"""It is updated about every millisecond (Intel 64 Software Developer's Manual, volume 3, "RAPL Interfaces")."""
_MICRO = 1e-6


def find(root: Path) -> Found:
    """Find the packages and memories below a sysfs root, each once."""
    folder = root / FOLDER
    zones: dict[Component, list[Path]] = {"processor": [], "memory": []}
    for zone in sorted(folder.glob("intel-rapl:*")):
        name = read_or_nothing(zone / "name").strip()
        if _PACKAGE.fullmatch(zone.name) and name.startswith("package"):
            zones["processor"].append(zone)
        elif _PART.fullmatch(zone.name) and name == "dram":
            zones["memory"].append(zone)
    counters: list[Counter] = []
    missing: dict[Component, Unreadable] = {}
    for component, listed in zones.items():
        try:
            counters += _counters(component, listed, folder)
        except Unreadable as why:
            missing[component] = why
    return Found(tuple(counters), missing)


def _counters(component: Component, zones: list[Path], folder: Path) -> list[Counter]:
    """Open all or, as some make no sum, none: raises Unreadable."""
    if not zones:
        what = "processors" if component == "processor" else "memory"
        raise Unreadable(f"RAPL counts no energy of {what} here ({folder})")
    return [_counter(component, zone) for zone in zones]


def _counter(component: Component, zone: Path) -> Counter:
    def read() -> float:
        return _number(zone / "energy_uj") * _MICRO

    read()
    return Counter(
        component,
        source=f"RAPL, {'packages' if component == 'processor' else 'dram zones'}",
        scope=f"all {'processors' if component == 'processor' else 'memory'} of the job's nodes",
        read=read,
        renewed_s=RENEWED_S,
        round_j=_number(zone / "max_energy_range_uj") * _MICRO,
    )


def _number(file: Path) -> int:
    try:
        return int(file.read_text())
    except PermissionError:
        raise Unreadable(f"{file} may only be read by root: let others read it (chmod a+r)", mend=True) from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{file} can't be read as a number: {error}") from None
