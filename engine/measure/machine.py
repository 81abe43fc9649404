"""What a rank takes of the machine that it runs on: processor seconds, and what its node's network carried.

Several host names can be one machine (containers, network namespaces): a machine is one running kernel. No torch.
"""

import os
import re
import socket
import time
from pathlib import Path

LOOPBACK = "lo"


def machine_name() -> str:
    """The same for all ranks on one running kernel, and for no others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()


def cores() -> frozenset[int]:
    """The processors that this process may use, by number."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def processor_s() -> float:
    """Seconds that all threads of this process have run."""
    return time.process_time()


def link_bytes() -> tuple[int, int]:
    """Bytes that the network interfaces of this host name have received and sent, without the loopback.

    (0, 0) where the kernel doesn't tell, and for networks that it doesn't see (RDMA).
    """
    try:
        text = Path("/proc/net/dev").read_text()
    except OSError:
        return 0, 0
    return counted(text)


def counted(text: str) -> tuple[int, int]:
    """Received and sent bytes in the text of /proc/net/dev.

    >>> counted("  lo: 9 0 0 0 0 0 0 0 9 0\\neth0: 70 1 0 0 0 0 0 0 30 1\\n")
    (70, 30)
    """
    received = sent = 0
    for name, numbers in re.findall(r"^\s*([^:\s|]+):(.*)$", text, re.MULTILINE):
        fields = numbers.split()
        if name != LOOPBACK and len(fields) > 8:
            received, sent = received + int(fields[0]), sent + int(fields[8])
    return received, sent
