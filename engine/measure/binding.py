"""Where this rank is bound: its cores and their NUMA nodes, its GPU, the nearest network card, its threads. No torch.

Linux tells most of it below /sys. What it doesn't tell (a container without /sys, a kernel without NUMA, a GPU that no
node is near to) is None or empty.
"""

import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from engine.loading import AT_START, THREADS, cores
from engine.measure.machine import core_limit, kernel_name, machine_name, read_or_nothing, sysfs
from engine.schema import Record

PCI = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
"""A root of PCI, or a device, among the parts of a device's path."""
CARDS = (("infiniband", "cxi"), ("net",))
"""Folders of /sys/class with network cards. Ethernet's count only where no card is for remote memory access."""
NAME_LETTERS, OMP_LETTERS = 64, 32
MOST_CORES = 2**16
PER_TASK, PER_GPU, DEPTH = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK"), "SLURM_CPUS_PER_GPU", "PALS_DEPTH"
"""Variables with the cores that a job asked for. srun overwrites the first, and reads the second."""
TASKS = ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")


class Gpu(NamedTuple):
    """GPU of a rank, as far as the driver tells."""

    address: str | None = None
    """PCI address, such as 0000:c1:00.0."""
    uuid: str | None = None
    slot: int = 0
    """Place among the devices that this process sees."""


class Asked(NamedTuple):
    """Cores that the job asked for."""

    cores: int | None = None
    """For a task."""
    tasks: int | None = None
    """How many tasks a node has; None where each is a rank."""


class Binding(Record):
    """Binding of one rank, as ranks tell each other."""

    host: str
    machine: str
    """The running kernel: ranks of several host names may share its cores."""
    group: str
    """The control group that limits processors there, if one does."""
    limit: float | None = None
    """How many processors' time the control group may take."""
    cores: str
    """Mask in hexadecimal digits, as the launcher gave it."""
    main: str
    """Mask of the main thread, which OpenMP may have bound to one of them."""
    nodes: tuple[int, ...] = ()
    """NUMA nodes of the cores."""
    gpu: str | None = None
    uuid: str | None = None
    slot: str = ""
    gpu_node: int | None = None
    """NUMA node that the GPU is near to, if it has cores."""
    card: str | None = None
    omp: str | None = None
    threads: int
    asked: int | None = None
    tasks: int | None = None


def read(threads: int, gpu: Gpu | None, launcher: str, environ: Mapping[str, str], root: Path | None = None) -> Binding:
    """Read the binding of this rank.

    threads: of torch on processors. gpu: None on processors. launcher: its name. root: instead of /sys.
    """
    root = root or sysfs()
    gpu_given, gpu = gpu is not None, gpu or Gpu()
    of_nodes = dict(numa_nodes(root))
    nodes = tuple(sorted(node for node, its in of_nodes.items() if its & AT_START))
    near = gpu_node(gpu.address, root)
    asked = cores_asked(launcher, environ, on_gpu=gpu_given)
    limit, omp = core_limit(), environ.get(THREADS)
    return Binding(
        host=socket.gethostname()[:NAME_LETTERS],
        machine=_short(kernel_name()),
        group=_short(machine_name()),
        limit=limit if isfinite(limit) else None,
        cores=f"{mask(AT_START):x}",
        main=f"{mask(cores()):x}",
        nodes=nodes,
        gpu=gpu.address,
        uuid=gpu.uuid and gpu.uuid[:NAME_LETTERS],
        slot=_slot(gpu.slot, environ) if gpu_given else "",
        gpu_node=near if of_nodes.get(-1 if near is None else near) else None,
        card=nearest_card(gpu.address, near, nodes, root),
        omp=None if omp is None else omp.encode(errors="replace").decode()[:OMP_LETTERS],
        threads=threads,
        asked=asked.cores,
        tasks=asked.tasks,
    )


def mask(numbers: frozenset[int]) -> int:
    """Make a mask of the numbers of cores."""
    return sum(1 << number for number in numbers)


