"""Which bandwidth an axis finds, and where a system's come from."""

from itertools import pairwise
from math import inf
from pathlib import Path

import pytest

import systems
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.simulator.bandwidth import Bandwidths, agnostic, bandwidths
from engine.simulator.collectives import Link
from systems import Between, Measured, Source, store

SOURCE = Source(command="bench collectives", device="a device", hosts=4, ranks=8)


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "FOLDER", tmp_path)


def measured(**changes: object) -> Measured:
    between = Between(
        bytes_per_s=20e9, shared={"1x8": 22e9, "2x4": 11e9}, link_bytes_per_s=21e9, step_s=1e-5, half_bytes=0
    )
    usual = {"date": "2026-01-02", "source": SOURCE, "message_bytes": 10**9, "devices_per_node": 2, "inter": between}
    return Measured.model_validate(usual | {"intra": {"1x2": 80e9}} | changes)


def along(machine: Bandwidths, grid: str) -> list[float]:
    """GB/s along each axis that has ranks."""
    found = Grid.parse(grid)
    return [machine.along(found, axis) / 1e9 for axis in Axis if found[axis] > 1]


def test_equation_7_is_the_papers_where_no_rank_is_limited() -> None:
    machine = Bandwidths(devices_per_node=8, inter=100e9, within=50e9, intra={(1, 2): 200e9, (2, 2): 60e9})
    assert along(machine, "2x2x2x2") == pytest.approx([200, 60, 50, 100 / 8])
    assert along(machine, "1x1x16x4") == pytest.approx([100, 100 / 8])
    assert along(machine, "2x4x4x1") == pytest.approx([200, 50, 100 / 8])
    assert along(machine, "4x4x1x1") == pytest.approx([50, 100 / 4])


def test_a_group_sends_no_more_than_its_ranks_on_a_node_can() -> None:
    machine = Bandwidths(devices_per_node=4, inter=100e9, within=inf, of_rank=10e9)
    assert along(machine, "1x1x1x16") == pytest.approx([40])
    assert along(machine, "1x1x2x16")[1:] == pytest.approx([20])
    assert along(machine, "1x1x4x16")[1:] == pytest.approx([10])
    assert along(machine, "1x1x32x16") == pytest.approx([40, 10])


def test_without_a_placement_all_axes_find_the_same() -> None:
    assert along(agnostic(3e9), "2x2x64x512") == pytest.approx([3, 3, 3, 3])


def test_where_nothing_was_measured_the_published_facts_count() -> None:
    frontier = bandwidths(systems.load("frontier"), systems.measured("frontier"))
    assert frontier.devices_per_node == 8
    assert (frontier.inter, frontier.within, frontier.of_rank) == pytest.approx((100e9, 50e9, 25e9))
    assert not frontier.intra


def test_what_was_measured_comes_before_what_is_published() -> None:
    store.keep("frontier", measured(devices_per_node=8, intra={"1x2": 80e9, "2x2": 40e9}))
    found = bandwidths(systems.load("frontier"), systems.measured("frontier"))
    assert found.intra == {(1, 2): 80e9, (2, 2): 40e9}
    assert found.within == pytest.approx(40e9)
    assert found.inter == pytest.approx(22e9), "all ranks of a node at once"
    assert found.of_rank == pytest.approx(20e9)


def test_a_system_that_was_measured_on_one_node_takes_the_link_from_its_facts() -> None:
    store.keep("frontier", measured(inter=None))
    found = bandwidths(systems.load("frontier"), systems.measured("frontier"))
    assert found.intra == {(1, 2): 80e9}
    assert (found.inter, found.of_rank) == pytest.approx((100e9, 25e9))


def test_a_machine_that_is_no_cluster_holds_every_job() -> None:
    store.keep("local", measured(inter=None))
    assert along(bandwidths(systems.load("local"), systems.measured("local")), "2x1x2x64") == pytest.approx(
        [80, 80, 80]
    )


@pytest.mark.parametrize(
    ("name", "left_out", "missing"),
    [("summit", {"nics": None}, "node.nics"), ("local", {}, "node.intra_node_bytes_per_s")],
)
def test_missing_facts_are_named_with_what_to_run(name: str, left_out: dict[str, None], missing: str) -> None:
    system = systems.load(name)
    with pytest.raises(UsageError) as refused:
        bandwidths(system.model_copy(update={"node": system.node.model_copy(update=left_out)}), None)
    assert f"lacks {missing}:" in str(refused.value)
    assert f"calibrate --system {name}" in str(refused.value)


def test_a_node_of_summit_has_two_rails_of_what_the_paper_prints() -> None:
    found = bandwidths(systems.load("summit"), None)
    assert (found.devices_per_node, found.within) == (6, 50e9)
    assert (found.inter, found.of_rank) == (25e9, 12.5e9)


def test_one_rank_a_node_needs_nothing_within_it() -> None:
    store.keep("alps", measured(devices_per_node=1, intra={}))
    assert bandwidths(systems.load("alps"), systems.measured("alps")).inter == pytest.approx(22e9)


def test_a_group_that_lies_across_two_nodes_leaves_them_by_one_rank() -> None:
    found = Bandwidths(devices_per_node=4, inter=100e9, within=80e9, of_rank=25e9)
    across, within, wide = Grid(1, 3, 4), Grid(2, 2, 4), Grid(1, 1, 12)
    assert found.leaves_node(across, Axis.Y)
    assert found.along(across, Axis.Y) == 80e9, "as Eq. 7 has it"
    assert found.in_a_run(across, Axis.Y) == 25e9
    assert found.in_a_run(across, Axis.Y, link=0.5) == 12.5e9
    assert not found.leaves_node(within, Axis.Y)
    assert found.in_a_run(within, Axis.Y, link=0.5) == 80e9
    assert found.in_a_run(wide, Axis.Z) == 80e9, "no faster than within a node"
    assert found.in_a_run(wide, Axis.Z, link=0.5) == 50e9
    assert not found.leaves_node(Grid(3), Axis.X), "a job of one node"


@pytest.mark.parametrize(
    "grid", [Grid(x, pipe=p, data=d) for x in (1, 2, 3, 8) for p in (1, 2, 3, 5) for d in (1, 3, 4)]
)
def test_a_pipelines_link_is_the_one_between_nodes_as_soon_as_one_message_takes_it(grid: Grid) -> None:
    node = 4
    found = Bandwidths(devices_per_node=node, inter=100e9, within=80e9, of_rank=25e9)
    stages = [grid.members(Axis.PIPE, rank) for rank in range(grid.size)]
    leaves = any(one // node != other // node for ranks in stages for one, other in pairwise(ranks))
    assert found.hop_leaves_node(grid) == leaves
    of_pipe = found.links(grid, lambda axis: Link(0.0), lambda leaves: Link(found.inter if leaves else found.within))
    assert of_pipe == dict.fromkeys(Axis, Link(0.0)) | {Axis.PIPE: Link(found.inter if leaves else found.within)}


def test_neighbours_find_their_faster_links_where_a_group_lies_among_them() -> None:
    found = bandwidths(systems.load("system-ii"), None)
    assert along(found, "2x4x1x1") == [184, 15]
    assert along(found, "4x2x1x1") == [15, 15]
    assert along(found, "1x2x2x2") == [184, 15, 15]
    messages = {grid: found.of_message(Grid.parse(grid), Axis.PIPE, leaves_node=False) for grid in STAGES}
    assert messages == {"1x1x1x1p2": 184e9, "1x1x1x1p8": 15e9, "2x1x1x1p4": 15e9}


STAGES = ("1x1x1x1p2", "1x1x1x1p8", "2x1x1x1p4")
