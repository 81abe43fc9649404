"""Read what a rank takes of the machine that it runs on: processor seconds, and what its node's network carried.

Several host names can be one machine (containers, network namespaces): a machine is one running kernel. No torch.
"""

import math
import os
import re
import socket
import time
from pathlib import Path

LOOPBACK = "lo"
SYSFS = "PAR4D_SYSFS"
"""Variable that says where sysfs is, if not at /sys: in a container, and in tests."""


def machine_name() -> str:
    """Return a name that ranks on one running kernel share, and in one control group where that limits processors."""
    quota = _quota()
    return kernel_name() if quota is None else f"{kernel_name()}/{quota[0]}"


def kernel_name() -> str:
    """Return a name that all ranks on one running kernel share, whatever their host names, and no others."""
    return read_or_nothing(Path("/proc/sys/kernel/random/boot_id")).strip() or socket.gethostname()


def core_limit() -> float:
    """Return how many processors' time this process's control group may take in all; infinite without a limit."""
    quota = _quota()
    return math.inf if quota is None else quota[1]


def _quota() -> tuple[int, float] | None:
    """Return the control group with the tightest limit on processors, and how many processors' time that is."""
    found = []
    for folder in control_groups():
        allowed, _, period = read_or_nothing(folder / "cpu.max").strip().partition(" ")
        if allowed.isdecimal() and period.isdecimal():
            found.append((folder.stat().st_ino, int(allowed) / int(period)))
    return min(found, key=lambda group: group[1], default=None)


def control_groups() -> tuple[Path, ...]:
    """Return the control groups of this process, from its own to the root."""
    own = read_or_nothing(Path("/proc/self/cgroup")).partition("::")[2].strip().lstrip("/")
    group = Path("/sys/fs/cgroup", own)
    return group, *group.parents


def sysfs() -> Path:
    """Return the folder of the kernel's files on devices."""
    return Path(os.environ.get(SYSFS) or "/sys")


def read_or_nothing(file: Path) -> str:
    """Read a text of the kernel; it is empty where there is no such file."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def processor_s() -> float:
    """Return the seconds that all threads of this process have run."""
    return time.process_time()


def link_bytes() -> tuple[int, int]:
    """Return the bytes that the network interfaces of this host name have received and sent, without the loopback.

    They are 0 where the kernel doesn't tell, and for networks that it doesn't see (RDMA).
    """
    return counted(read_or_nothing(Path("/proc/net/dev")))


def counted(text: str) -> tuple[int, int]:
    """Read the received and sent bytes in the text of /proc/net/dev.

    >>> counted("  lo: 9 0 0 0 0 0 0 0 9 0\\neth0: 70 1 0 0 0 0 0 0 30 1\\n")
    (70, 30)
    """
    received = sent = 0
    for name, numbers in re.findall(r"^\s*([^:\s|]+):(.*)$", text, re.MULTILINE):
        fields = numbers.split()
        if name != LOOPBACK and len(fields) > 8:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent
