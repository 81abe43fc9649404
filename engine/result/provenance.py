"""Origin of a number: code, software, machine and environment of a run.

One rank collects; hosts and devices of the others are handed in. Environment variables are taken by an
allow-list, and never one whose name speaks of a secret.
"""

import json
import os
import platform
import re
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from engine.result.schema import Provenance
from engine.result.schema.machine import Bindings

if TYPE_CHECKING:
    import torch

CHECKOUT = Path(__file__).resolve().parents[2]
PACKED = "packed.json"
"""File of a copy by ci/pack with the git_state of the checkout."""
GIT_TIMEOUT_S = 60
PACKAGES = ("par4d", "torch", "numpy")
VARIABLES = re.compile(
    r"(OMP|GOMP|KMP|MKL|OPENBLAS|NCCL|RCCL|GLOO|TORCH|PYTORCH|CUDA|CUBLAS|CUDNN|HIP|HSA|ROCR|ROCBLAS|MIOPEN|FI|UCX"
    r"|MPICH|PAR4D)_\w+|LD_PRELOAD|(SLURM_(JOB|STEP)_(ID|PARTITION|NODELIST)|SLURM_CPU_BIND|SLURM_CPUS_PER_TASK)"
    r"|LSB_JOBID|PBS_JOBID|FLUX_JOB_ID"
)
MODULES = "LOADEDMODULES"
"""Environment Modules and Lmod list in this variable what is loaded."""
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def now() -> str:
    """Return the time in UTC, in ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def collect(
    *,
    start: str,
    launcher: str,
    hosts: Iterable[str] = (),
    devices: Iterable[str] = (),
    clocks: Iterable[tuple[str, float]] = (),
    bindings: Bindings | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Provenance:
    """Collect what can be known on this rank at the end of a run, which is now.

    start: as `now` gave it. hosts, devices: of all ranks; each is kept once, in the order of first appearance, and
    without any host this machine's name stands alone. clocks: hosts of any ranks, and the clock of each in Hz, of which
    the least of a host counts.
    """
    commit, dirty = git_state(CHECKOUT)
    clocks_hz: dict[str, float] = {}
    for host, rate in clocks:
        clocks_hz[host] = min(rate, clocks_hz.get(host, rate))
    return Provenance(
        git_commit=commit,
        git_dirty=dirty,
        versions=versions(),
        hosts=tuple(dict.fromkeys(hosts)) or (socket.gethostname(),),
        devices=tuple(dict.fromkeys(devices)),
        environment=relevant(environ),
        modules=tuple(filter(None, readable(environ.get(MODULES, "")).split(":"))),
        clocks_hz=clocks_hz,
        launcher=launcher,
        bindings=bindings,
        start=start,
        end=now(),
    )


def git_state(checkout: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a checkout or its copy, and whether tracked files differ from it; None without git."""
    with suppress(OSError):
        commit, dirty = json.loads((checkout / PACKED).read_text())
        return commit, dirty

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(checkout), *words], capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True
        ).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() != checkout.resolve():
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None


def versions() -> dict[str, str]:
    """Return the versions of what numbers depend on. torch is asked only if it is loaded already."""
    known = {"python": platform.python_version(), "kernel": platform.release()}
    for package in PACKAGES:
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if driver := _driver():
        known["driver"] = driver
    with suppress(AttributeError, ImportError):  # a run may fail while torch is imported by half
        if torch := sys.modules.get("torch"):
            known |= {name: str(version) for name in ("cuda", "hip") if (version := getattr(torch.version, name, None))}
            if torch.cuda.is_available() and torch.distributed.is_nccl_available():
                known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return known


def _driver() -> str | None:
    """Return the version of the loaded NVIDIA or AMD kernel driver."""
    for file in ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version"):
        with suppress(OSError):
            if match := re.search(r"\d+\.\d+[.\d]*", Path(file).read_text()):
                return match[0]
    return None


def relevant(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that can change a measurement, by name in order; never a secret."""
    names = [name for name in sorted(environ) if VARIABLES.fullmatch(name) and not SECRET.search(name)]
    return {name: readable(environ[name]) for name in names}


def readable(text: str) -> str:
    """Write bytes that are not UTF-8, which no result can hold, as their numbers."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def device_name(device: "torch.device") -> str:
    """Return what the GPU calls itself, or the processor."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_name(device)
    return processor_name()


def processor_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def processor() -> str:
    """Describe this machine's processor by more than its name, which others share."""
    keys = ("cpu family", "model", "stepping", "cache size")
    facts = [f"{key} {value}" for key in keys if (value := _cpuinfo(key))]
    return ", ".join([processor_name(), *facts, f"{os.cpu_count() or 1} cores"])


def _cpuinfo(key: str) -> str | None:
    with suppress(OSError):
        if match := re.search(rf"^{key}\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE):
            return match[1]
    return None
