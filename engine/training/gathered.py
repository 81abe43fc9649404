"""Facts of every rank, gathered at the end of a run, and the figures that take all of them."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from engine.comm.agreement import gather_texts
from engine.comm.collective import AXIS_OF_LANE, NAMES_OF_MESSAGES
from engine.comm.contact import Roster, own_row
from engine.comm.funnel import Comm
from engine.comm.transport import BackendName, NetworkLog, backend_of
from engine.grid import Grid
from engine.loading import cores
from engine.measure.clock_rate import clock_hz
from engine.measure.gemm import JOINT_SIZES, joint
from engine.measure.machine import core_limit, machine_name
from engine.measure.memory import peak_bytes
from engine.measure.recorder import AxisSeconds, PhaseSeconds, Recording, Tally
from engine.profiling.session import Profiling
from engine.result import metrics, provenance
from engine.result.schema import Iteration, Memory
from engine.result.schema.machine import Interconnect, Transport
from engine.result.schema.profile import Profile, ProfileTrace
from engine.result.schema.step import (
    AxisTime,
    Bound,
    Breakdown,
    Collective,
    HostTime,
    LaneTime,
    MachineUsage,
    Phase,
    Span,
    Timeline,
)

NETWORK_BYTES = 600


@dataclass(frozen=True, slots=True)
class Ranks:
    """Facts of every rank, in rank order."""

    memory: Memory
    hosts: list[str]
    devices: list[str]
    transport: Transport | None
    clocks: list[tuple[str, float]]
    """host and Hz of the ranks that know it"""


def everyones(comm: Comm, heard: Callable[[], NetworkLog] | None = None) -> Ranks:
    """Ask every rank for its peak memory, clock, host, device and, if heard is what listen() gave, network.

    Collective.
    """
    kind, peak = peak_bytes(comm.device)
    numbers = [peak, int(clock_hz(comm.device) or 0)]
    peaks, rates = comm.gather_rows(torch.tensor(numbers, dtype=torch.int64)).T.tolist()
    hosts = gather_texts(comm, socket.gethostname())
    devices = gather_texts(comm, provenance.device_name(comm.device))
    transport = None
    if heard is not None:
        said = [NetworkLog.from_text(text) for text in gather_texts(comm, heard().to_text(), NETWORK_BYTES)]
        transport = grouped(backend_of(comm.device), said, hosts)
    clocks = [(host, float(rate)) for host, rate in zip(hosts, rates, strict=True) if rate]
    return Ranks(Memory(kind=kind, peak_bytes_per_rank=tuple(peaks)), hosts, devices, transport, clocks)


def ranks_per_core(comm: Comm) -> float:
    """Count the ranks that share a core of this rank's machine; 1 where each has one, or several, or a device.
    Collective.
    """
    names = gather_texts(comm, machine_name())
    mine, shared = names[comm.rank], _cores(comm, names)
    alone = comm.device.type != "cpu" or torch.get_num_threads() > 1
    return 1.0 if alone else max(1.0, names.count(mine) / shared[mine])


def joint_peak(comm: Comm, dtype: torch.dtype) -> float:
    """Measure the flop/s of square matrix products of the best size on a rank while all ranks multiply. Collective."""
    sizes, shared = JOINT_SIZES[comm.device.type], ranks_per_core(comm)
    rates = [metrics.gemm_rate(size, *joint(size, dtype, comm.device, comm.barrier, shared)) for size in sizes]
    return float(comm.gather_rows(torch.tensor(rates, dtype=torch.float64)).mean(0).max().item())


def collectives(recording: Recording) -> tuple[Collective, ...]:
    """Return the collectives of one iteration, on average."""
    return tuple(
        Collective(
            kind=kind,
            axis=axis,
            calls=tally.calls / recording.steps,
            bytes=tally.num_bytes / recording.steps,
            **(_timed(tally, recording.steps) if recording.timed else {}),
        )
        for (kind, axis), tally in sorted(recording.tallies.items())
    )


def _timed(tally: Tally, steps: int) -> dict[str, float]:
    return {name: getattr(tally, name) / steps for name in ("time_s", "exposed_s", "hidden_s")}


def timeline(last: Iteration, recording: Recording) -> Timeline:
    """Return what ran when in the last iteration of a recording."""
    spans = tuple(Span(**asdict(event)) for event in recording.events)
    return Timeline(iteration=last.index, step_s=last.time_s, spans=spans)


def breakdown(comm: Comm, recording: Recording, link_bytes_per_s: float | None) -> Breakdown | None:
    """Break down one iteration, on average; None where it wasn't timed. Collective.

    link_bytes_per_s: of a node's network, one way, where it is known.
    """
    steps = recording.steps
    exposed_s = sum(axis.exposed_s for axis in recording.axes.values())
    lanes = [recording.lanes.get(name, 0.0) for name in AXIS_OF_LANE]
    taken = [recording.processor_s, float(recording.received_bytes), float(recording.sent_bytes)]
    own = [*taken, recording.time_s - exposed_s, *lanes]
    rows = comm.gather_rows(torch.tensor(own, dtype=torch.float64).div(steps))
    said = gather_texts(comm, f"{machine_name()} {socket.gethostname()}")
    machines, hosts = zip(*(text.split(" ") for text in said), strict=True)
    machine = _machine(comm, machines, rows[:, :3].tolist(), link_bytes_per_s)
    if not recording.timed:
        return None
    exposed_s /= steps
    hidden_s = sum(phase.hidden_s for phase in recording.phases.values()) / steps
    step_s = recording.time_s / steps
    busy = _busiest(comm.grid, rows[:, 4:])

    def means(times: PhaseSeconds | AxisSeconds) -> dict[str, float]:
        return {name: value / steps for name, value in asdict(times).items()}

    return Breakdown(
        compute_s=step_s - exposed_s,
        collectives_s=exposed_s,
        hidden_s=hidden_s,
        share_hidden=metrics.share_hidden(hidden_s, exposed_s),
        axes=tuple(AxisTime(axis=axis, **means(times)) for axis, times in sorted(recording.axes.items())),
        phases=tuple(Phase(name=name, **means(times)) for name, times in recording.phases.items()),
        lanes=busy,
        machine=machine,
        bound=_bound(step_s, step_s - exposed_s, busy, machine),
        hosts=_by_host(hosts, rows[:, 3].tolist()),
    )


def _by_host(hosts: Sequence[str], compute_s: Sequence[float]) -> tuple[HostTime, ...]:
    """Take the mean of the ranks of each host. hosts, compute_s: of every rank."""
    found: dict[str, list[float]] = {}
    for host, seconds in zip(hosts, compute_s, strict=True):
        found.setdefault(host, []).append(seconds)
    return tuple(HostTime(host=host, ranks=len(of), compute_s=sum(of) / len(of)) for host, of in found.items())


def _busiest(grid: Grid, seconds: Tensor) -> tuple[LaneTime, ...]:
    """Return the busiest time of each lane that is used. seconds: [ranks, lanes], in flight.

    In a group the least time counts, as its ranks wait for the last of them to join; of the groups the longest counts.
    """
    by_axis = [grid[axis] for axis in reversed(grid.order)]  # the innermost changes fastest from rank to rank
    found = []
    for lane, (name, axis) in enumerate(AXIS_OF_LANE.items()):
        if name in NAMES_OF_MESSAGES:  # of which only waits are known
            continue
        of_groups = seconds[:, lane].reshape(by_axis).amin(-1 - grid.order.index(axis))
        if longest := of_groups.amax().item():
            found.append(LaneTime(lane=name, busy_s=longest))
    return tuple(found)


def _bound(step_s: float, compute_s: float, lanes: tuple[LaneTime, ...], machine: MachineUsage | None) -> Bound:
    """Bound a step by what its ranks share."""
    if machine is not None and machine.shared:
        link_s = link_seconds(machine)
        bound_s = metrics.bound_on_shared_cores(machine.processor_s, machine.cores, link_s)
        by = "link" if bound_s <= link_s else "processors"
    else:
        busiest = max(lanes, key=lambda lane: lane.busy_s, default=LaneTime(lane="", busy_s=0.0))
        bound_s = metrics.bound(compute_s, busiest.busy_s)
        by = busiest.lane if bound_s > compute_s else "compute"
    return Bound(bound_s=bound_s, by=by, step_by_bound=metrics.step_by_bound(step_s, bound_s))


def link_seconds(machine: MachineUsage) -> float:
    """Return the seconds that the busiest node's bytes take on its link at least; 0 where no rate is known."""
    return machine.link_bytes / machine.link_bytes_per_s if machine.link_bytes_per_s else 0.0


