"""Figures that take all ranks: what they reach together, the shortest lane, and what bounds their step."""

import os
from itertools import pairwise

import pytest
import torch
from real_ranks import run_processes

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.machine import cores, counted, link_bytes
from engine.measure.recorder import Recording
from engine.result.step import Breakdown, LaneTime, Machine
from engine.training.gathered import _bound, breakdown, joint_peak


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
