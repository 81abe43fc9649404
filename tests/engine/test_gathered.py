"""Figures that take all ranks: what they reach together, the shortest lane, and what bounds their step."""

import math
import os
import socket
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from real_ranks import run_processes
from ticks import Ticks

from engine.comm.collective import AXIS_OF_LANE, Kind
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Axis, Grid
from engine.loading import cores
from engine.measure import machine
from engine.measure.machine import counted, link_bytes
from engine.measure.recorder import Recorder, Recording
from engine.result.schema.step import Breakdown, LaneTime, MachineUsage
from engine.training.gathered import _bound, _busiest, _by_host, breakdown, collectives, joint_peak


def told(comm: Comm, busy: list[float], hosts: tuple[str, ...] = ("n0", "n0")) -> str:
    """The breakdown of a recording whose z lane was busy for so long on each rank, which waited for half of that."""
    os.sched_setaffinity(0, {0})
    socket.gethostname = lambda: hosts[comm.rank]
    recording = Recording(steps=2, time_s=8.0, processor_s=3.0 + comm.rank, received_bytes=10 * comm.rank, sent_bytes=4)
    recording.lanes["z"] = busy[comm.rank]
    recording.axes["z"].exposed_s = busy[comm.rank] / 2
    found = breakdown(comm, recording, 1.0)
    assert found is not None
    return found.model_dump_json()


def test_ranks_that_share_a_core_are_bound_by_its_seconds_and_by_the_wire() -> None:
    every = [Breakdown.model_validate_json(text) for text in run_processes(Grid(z=2), told, [3.0, 2.0])]
    for found in every:
        assert [(lane.lane, lane.busy_s) for lane in found.lanes] == [("z", pytest.approx(1.0))]
        machine = found.machine
        assert machine is not None
        assert (machine.ranks, machine.cores, machine.shared) == (2, 1, True)
        assert machine.processor_s == pytest.approx(3.5)
        assert machine.link_bytes == pytest.approx(5.0)
        assert found.bound is not None
        assert (found.bound.by, found.bound.bound_s) == ("link", pytest.approx(5.0))
        assert found.bound.step_by_bound == pytest.approx(4.0 / 5.0)
        assert [(host.host, host.ranks, host.compute_s) for host in found.hosts] == [("n0", 2, pytest.approx(3.375))]


def test_every_rank_tells_what_each_host_computed() -> None:
    every = [Breakdown.model_validate_json(text) for text in run_processes(Grid(z=2), told, [3.0, 2.0], ("b", "a"))]
    for rank, found in enumerate(every):
        assert {host.host: host.compute_s for host in found.hosts} == pytest.approx({"b": 3.25, "a": 3.5})
        assert [host.host for host in found.hosts] == ["b", "a"]
        assert found.hosts[rank].compute_s == pytest.approx(found.compute_s)


def one_is_late(comm: Comm, late_s: float) -> list[tuple[str, float]]:
    """Compute times of the hosts in a step in which rank 1 joins a collective this late."""
    socket.gethostname = lambda: f"n{comm.rank}"
    recorder = comm.recorder
    assert recorder is not None
    for step in ("the first", "late"):
        comm.barrier()
        recorder.clear()
        recorder.start_step("all")
        if step == "late" and comm.rank == 1:
            time.sleep(late_s)
        comm.run(Kind.ALL_REDUCE, Axis.Z, torch.zeros(5))
        recorder.end_step()
    found = breakdown(comm, recorder.total, None)
    assert found is not None
    return [(host.host, host.compute_s) for host in found.hosts]


def test_a_host_that_is_late_computes_and_the_others_wait_for_it() -> None:
    for found in run_processes(Grid(z=2), one_is_late, 3.0):
        (first, waits_s), (second, late_s) = found
        assert (first, second) == ("n0", "n1")
        assert late_s >= 3.0
        assert waits_s < late_s / 2


def test_a_host_computes_as_long_as_its_ranks_do_on_average() -> None:
    found = _by_host(["n1", "n0", "n1", "n1"], [1.0, 7.0, 2.0, 6.0])
    assert [(of.host, of.ranks, of.compute_s) for of in found] == [("n1", 3, 3.0), ("n0", 1, 7.0)]