def _machine(
    comm: Comm, names: Sequence[str], taken: list[list[float]], link_bytes_per_s: float | None
) -> MachineUsage | None:
    """Find the machine with the longest bound; None for a job on accelerators. names: the machine of each rank; taken:
    what it took in a step.

    The ranks of one host name read the same counters of its network, so the most that one has read is what it carried.
    """
    allowed = _cores(comm, names)
    if comm.device.type != "cpu":
        return None
    machines = []
    for name, its_cores in allowed.items():
        mine = [rank for rank, of in enumerate(names) if of == name]
        machines.append(
            MachineUsage(
                ranks=len(mine),
                threads_per_rank=torch.get_num_threads(),
                cores=its_cores,
                processor_s=sum(taken[rank][0] for rank in mine),
                link_bytes=max(max(taken[rank][1:]) for rank in mine),
                link_bytes_per_s=link_bytes_per_s,
            )
        )
    return max(machines, key=lambda m: metrics.bound_on_shared_cores(m.processor_s, m.cores, link_seconds(m)))


def _cores(comm: Comm, names: Sequence[str]) -> dict[str, float]:
    """Count the cores of each machine that the ranks there may use, by its name. names: of each rank's. Collective."""
    allowed = [text.split() for text in gather_texts(comm, f"{sum(1 << core for core in cores()):x} {core_limit()}")]
    masks: dict[str, int] = {}
    for name, (mask, _) in zip(names, allowed, strict=True):
        masks[name] = masks.get(name, 0) | int(mask, 16)
    limits = {name: float(limit) for name, (_, limit) in zip(names, allowed, strict=True)}
    return {name: min(mask.bit_count(), limits[name]) for name, mask in masks.items()}


