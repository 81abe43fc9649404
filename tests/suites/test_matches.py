"""All contests of all systems: each fits on both sides or the command says why not, divides the network, and a series
costs what it may.
"""

from dataclasses import replace
from functools import cache

import pytest

import systems
from engine.batch import Batch
from engine.footprint.fit import check_grid
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops
from engine.peers import memory
from engine.peers.comparison import Case, Unavailable
from engine.peers.layout import Layout, unsharded
from engine.peers.memory import choose_apart
from engine.peers.registry import ALONE, COMPARISONS
from engine.planning.choose import choose_grid
from engine.simulator.bandwidth import Bandwidths
from suites.base.contests import Match, case_of, matches, our_micro_batch, room
from suites.base.series import AUTO, Point, points

NODE_HOURS = 1400
"""As suites/README.md has it."""
OF_PEAK = 1 / 3
OF_THE_LIMIT = 0.8
"""Of a job's time, what steps may take at that share of the peak: the rest is for starting and making networks."""
STEPS_A_ROUND = 2
WARM_UPS = 3
"""Of ours before the peer and after it, and of the peer's."""


@cache
def every(name: str) -> list[Match]:
    """Of a system."""
    return list(matches(systems.load(name)))


def held(name: str) -> list[Match]:
    """Those that fit."""
    return [match for match in every(name) if match.fits]


def our_grid(point: Point, system: systems.System) -> Grid:
    """As the engine chooses it where the series doesn't."""
    if point.grid != AUTO:
        return Grid.parse(point.grid)
    device, node, case = system.device, system.node, case_of(point, system)
    training = replace(case, reduce_dtype=None)
    inter, within = node.nic_bytes_per_s, node.intra_node_bytes_per_s
    per_node = node.devices.value if node.devices else 1
    nics = node.nics.value if node.nics else 1
    bandwidths = Bandwidths(per_node, inter=nics * inter.value, within=within.value) if inter and within else None
    bytes_ = device.memory_bytes.value if device.memory_bytes else None
    return choose_grid(
        training,
        point.devices,
        device=case.device,
        devices_per_node=per_node,
        device_memory=bytes_,
        bandwidths=bandwidths,
    )


@pytest.mark.parametrize("name", systems.names())
def test_our_side_of_every_baseline_divides_the_network_and_fits(name: str) -> None:
    system = systems.load(name)
    for point in points("baselines", name):
        case, grid = case_of(point, system), our_grid(point, system)
        micro = our_micro_batch(case, grid, room(system))
        case = replace(case, batch=Batch(point.sequences, micro))
        needs = memory.ours(case, grid, system.device.kind)
        assert room(system).fits(needs), f"{point} on {grid} needs {needs / 1e9:.1f} GB"
        assert grid.size == point.devices
        check_grid(case.model, grid, case.batch)


@pytest.mark.parametrize("name", systems.names())
def test_every_peer_of_a_baseline_divides_the_network_and_fits(name: str) -> None:
    system = systems.load(name)
    assert held(name)
    for match in held(name):
        case, layout = replace(case_of(match.point, system), peer_micro_batch=match.micro_batch), match.layout
        assert layout.size == match.point.devices
        contest = COMPARISONS[match.peer].with_layout(layout, Grid(data=layout.size))
        contest.check(case.model)
        if isinstance(layout, Layout):
            layout.for_batch(case.peer_batch).check(case.model, case.batch.sequences)
        else:
            check_grid(case.model, unsharded(layout), case.peer_batch)
        needs = memory.peer(contest, case, system.device.kind)
        assert room(system).fits(needs), f"{match} needs {needs / 1e9:.1f} GB"


@pytest.mark.parametrize("name", systems.names())
def test_the_command_holds_every_baseline_that_fits_and_says_why_it_holds_no_other(name: str) -> None:
    system, grids = systems.load(name), dict[str, Grid]()
    for match in every(name):
        point = match.point
        grid = grids[str(point)] = grids.get(str(point)) or our_grid(point, system)
        case = replace(
            case_of(point, system),
            batch=Batch(point.sequences, our_micro_batch(case_of(point, system), grid, room(system))),
            peer_micro_batch=match.micro_batch,
            devices_per_node=system.node.devices.value if system.node.devices else None,
        )
        contest = COMPARISONS[match.peer].with_layout(match.layout, grid)
        if match.fits:
            assert choose_apart(contest, case, room(system)).apart in (True, False)
        else:
            with pytest.raises(Unavailable, match=r"^\S+ does not fit: .*needs \S+ of \S+ GB that a plan counts on"):
                choose_apart(contest, case, room(system))


