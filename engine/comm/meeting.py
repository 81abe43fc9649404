"""Rendezvous of a launch's ranks, which compare their identities and make torch.distributed's default group."""

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from engine.comm.identity import Identity, difference, other_job
from engine.comm.launch import JOB_IDS, Launch
from engine.errors import ContactError, UsageError, first_line
from engine.output import complain

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from engine.comm.transport import NetworkLog
    from engine.result.schema.machine import Bindings

MEETING_S = 1200.0
"""Longest time for all ranks to come: thousands of them load torch from one file system."""
NO_PORT = ("EADDRINUSE", "EACCES")
"""Errors for a port that another program has, and for one that isn't for everyone."""
ALL_HERE, REFUSAL = "all are here", "refusal"
RESOLVE_S, RESOLVE_PAUSE_S = 10.0, 1.0
"""Time for asking a name server that doesn't answer, and the pause between, as thousands of ranks ask it."""
PARENT_PAUSE_S = 1.0
FAREWELL_S, PAUSE_S = 10.0, 0.05
"""Longest time that rank 0 waits until others know why they don't go on, and the pause of its polling."""


class NotMet(ContactError): ...


def init_process_group(
    launch: Launch,
    device: "torch.device",
    timeout: timedelta,
    store: "dist.Store | None" = None,
    *,
    meeting_s: float = MEETING_S,
) -> "Bindings | None":
    """Make torch.distributed's default group: gloo on CPUs, NCCL (or RCCL) on GPUs; one rank alone needs no network.

    Returns how the ranks are bound, on rank 0 and None on others. The group is not bound to a device: NCCL would then
    split it for each axis, by a hash of 31 bits that collides among the thousands of groups of a large grid.

    store: where to meet instead of at the master. meeting_s: how long ranks wait for the last of them; timeout holds
    for every collective. Raises NotMet, and UsageError on all ranks where two have one GPU.
    """
    import torch
    from torch import distributed as dist

    from engine.comm.binding import exchange
    from engine.comm.nccl import configure_watchdog

    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if launch.world_size > 1:
        open_many_files()
        if backend == "nccl":
            configure_watchdog(os.environ, launch.world_size)
    given = store is not None
    if store is None and launch.world_size > 1:
        store = meet(launch, meeting_s)
        store.set_timeout(timeout)
    bindings = exchange(launch, device, store, timeout)
    if store is None:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        return bindings
    with nullcontext() if given else _not_met(launch, timeout.total_seconds()):
        dist.init_process_group(backend, store=store, rank=launch.rank, world_size=launch.world_size, timeout=timeout)
    return bindings


class Met(NamedTuple):
    bindings: "Bindings | None"
    """None but on rank 0"""
    read_network: "Callable[[], NetworkLog] | None"
    """reads the back end's network after the first collectives; None where nobody asked"""


@contextmanager
def all_ranks(
    launch: Launch,
    device: "torch.device",
    timeout: timedelta,
    store: "dist.Store | None" = None,
    *,
    meeting_s: float = MEETING_S,
    listens: bool = True,
    warns: bool = True,
) -> Iterator[Met]:
    """Bring all ranks of a launch together, by init_process_group, until all have left.

    A rank that fails by itself leaves the group as it is, whose end would wait for the others. listens: whether the
    network between ranks is asked for. warns: whether wrong bindings are logged.
    """
    from torch import distributed as dist

    from engine.comm.binding import warn
    from engine.comm.transport import backend_of, listen

    heard = listen(backend_of(device), os.environ) if listens and launch.world_size > 1 else None
    bindings = init_process_group(launch, device, timeout, store, meeting_s=meeting_s)
    if warns:
        warn(bindings)
    alone = launch.world_size == 1
    try:
        yield Met(bindings, heard)
    except BaseException as error:
        if alone or isinstance(error, UsageError):  # which all ranks raise alike
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@lru_cache(maxsize=1)
def meet(launch: Launch, limit_s: float) -> "dist.Store":
    """Return the store at the master, once every rank of the launch has come to it. Raises NotMet.

    torch's own rank 0 waits for all others, but they don't wait for each other, and where torchrun holds the store
    nobody does. A process meets the others once, and its groups are made where they have met.
    """
    from torch import distributed as dist
    from torch.distributed.rendezvous import rendezvous

    open_many_files()
    if launch.parent and os.getppid() != launch.parent:  # else it would wait for a store that nobody holds
        raise NotMet(f"rank {launch.rank} of {launch.world_size} met nobody, as {launch.launcher} has ended")
    _find_master(launch)
    limit = timedelta(seconds=limit_s)
    with _not_met(launch, limit_s), _ending_with_parent(launch):
        found, *_ = next(rendezvous(f"tcp://{_place(launch)}", launch.rank, launch.world_size, timeout=limit))
        store = dist.PrefixStore("par4d", found)
        refusal = _introduce(launch, store, limit)
        here = store.add("ranks that are here", 1)  # before a refusal, for which rank 0 waits until all here know it
        if refusal is not None:
            store.set(REFUSAL, refusal)
        if refusal is not None or here == launch.world_size:
            store.set(ALL_HERE, "")
        store.wait([ALL_HERE], limit)
        if store.check([REFUSAL]):
            _refuse(launch, store)
    return store


