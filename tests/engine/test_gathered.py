"""Figures that take all ranks: what they reach together, the shortest lane, and what bounds their step."""

import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from real_ranks import run_processes

from engine.comm.collective import AXIS_OF_LANE
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure import machine
from engine.measure.machine import cores, counted, link_bytes
from engine.measure.recorder import Recording
from engine.result.step import Breakdown, LaneTime, Machine
from engine.training.gathered import _bound, _busiest, breakdown, joint_peak


def told(comm: Comm, busy: list[float]) -> str:
    """The breakdown of a recording whose z lane was busy for so long on each rank, on two cores a rank."""
    os.sched_setaffinity(0, {0})
    recording = Recording(steps=2, time_s=8.0, processor_s=3.0 + comm.rank, received_bytes=10 * comm.rank, sent_bytes=4)
    recording.lanes["z"] = busy[comm.rank]
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


@pytest.mark.parametrize(
    ("compute_s", "lane_s", "shared", "by", "bound_s"),
    [
        (3.0, 2.0, False, "compute", 3.0),
        (2.0, 3.0, False, "z", 3.0),
        (1.0, 9.0, True, "processors", 4.0),
    ],
)
def test_a_wait_for_a_turn_on_the_core_is_no_lane(
    compute_s: float, lane_s: float, shared: bool, by: str, bound_s: float
) -> None:
    machine = Machine(ranks=4, threads_per_rank=1, cores=2 if shared else 4, processor_s=8.0, link_bytes=9e9)
    bound = _bound(5.0, compute_s, (LaneTime(lane="z", busy_s=lane_s),), machine)
    assert (bound.by, bound.bound_s) == (by, pytest.approx(bound_s))


def test_of_a_group_the_last_to_join_counts_and_of_the_groups_the_slowest() -> None:
    """2x1x2x1: ranks 0, 1 and 2, 3 are the groups of x, 0, 2 and 1, 3 those of z."""
    seconds = torch.zeros(4, len(AXIS_OF_LANE))
    seconds[:, list(AXIS_OF_LANE).index("x")] = torch.tensor([1.0, 9.0, 5.0, 4.0])
    seconds[:, list(AXIS_OF_LANE).index("z")] = torch.tensor([1.0, 9.0, 5.0, 4.0])
    found = {lane.lane: lane.busy_s for lane in _busiest(Grid(x=2, z=2), seconds)}
    assert found == pytest.approx({"x": 4.0, "z": 4.0})
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