@pytest.mark.parametrize(
    ("compute_s", "lane_s", "shared", "by", "bound_s"),
    [(3.0, 2.0, False, "compute", 3.0), (2.0, 3.0, False, "z", 3.0), (1.0, 9.0, True, "processors", 4.0)],
)
def test_a_wait_for_a_turn_on_the_core_is_no_lane(
    compute_s: float, lane_s: float, shared: bool, by: str, bound_s: float
) -> None:
    machine = MachineUsage(ranks=4, threads_per_rank=1, cores=2 if shared else 4, processor_s=8.0, link_bytes=9e9)
    bound = _bound(5.0, compute_s, (LaneTime(lane="z", busy_s=lane_s),), machine)
    assert (bound.by, bound.bound_s) == (by, pytest.approx(bound_s))


def test_of_a_group_the_last_to_join_counts_and_of_the_groups_the_slowest() -> None:
    """2x1x2x1: ranks 0, 1 and 2, 3 are the groups of x, 0, 2 and 1, 3 those of z."""
    seconds = torch.zeros(4, len(AXIS_OF_LANE))
    seconds[:, list(AXIS_OF_LANE).index("x")] = torch.tensor([1.0, 9.0, 5.0, 4.0])
    seconds[:, list(AXIS_OF_LANE).index("z")] = torch.tensor([1.0, 9.0, 5.0, 4.0])
    found = {lane.lane: lane.busy_s for lane in _busiest(Grid(x=2, z=2), seconds)}
    assert found == pytest.approx({"x": 4.0, "z": 4.0})
    seconds[:, list(AXIS_OF_LANE).index("data")] = torch.tensor([1.0, 9.0, 4.0, 5.0])
    for outermost, busy_s in {True: 4.0, False: 5.0}.items():
        of_data = _busiest(Grid(data=2, pipe=2, pipe_outermost=outermost), seconds)
        assert {lane.lane: lane.busy_s for lane in of_data}["data"] == busy_s
    seconds[3] = 0.5
    found = {lane.lane: lane.busy_s for lane in _busiest(Grid(x=2, z=2), seconds) if lane.lane in "xz"}
    assert found == pytest.approx({"x": 1.0, "z": 1.0})


def test_a_control_groups_limit_on_processors_makes_its_ranks_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "job" / "step"
    inner.mkdir(parents=True)
    monkeypatch.setattr(machine, "control_groups", lambda: (inner, inner.parent, tmp_path))
    assert machine.core_limit() == math.inf
    alone = machine.machine_name()
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    assert machine.core_limit() == pytest.approx(1.5)
    assert machine.machine_name() == f"{alone}/{inner.parent.stat().st_ino}"


def peak(comm: Comm) -> float:
    return joint_peak(comm, torch.float32)


def test_all_ranks_agree_on_what_they_reach_at_once() -> None:
    one, two = run_processes(Grid(z=2), peak)
    assert one > 0
    assert one == two


def test_a_machine_tells_its_cores_and_its_network_only_ever_carries_more() -> None:
    assert cores() == os.sched_getaffinity(0)
    assert all(a <= b for a, b in pairwise([link_bytes()[0] for _ in range(3)]))
    assert counted("Inter-|   Receive\n face |bytes\n") == (0, 0)


@pytest.mark.parametrize("timing", [True, False])
def test_collectives_that_were_not_timed_have_calls_and_bytes_and_no_time(timing: bool) -> None:
    recorder = Recorder(Ticks(), timing=timing)  # type: ignore[arg-type]
    with fake_group(Grid(z=2), 0):
        comm = Comm(Grid(z=2), recorder=recorder)
        for _ in range(2):
            recorder.start_step("all")
            comm.run(Kind.ALL_REDUCE, Axis.Z, torch.zeros(5))
            recorder.end_step()
    (found,) = collectives(recorder.total)
    assert (found.kind, found.axis, found.calls, found.bytes) == ("all_reduce", "z", 1.0, 20.0)
    assert (found.time_s is not None) == timing
