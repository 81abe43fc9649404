"""Cray's pm_counters give joules of a node and its parts, in files that everybody may read, renewed ten times a second.

HPE, "User Access to Compute Node Power Data" (Cray System Management): /sys/cray/pm_counters/energy is of the node with
its accelerators, cpu_energy and memory_energy of those domains, accel_energy of all accelerators; nodes of several also
have accel0_energy and on. A file says `123456 J`, newer ones with a time stamp: `123456 J 1700000000000000 us`.
"""

import re
from pathlib import Path

from engine.energy.counter import Counter, Found, Unreadable
from engine.measure.machine import read_or_nothing
from engine.result.schema.step import Component

FOLDER = "cray/pm_counters"
_SCOPES: dict[Component, str] = {
    "device": "all accelerators of the job's nodes",
    "processor": "all processors of the job's nodes",
    "memory": "all memory of the job's nodes",
    "node": "the job's nodes, whole",
}
RENEWED_S = 0.1
_VALUE = re.compile(r"(\d+) J( \d+ us)?")


def find(root: Path) -> Found:
    """Find those of the node below a sysfs root."""
    folder = root / FOLDER
    numbered = sorted(folder.glob("accel[0-9]*_energy"))
    files: dict[Component, list[Path]] = {
        "device": numbered or _accelerators(folder / "accel_energy"),
        "processor": _there(folder / "cpu_energy"),
        "memory": _there(folder / "memory_energy"),
        "node": _there(folder / "energy"),
    }
    counters: list[Counter] = []
    missing: dict[Component, Unreadable] = {}
    for component, listed in files.items():
        try:
            counters += [_counter(component, file) for file in listed]
        except Unreadable as why:
            missing[component] = why
    if not files["node"]:
        missing["node"] = Unreadable(f"there is no counter of whole nodes here ({folder})")
    return Found(tuple(counters), missing)


def _there(file: Path) -> list[Path]:
    return [file] if file.exists() else []


def _accelerators(file: Path) -> list[Path]:
    """Read all accelerators together; the file says 0 where there are none."""
    text = read_or_nothing(file)
    return [file] if text and not text.startswith("0 ") else []


def _counter(component: Component, file: Path) -> Counter:
    def read() -> float:
        return joules(file)

    read()
    return Counter(component, source="Cray pm_counters", scope=_SCOPES[component], read=read, renewed_s=RENEWED_S)


def joules(file: Path) -> float:
    """Read a file of energy. Raises Unreadable."""
    try:
        text = file.read_text().strip()
    except PermissionError:
        raise Unreadable(f"{file} may not be read by this user: ask the system's administrators", mend=True) from None
    except (OSError, ValueError) as error:
        raise Unreadable(f"{file} can't be read: {error}") from None
    found = _VALUE.fullmatch(text)
    if found is None:
        raise Unreadable(f"{file} says {text[:40]!r}, not a number of joules")
    return float(found[1])
