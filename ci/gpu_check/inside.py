"""The parts of the check that need torch, each in a process of its own, which writes what it finds as it goes."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine.files import write_text
from engine.result.gpu_check import Finding, write_findings

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
    findings: list[Finding] = []
    for finding in PARTS[part](target):
        findings.append(finding)
        write_findings(findings, out)
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


def parity(device: "torch.device") -> Iterator[Finding]:
    """Check whether anything can be compiled, then each layer and a training step, in fp32 without TF32 and in bf16."""
    from engine.measure.gemm import full_precision
    from gpu_check.compiler import compiler
    from gpu_check.initial import initial_values
    from gpu_check.layers import dropout, layers
    from gpu_check.steps import steps

    yield compiler(device)
    with full_precision():
        yield dropout(device)
        yield from initial_values(device)
        for name in ("fp32", "bf16"):
            yield from layers(device, name)
            yield from steps(device, name)


def streams(device: "torch.device") -> Iterator[Finding]:
    """Check collectives on their lanes, and two ranks."""
    from gpu_check.streams import lanes, two_ranks

    yield lanes(device)
    yield from two_ranks(device)


def flags(device: "torch.device") -> Iterator[Finding]:
    """Time what all flags cost where there is nothing to hide."""
    from gpu_check.flags import cost

    yield cost(device)


def kernels(device: "torch.device") -> Iterator[Finding]:
    """Check attention's kernel and the compiled functions, and time how fast elementwise parts move memory."""
    from gpu_check.kernels import kernels
    from gpu_check.traffic import once_a_step

    yield from kernels(device)
    yield from once_a_step(device)


def network(device: "torch.device") -> Iterator[Finding]:
    """Check that NCCL names its network."""
    from gpu_check.network import network

    yield network(device)


def lost(device: "torch.device") -> Iterator[Finding]:
    """Kill a rank, and check that the other one ends."""
    from gpu_check.lost import lost_rank

    yield lost_rank(device)


def steady(device: "torch.device") -> Iterator[Finding]:
    """Check a training once it has warmed up."""
    from gpu_check.steady import steady

    yield from steady(device)


PARTS: dict[str, Callable[["torch.device"], Iterator[Finding]]] = {
    "parity": parity,
    "streams": streams,
    "network": network,
    "lost": lost,
    "kernels": kernels,
    "steady": steady,
    "flags": flags,
}
