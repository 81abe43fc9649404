"""The parts of the check that need torch, each in a process of its own, which writes what it finds as it goes."""

import json
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from engine.files import write_text
from engine.result.schema.gpu_check import Finding, write_findings

if TYPE_CHECKING:
    import torch


def main(part: str, device: str, file: str) -> int:
    """Run one part on a device, cpu or cuda, and write its findings after each of them; returns the exit code."""
    import torch

    target, out = torch.device("cuda:0" if device == "cuda" else "cpu"), Path(file)
    if target.type == "cpu":
        torch.set_num_threads(1)  # on a busy machine those of a pool wait for each other
    if part == "look":
        write_text(out, json.dumps(look(target)))
        return 0
    found: list[Finding] = []
    for finding in findings(part, target):
        found.append(finding)
        write_findings(found, out)
    return 0


def look(device: "torch.device") -> dict[str, object]:
    """Count the devices, name the first one and its memory, and describe the software as a result does."""
    import torch

    from engine.measure.memory import free_host_bytes
    from engine.result import provenance

    on_gpu = device.type == "cuda"
    count = torch.cuda.device_count() if on_gpu else 1
    name = provenance.device_name(device) if count else ""
    nvidia = on_gpu and torch.version.hip is None
    free_bytes = total_bytes = free_host_bytes()
    if on_gpu and count:
        free_bytes, total_bytes = torch.cuda.mem_get_info(0)  # others may use some of it
    return {
        "devices": count,
        "name": name,
        "memory_bytes": total_bytes,
        "free_bytes": free_bytes,
        "tf32": bool(count) and nvidia and torch.cuda.get_device_capability(0) >= (8, 0),
        "provenance": provenance.collect(start=provenance.now(), launcher="ci/gpu", devices=[name]).model_dump(),
    }


def findings(part: str, device: "torch.device") -> Iterator[Finding]:
    """Load what a part consists of, and give what that finds, one after the other."""
    for place in PARTS[part]:
        found: Finding | Iterator[Finding] = resolve_name(f"gpu_check.{place}")(device)
        yield from [found] if isinstance(found, Finding) else found


PARTS = {
    "parity": ("parity:parity", "scaled:scaled"),
    "streams": ("streams:lanes", "streams:two_ranks"),
    "pipelines": ("pipelines:pipelines",),
    "network": ("network:network",),
    "lost": ("lost:lost_rank",),
    "kernels": ("kernels:kernels", "traffic:once_a_step"),
    "steady": ("steady:steady", "offloaded:offloaded"),
    "flags": ("flags:cost",),
}
"""Each part's modules and functions, which are loaded with torch, in its own process only."""