@pytest.mark.parametrize("name", ["frontier", "local", "perlmutter", "vcluster"])
def test_every_u_net_is_compared_with_zero_3_fsdp2_and_ddp(name: str) -> None:
    peers: dict[str, set[str]] = {}
    for match in every(name):
        if match.point.series.name == "unet":
            peers.setdefault(str(match.point), set()).add(match.peer)
    assert set(map(str, points("baselines", name))) >= set(peers) != set()
    assert all(found == {"deepspeed-zero3", "fsdp2", "ddp"} for found in peers.values()), peers


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
def test_stages_of_a_large_pipeline_are_hardly_idle(name: str) -> None:
    piped = [(m, m.layout) for m in held(name) if isinstance(m.layout, Layout) and m.layout.pipeline > 1]
    large = [(match, layout) for match, layout in piped if match.point.devices == 64]
    assert large
    for match, layout in large:
        parts = match.point.sequences / layout.data / match.micro_batch
        assert (layout.pipeline - 1) / (parts + layout.pipeline - 1) <= 0.05, f"{match} in {parts} micro-batches"


def node_hours(match: Match, system: systems.System) -> float:
    per_node = system.node.devices.value if system.node.devices else match.point.devices
    limit = match.point.series.time_limit or system.partitions[0].time_limit
    return -(-match.point.devices // per_node) * systems.seconds(limit) / 3600


@pytest.mark.parametrize("name", systems.names())
def test_a_whole_series_of_baselines_takes_no_more_node_hours_than_the_readme_says(name: str) -> None:
    assert sum(node_hours(match, systems.load(name)) for match in held(name)) <= NODE_HOURS


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
def test_the_steps_of_both_sides_end_well_within_the_time_limit(name: str) -> None:
    device = systems.load(name).device
    for match in held(name):
        point = match.point
        flops = hardware_flops(lookup(point.model), point.sequences, recompute=True)
        step_s = flops / (point.devices * OF_PEAK * device.peak_flops["bf16"].value)
        steps = WARM_UPS * Case(lookup(point.model), Batch(1)).warmup + 2 * STEPS_A_ROUND * point.series.rounds
        limit = point.series.time_limit
        assert limit is not None
        assert steps * step_s <= OF_THE_LIMIT * systems.seconds(limit), f"{match}: {steps} of {step_s:.0f} s"


@pytest.mark.parametrize("name", ["alps", "frontier", "perlmutter"])
def test_every_library_is_compared_at_a_moderate_size_and_the_best_few_at_the_largest(name: str) -> None:
    for match in held(name):
        contest = COMPARISONS[match.peer].with_layout(match.layout, Grid(data=match.layout.size))
        assert contest.lacking(lookup(match.point.model), recompute=True) is None, "no rank would be started"
    moderate = {match.peer for match in held(name) if match.point.devices == 64}
    libraries = {contest.library for contest in COMPARISONS.values()} - {None, "litgpt"}  # which recomputes nothing
    assert {COMPARISONS[peer].library for peer in moderate} >= libraries
    largest = max(match.point.devices for match in held(name))
    for point in {str(match.point) for match in held(name) if match.point.devices == largest}:
        assert 1 <= len({match.peer for match in held(name) if str(match.point) == point}) <= 3
    on_a_node = {match.peer for match in held(name) if match.point.devices <= 8}
    assert {COMPARISONS[peer].library for peer in on_a_node} >= libraries


@pytest.mark.parametrize("name", systems.names())
def test_no_grid_of_ours_is_fixed_by_hand_and_each_side_goes_first_in_half_of_the_rounds(name: str) -> None:
    for point in points("baselines", name):
        assert (point.grid, point.series.rounds % 2) == (AUTO, 0), point


@pytest.mark.parametrize("name", systems.names())
def test_contests_of_peers_on_our_grids_fit_on_both_sides(name: str) -> None:
    system = systems.load(name)
    for point in points("peers", name):
        case, grid = case_of(point, system), Grid.parse(point.grid)
        for contest in COMPARISONS.values():
            beyond = [axis for axis in "xyz" if getattr(grid, axis) > 1 and axis not in contest.axes]
            if contest.splits or contest.name in ALONE or beyond or (grid.data > 1 and "data" not in contest.axes):
                continue
            batch = Batch(point.sequences)
            check_grid(case.model, grid, batch)
            whole = Case(case.model, batch, precision=case.precision)  # that study keeps activations
            found = memory.side_bytes(contest.with_grid(grid), whole, system.device.kind)
            assert room(system).fits(max(found)), f"{point} with {contest.name}"


@pytest.mark.parametrize("name", systems.names())
def test_contests_on_one_device_fit_on_both_sides(name: str) -> None:
    system = systems.load(name)
    for point in points("single_device", name):
        model = lookup(point.model)
        if point.series.sequence:
            model = replace(model, sequence=point.series.sequence)  # type: ignore[type-var]
        case = Case(model, Batch(point.sequences), precision=point.series.precision)
        for peer in ALONE:
            found = memory.side_bytes(COMPARISONS[peer], case, system.device.kind)
            assert room(system).fits(max(found)), f"{point} with {peer}"
