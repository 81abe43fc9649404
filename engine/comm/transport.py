"""Network between nodes, as the back end names it: NCCL and RCCL in their own log, gloo by its variables.

On a machine whose network NCCL reaches only by a plugin, NCCL without it takes TCP sockets and tells its log alone, and
every number is that of another network. So the log is turned on before NCCL's first use, and read at the end of a run:

    heard = listen(...)     before torch.distributed is initialised
    heard()                 after the first collectives: what this rank's back end said

The lines are those of NCCL 2.4 to 2.28, RCCL 2.16 to 2.21, aws-ofi-nccl 1.3 to 1.18. No torch in it.
"""

import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

BackendName = Literal["nccl", "gloo"]

SUBSYSTEMS = "INIT,NET"
TELLING = ("INFO", "ABORT", "TRACE")
"""NCCL names its network at these levels of NCCL_DEBUG."""

USING = re.compile(r"\bUsing network (\S.{0,39}?)\s*$", re.MULTILINE)
CHANNEL = re.compile(r"\bvia NET/(\S.{0,39}?)/\d+(?:\(\d+\))?(/GDRDMA)?(?![\w(])")
SOCKETS = re.compile(r"\bNET/Socket : Using (\[0\].*)$", re.MULTILINE)
FIELD_BYTES = 80
"""Most bytes of each text by which a rank passes on to the others what it heard."""
UNSAFE = re.compile(r"[^ !#-\[\]-~]")
"""Characters that take more than one byte in JSON."""
DEVICE = re.compile(r"\[\d+\]([\w.-]{1,20}):")
PROVIDER = re.compile(r"\bNET/OFI Selected [Pp]rovider is ([\w.-]{1,20})")
PLUGIN = re.compile(r"\bNET/OFI (?:Using|Initializing) (aws-ofi-[nr]ccl \S{1,20})")
LIBRARY = re.compile(r"\b([NR]CCL) version\s*:?\s*(\d\S{0,30})")


@dataclass(frozen=True, slots=True)
class NetworkLog:
    """Words of one rank's back end; None where it said nothing.

    network: as its log calls it, such as Socket, IB or AWS Libfabric. interfaces: those of TCP, by their names.
    provider: libfabric's, such as cxi. gpu_direct: whether network devices access device memory themselves, on all of
    its channels; a rank that has no neighbour on another node doesn't say. plugin, library: with their versions.
    unread: why network is unknown.
    """

    network: str | None = None
    interfaces: str | None = None
    provider: str | None = None
    gpu_direct: bool | None = None
    plugin: str | None = None
    library: str | None = None
    unread: str | None = None

    def to_text(self) -> str:
        """Write it so that from_text can read it, in less than 600 bytes: a longer field is cut."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        short = {
            key: UNSAFE.sub("?", text)[:FIELD_BYTES] if isinstance(text, str) else text for key, text in known.items()
        }
        return json.dumps(short)

    @classmethod
    def from_text(cls, text: str) -> "NetworkLog":
        """Read another rank's; it is unread if it is no such text."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return cls(unread="what the rank said of it can't be read")


def backend_of(device: "torch.device") -> BackendName:
    """Name the back end that init_process_group chooses."""
    return "nccl" if device.type == "cuda" else "gloo"


def listen(backend: BackendName, environ: MutableMapping[str, str]) -> Callable[[], NetworkLog]:
    """Have the back end say which network it takes. Returns what reads it, once every group has been used.

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
    if level and level.upper() not in TELLING:
        return _unread(f"NCCL_DEBUG={level} keeps it from being named: unset NCCL_DEBUG")
    if level and not named:
        return _unread(f"NCCL_DEBUG={level} sends the log elsewhere: unset it, or set NCCL_DEBUG_FILE")
    if not level:
        environ["NCCL_DEBUG"] = "INFO"
        environ.setdefault("NCCL_DEBUG_SUBSYS", SUBSYSTEMS)
    if named:
        return lambda: _heard_in(_path(named))
    log = tempfile.TemporaryFile()  # noqa: SIM115, open until the process ends
    environ["NCCL_DEBUG_FILE"] = f"/proc/self/fd/{log.fileno()}"

    def heard() -> NetworkLog:
        log.seek(0)
        return parse(log.read().decode(errors="replace"))

    return heard


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


def _heard_in(file: Path) -> NetworkLog:
    try:
        return parse(file.read_text(errors="replace"))
    except OSError as error:
        return NetworkLog(unread=f"its log {file.name[:30]} can't be read ({error.strerror})")


def _path(pattern: str) -> Path:
    """Read NCCL_DEBUG_FILE as NCCL does: %h is the host's short name, %p the process."""
    return Path(pattern.replace("%h", socket.gethostname().partition(".")[0]).replace("%p", str(os.getpid())))


def _unread(why: str) -> Callable[[], NetworkLog]:
    said = NetworkLog(unread=why)
    return lambda: said


def _first(pattern: re.Pattern[str], log: str) -> str | None:
    found = pattern.search(log)
    return found[1] if found else None


def _library(log: str) -> str | None:
    found = LIBRARY.search(log)
    return f"{found[1]} {found[2]}" if found else None