def numbers_of(text: str) -> frozenset[int]:
    """Read a list of the kernel's, of numbers and ranges; what isn't one is nothing.

    >>> sorted(numbers_of("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for first, _, last in (part.partition("-") for part in text.strip().split(",")):
        if first.isdecimal() and (last or first).isdecimal() and int(last or first) < MOST_CORES:
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def numa_nodes(root: Path) -> Iterator[tuple[int, frozenset[int]]]:
    """Yield each NUMA node with its cores; one of memory alone has none."""
    for folder in _entries(root / "devices/system/node"):
        if folder.name.startswith("node") and folder.name[4:].isdecimal():
            yield int(folder.name[4:]), numbers_of(read_or_nothing(folder / "cpulist"))


def gpu_node(address: str | None, root: Path) -> int | None:
    """Return the NUMA node that a device is near to; None where the firmware names none."""
    text = read_or_nothing(root / "bus/pci/devices" / address / "numa_node").strip() if address else ""
    return int(text) if text.isdecimal() else None  # -1 is none


def nearest_card(address: str | None, near: int | None, nodes: tuple[int, ...], root: Path) -> str | None:
    """Name the network card with the longest path of PCI bridges in common with the GPU, or else on its NUMA node.

    Without a GPU that of the cores counts. The only card is the nearest one; of several equally near ones the first.
    """
    own = _bridges(root / "bus/pci/devices" / address) if address else ()
    wanted = nodes if address is None else () if near is None else (near,)
    for classes in CARDS:
        cards = [
            (_shared(own, path), _node_of(card) in wanted, card.name)
            for name in classes
            for card in sorted(_entries(root / "class" / name), key=_by_number)
            if (path := _bridges(card / "device"))
        ]
        best = max(cards, key=lambda card: card[:2], default=None)
        if best is not None:
            return best[2][:NAME_LETTERS] if any(best[:2]) or len(cards) == 1 else None
    return None


def _bridges(device: Path) -> tuple[str, ...]:
    """List the PCI addresses on the way to a device; none for one that isn't on PCI, or isn't there."""
    with suppress(OSError, RuntimeError):  # RuntimeError: a loop of links
        return tuple(part for part in device.resolve(strict=True).parts if PCI.fullmatch(part))
    return ()


def _shared(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Count the parts that two paths begin with alike."""
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _node_of(card: Path) -> int | None:
    text = read_or_nothing(card / "device/numa_node").strip()
    return int(text) if text.isdecimal() else None


def _entries(folder: Path) -> list[Path]:
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _by_number(path: Path) -> tuple[str, int]:
    digits = re.search(r"\d*$", path.name)
    number = digits[0] if digits else ""
    return path.name.removesuffix(number), int(number or 0)


def cores_asked(launcher: str, environ: Mapping[str, str], *, on_gpu: bool) -> Asked:
    """Say how many cores the job asked for. A rank is a task where srun or PALS started it; torchrun is one itself."""
    by_hand = launcher in ("torchrun", "environment")
    if depth := _first(environ, [DEPTH] if "PALS_RANKID" in environ else []):
        return Asked(depth, (_first(environ, ["PALS_LOCAL_SIZE"]) or 1) if by_hand else None)
    if launcher == "srun":
        return Asked(_first(environ, [*PER_TASK, PER_GPU] if on_gpu else PER_TASK))
    return Asked(_first(environ, PER_TASK), _first(environ, TASKS) or 1)


def _first(environ: Mapping[str, str], names: Sequence[str]) -> int | None:
    """Read the first of these variables that begins with a number above 0, such as 4(x2)."""
    numbers = (re.match(r"[0-9]{1,6}(?![0-9])", environ.get(name, "")) for name in names)
    return next((int(number[0]) for number in numbers if number and int(number[0])), None)


def _slot(place: int, environ: Mapping[str, str]) -> str:
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    return f"{place}/{_short(repr([environ.get(name) for name in names]))}"


def _short(text: str) -> str:
    return blake2b(text.encode(errors="replace"), digest_size=6).hexdigest()