def profile(comm: Comm, profiling: Profiling) -> Profile:
    """Gather what the chosen ranks have written, and where. Collective."""
    files, problems = (gather_texts(comm, text, NETWORK_BYTES) for text in (profiling.file, profiling.unwritten))
    return Profile(
        iterations=tuple(profiling.request.iterations),
        traces=tuple(
            ProfileTrace(rank=rank, file=files[rank] or None, unwritten=problems[rank] or None)
            for rank in profiling.request.ranks
        ),
    )


def roster(comm: Comm) -> Roster:
    """Let the ranks of a host know each other's processes. Collective."""
    rows = comm.gather_rows(torch.tensor(own_row(), dtype=torch.int64)).tolist()
    return Roster(comm.rank, [(host, process, started) for host, process, started in rows])


def grouped(backend: BackendName, said: Sequence[NetworkLog], hosts: Sequence[str]) -> Transport:
    """Group what every rank says, in rank order, with the host of each."""
    groups: dict[tuple[str | None, ...], list[int]] = {}
    for rank, one in enumerate(said):
        groups.setdefault((one.network, one.interfaces, one.provider, one.unread), []).append(rank)
    return Transport(
        backend=backend,
        library=next((one.library for one in said if one.library), None),
        plugin=next((one.plugin for one in said if one.plugin), None),
        networks=tuple(
            Interconnect(
                name=name,
                interfaces=interfaces,
                provider=provider,
                unread=unread,
                ranks=len(ranks),
                gpu_direct_ranks=_count([said[rank].gpu_direct for rank in ranks]),
                host=hosts[ranks[0]],
            )
            for (name, interfaces, provider, unread), ranks in groups.items()
        ),
    )


def _count(answers: Sequence[bool | None]) -> int | None:
    """Count how many say yes; None if nobody says anything."""
    known = [answer for answer in answers if answer is not None]
    return sum(known) if known else None
