"""Network between nodes, as the back end names it: NCCL and RCCL in their own log, gloo by its variables.

On a machine whose network NCCL reaches only by a plugin, NCCL without it takes TCP sockets and says so in its log
alone. So the log is turned on by listen(), before torch.distributed is initialised, and read at the end of a run. The
lines are those of NCCL 2.4 to 2.28, RCCL 2.16 to 2.21, aws-ofi-nccl 1.3 to 1.18. No torch.
"""

import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, MutableMapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

BackendName = Literal["nccl", "gloo"]

SUBSYSTEMS = "INIT,NET"
TELLING = ("INFO", "ABORT", "TRACE")
"""Levels of NCCL_DEBUG at which NCCL names its network."""

USING = re.compile(r"\bUsing network (\S.{0,39}?)\s*$", re.MULTILINE)
CHANNEL = re.compile(r"\bvia NET/(\S.{0,39}?)/\d+(?:\(\d+\))?(/GDRDMA)?(?![\w(])")
SOCKETS = re.compile(r"\bNET/Socket : Using (\[0\].*)$", re.MULTILINE)
FIELD_BYTES = 80
"""Most bytes of each text of a NetworkLog that ranks exchange."""
UNSAFE = re.compile(r"[^ !#-\[\]-~]")
"""Characters that take more than one byte in JSON."""
DEVICE = re.compile(r"\[\d+\]([\w.-]{1,20}):")
PROVIDER = re.compile(r"\bNET/OFI Selected [Pp]rovider is ([\w.-]{1,20})")
PLUGIN = re.compile(r"\bNET/OFI (?:Using|Initializing) (aws-ofi-[nr]ccl \S{1,20})")
LIBRARY = re.compile(r"\b([NR]CCL) version\s*:?\s*(\d\S{0,30})")


@dataclass(frozen=True, slots=True)
class NetworkLog:
    """Network of one rank, by its back end; None where nothing was said."""

    network: str | None = None
    """as the log calls it, such as Socket, IB or AWS Libfabric"""
    interfaces: str | None = None
    """names of TCP interfaces"""
    provider: str | None = None
    """libfabric's, such as cxi"""
    gpu_direct: bool | None = None
    """whether all network channels access device memory; None without a neighbour on another node"""
    plugin: str | None = None
    """name and version, as library"""
    library: str | None = None
    unread: str | None = None
    """why the network is unknown"""

    def to_text(self) -> str:
        """Write JSON for from_text of less than 600 bytes: a longer field is cut."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        short = {
            key: UNSAFE.sub("?", text)[:FIELD_BYTES] if isinstance(text, str) else text for key, text in known.items()
        }
        return json.dumps(short)

    @classmethod
    def from_text(cls, text: str) -> "NetworkLog":
        """Read another rank's; unread if it is no such text."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return cls(unread="what the rank said of it can't be read")


def backend_of(device: "torch.device") -> BackendName:
    return "nccl" if device.type == "cuda" else "gloo"


def listen(backend: BackendName, environ: MutableMapping[str, str]) -> Callable[[], NetworkLog]:
    """Have the back end log its network. Returns what reads it, once every group has been used.

    NCCL's log goes to a file without a name, of which nothing is left however the run ends. What the user has set of
    NCCL_DEBUG and NCCL_DEBUG_FILE stays: a log that goes to a file is read there; one that goes elsewhere, or says less
    than it takes to name the network, is not.
    """
    if backend == "gloo":
        said = NetworkLog(
            network=environ.get("GLOO_DEVICE_TRANSPORT", "tcp").lower(), interfaces=environ.get("GLOO_SOCKET_IFNAME")
        )
        return lambda: said
    level, named = environ.get("NCCL_DEBUG"), environ.get("NCCL_DEBUG_FILE")
    why = None
    if level and level.upper() not in TELLING:
        why = f"NCCL_DEBUG={level} keeps it from being named: unset NCCL_DEBUG"
    elif level and not named:
        why = f"NCCL_DEBUG={level} sends the log elsewhere: unset it, or set NCCL_DEBUG_FILE"
    if why is not None:
        unread = NetworkLog(unread=why)
        return lambda: unread
    if not level:
        environ["NCCL_DEBUG"] = "INFO"
        environ.setdefault("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)
    if named:  # as NCCL reads it: %h is the host's short name, %p the process
        host = socket.gethostname().partition(".")[0]
        return partial(_read, Path(named.replace("%h", host).replace("%p", str(os.getpid()))))
    log = tempfile.TemporaryFile()  # noqa: SIM115, open until the process ends
    environ["NCCL_DEBUG_FILE"] = f"/proc/self/fd/{log.fileno()}"

    def read() -> NetworkLog:
        log.seek(0)
        return parse(log.read().decode(errors="replace"))

    return read


def parse(log: str) -> NetworkLog:
    """Read one rank's log. Communicators that took different networks are all named."""
    channels = CHANNEL.findall(log)
    sockets = SOCKETS.findall(log)
    networks = USING.findall(log) or [name for name, _ in channels] or ["Socket" for _ in sockets]
    if not networks:
        return NetworkLog(unread="the log names none", library=_library(log), plugin=_first(PLUGIN, log))
    names = " and ".join(sorted(set(networks)))
    return NetworkLog(
        network=names,
        interfaces=",".join(DEVICE.findall(sockets[0])[:4]) if sockets and "Socket" in networks else None,
        provider=_first(PROVIDER, log),
        gpu_direct=all(direct for _, direct in channels) if channels else None,
        plugin=_first(PLUGIN, log),
        library=_library(log),
    )


def _read(file: Path) -> NetworkLog:
    try:
        return parse(file.read_text(errors="replace"))
    except OSError as error:
        return NetworkLog(unread=f"its log {file.name[:30]} can't be read ({error.strerror})")


def _first(pattern: re.Pattern[str], log: str) -> str | None:
    found = pattern.search(log)
    return found[1] if found else None


def _library(log: str) -> str | None:
    found = LIBRARY.search(log)
    return f"{found[1]} {found[2]}" if found else None