def broadcast_before_groups(
    launch: Launch, say: Callable[[], str], doing: str, *, meeting_s: float, limit_s: float
) -> str:
    """Broadcast rank 0's text before there are process groups; see broadcast_text. Raises NotMet, too."""
    from torch.distributed import PrefixStore

    from engine.comm.agreement import broadcast_text

    store = PrefixStore("said by rank 0", meet(launch, meeting_s))
    return broadcast_text(launch, store, say, doing, timedelta(seconds=limit_s))


def _find_master(launch: Launch) -> None:
    """Raise NotMet if nobody knows the node of rank 0, or rank 0 runs on another one than the scheduler's list says."""
    ends = time.monotonic() + RESOLVE_S
    while True:
        try:
            found = socket.getaddrinfo(launch.master_addr, launch.master_port, type=socket.SOCK_STREAM)
            break
        except (OSError, UnicodeError) as error:
            asks_again = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
            if not asks_again or time.monotonic() > ends:
                raise NotMet(
                    f"rank {launch.rank} of {launch.world_size} can't resolve {launch.master_addr}, the node of rank "
                    f"0: set MASTER_ADDR to a name or an address that every rank knows",
                    first_line(error),
                ) from None
        time.sleep(RESOLVE_PAUSE_S)
    if launch.rank == 0 and launch.master_by_list and not any(map(_is_own, found)):
        own = socket.gethostname()
        raise NotMet(
            f"rank 0 of {launch.world_size} runs on {own}, but the others look for it on {launch.master_addr}, the "
            f"first node of the job's list: set MASTER_ADDR={own} for all of them"
        )


def _is_own(found: tuple[Any, ...]) -> bool:
    family, *_, (host, _, *rest) = found
    with socket.socket(family, socket.SOCK_DGRAM) as trial, suppress(OSError):
        trial.bind((host, 0, *rest))
        return True
    return False


def _introduce(launch: Launch, store: "dist.Store", limit: timedelta) -> str | None:
    """Compare this rank with rank 0; return why all have to end where they are of two runs. Raises NotMet where they
    are of two jobs.
    """
    job = {name: os.environ[name] for name in JOB_IDS if os.environ.get(name)}
    own = Identity.own(job, reads_code=launch.local_rank == 0)
    if launch.rank == 0:
        store.set("identity", own.to_text())
        return None
    store.wait(["identity"], limit)
    first = Identity.from_text(store.get("identity").decode())
    if (stray := other_job(own, first)) is not None:
        raise NotMet(
            f"rank {launch.rank} of {launch.world_size} came to {_place(launch)}, where another job meets (here "
            f"{stray}): set MASTER_PORT for each of them, to a port of its own"
        )
    if store.add(f"rank {launch.rank}", 1) > 1:
        raise NotMet(
            f"rank {launch.rank} of {launch.world_size} came to {_place(launch)} and is there already, so two runs "
            "meet at one port: set MASTER_PORT for each of them, to a port of its own"
        )
    differs = difference(own, first)
    return differs and (
        f"Rank {launch.rank} has {differs}: start all ranks alike, or, if they are of two runs that met at port "
        f"{launch.master_port}, set MASTER_PORT for each of them."
    )


def _refuse(launch: Launch, store: "dist.Store") -> NoReturn:
    """Raise UsageError, on rank 0 once the others know why, as the store may end with it."""
    words = store.get(REFUSAL).decode()
    informed = store.add("ranks that know", 1)
    ends = time.monotonic() + FAREWELL_S
    while launch.rank == 0 and informed < store.add("ranks that are here", 0) and time.monotonic() < ends:
        time.sleep(PAUSE_S)
        informed = store.add("ranks that know", 0)
    raise UsageError(words)


@contextmanager
def _ending_with_parent(launch: Launch) -> Iterator[None]:
    """End this process with its torchrun: torch would look for the store of one that has ended until its time is over,
    and see no signal meanwhile.
    """
    over = threading.Event()

    def look() -> None:
        while not over.wait(PARENT_PAUSE_S):
            if os.getppid() != launch.parent:
                complain(f"Rank {launch.rank} of {launch.world_size} met nobody, as {launch.launcher} has ended.")
                os._exit(1)

    if launch.parent:
        threading.Thread(target=look, name="parent", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def _not_met(launch: Launch, limit_s: float) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's own are of that kind, gloo's have no other
        if launch.rank == 0 and any(why in str(error) for why in NO_PORT):
            raise NotMet(
                f"rank 0 of {launch.world_size} can't listen at MASTER_PORT={launch.master_port}: set it to a free "
                "port from 1024 on, for all ranks",
                first_line(error),
            ) from None
        raise NotMet(
            f"rank {launch.rank} of {launch.world_size} did not meet the others at {_place(launch)} within "
            f"{limit_s:g} s: see what the others say, or set MASTER_ADDR and MASTER_PORT if that place "
            "is wrong",
            first_line(error),
        ) from None


def _place(launch: Launch) -> str:
    host = f"[{launch.master_addr}]" if ":" in launch.master_addr else launch.master_addr
    return f"{host}:{launch.master_port}"


def open_many_files() -> None:
    """Raise the limit of open files to the hard one: rank 0's store holds a connection of every rank, and gloo one of
    each rank to each.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # a system may allow less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
