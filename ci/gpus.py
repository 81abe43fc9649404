"""Prints whose GPUs this machine has, `cuda`, `rocm` or `none`, and which system it is, or `unknown`.

ci/setup and ci/peers ask before anything is installed: no package is needed, and of a system's file two lines are read.
A login node has no GPU of its own, but its name tells.
"""

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = re.compile(r"^here:\n  hostnames: \[(.*)\]\n(?:  environment: \{(.*)\}\n)?", re.MULTILINE)
GPUS = re.compile(r"^    features: \[.*\b(cuda|rocm)\b.*\]", re.MULTILINE)


def signs(text: str) -> tuple[list[str], dict[str, str]]:
    """By these host names (regular expressions) and variables a system's file tells that this machine is it."""
    found = HERE.search(text)
    if found is None:
        return [], {}
    return re.findall("'([^']*)'", found[1]), dict(re.findall(r"(\w+): (\w+)", found[2] or ""))


def systems_here(folder: Path = ROOT / "systems") -> Iterator[tuple[str, str]]:
    """Give each system with GPUs that this machine is: whose GPUs they are, and its name."""
    hosts = {socket.gethostname(), socket.getfqdn()}
    for file in sorted(folder.glob("*.yaml")):
        text = file.read_text()
        names, variables = signs(text)
        here = any(re.search(name, host) for name in names for host in hosts)
        here = here or any(os.environ.get(name) == value for name, value in variables.items())
        if here and (whose := GPUS.search(text)):
            yield whose[1], file.stem


def gpus(devices: Path = Path("/dev")) -> str:
    """Whose GPUs the kernel's drivers offer to this machine's processes."""
    if (devices / "kfd").exists():
        return "rocm"
    return "cuda" if (devices / "nvidiactl").exists() else "none"


if __name__ == "__main__":
    sys.stdout.write(" ".join(next(systems_here(), (gpus(), "unknown"))) + "\n")
