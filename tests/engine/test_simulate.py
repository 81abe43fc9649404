"""The simulator against what can be reckoned by hand."""

from dataclasses import replace
from itertools import pairwise

import pytest
from dry_plans import dry_plan
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch
from engine.comm.collective import Kind
from engine.grid import Axis, Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import ALL, Overlap
from engine.simulator.bandwidth import Bandwidths, papers_links
from engine.simulator.collectives import Taken, ring_s
from engine.simulator.events import Attention, Event, Issue, Mark, MatrixProduct, Segment, Sweep, Trace, Wait
from engine.simulator.machine import Fitted, MachineModel
from engine.simulator.simulate import in_turns, share_of, simulate
from engine.tracing.step import trace

EXACT = Fitted(products=1.0, link=1.0, fading=0.0, slowdown=0.0)
MACHINE = MachineModel(
    name="test",
    peak_flops=2e9,
    empirical_peak=1e9,
    memory_bytes_per_s=1e12,
    device_memory=None,
    bandwidths=Bandwidths(devices_per_node=2, inter=1e6, within=4e6),
    fitted=EXACT,
    step_s=0.0,
    kernel_s=0.0,
)
SECOND = MatrixProduct(m=500, n=1000, k=1000, mode="NT", element=0)
"""A second of compute."""
GRID = Grid(2, 1, 2, 2)
KINDS = ("all_gather", "all_reduce")


def gather(axis: str, seconds: float, lane: str | None = None) -> Issue:
    """An all-gather over two ranks that takes so long alone: z and data leave the node, where x shares their link."""
    return Issue("all_gather", axis, lane or axis, round(seconds * {"x": 4e6, "z": 0.5e6, "data": 0.5e6}[axis]))


def of(*events: Event, repeats: int = 1) -> Trace:
    return Trace({"grid": str(GRID)}, 1, 1, 0, 0, 0, [Segment(repeats, list(events), [])])


def test_what_is_waited_for_at_once_is_exposed() -> None:
    found = simulate(of(Mark("forward"), SECOND, gather("x", 2), Wait(1, True), Mark("backward"), SECOND), MACHINE)
    assert found.time_s == pytest.approx(4)
    assert found.compute_s == pytest.approx(2)
    assert found.exposed_s == pytest.approx({"x": 2})
    assert found.hidden_s == 0
    assert found.phases_s == pytest.approx({"forward": 3, "backward": 1})


def test_what_is_in_flight_during_compute_is_hidden_and_slows_it() -> None:
    events = (gather("z", 1.5), SECOND, SECOND, Wait(1, False))
    found = simulate(of(*events), MACHINE)
    assert (found.time_s, found.hidden_s) == pytest.approx((2, 1.5))
    assert found.hidden_by_axis_s == pytest.approx({"z": 1.5})
    slow = simulate(of(*events), MACHINE.with_fitted(replace(EXACT, slowdown=0.5)))
    assert slow.compute_s == slow.time_s == pytest.approx(1.5 + 1)  # in 1.5 s one second is done
    partly = simulate(of(gather("z", 3), SECOND, Wait(1, False)), MACHINE)
    assert (partly.time_s, partly.communication_s, partly.hidden_s) == pytest.approx((3, 2, 1))


def on_cores(between_s: float, within_s: float = 0.0, **more: float) -> MachineModel:
    """A byte that a rank sends takes so much of its core, at 0.5 MB/s between nodes and 4 MB/s within."""
    between, within = Taken(0.0, between_s / 0.5e6), Taken(0.0, within_s / 4e6)
    taken = {"taken": dict.fromkeys(KINDS, between), "taken_within": dict.fromkeys(KINDS, within) if within_s else {}}
    return replace(MACHINE, **taken, **more)  # type: ignore[arg-type]


def test_a_core_that_also_sends_computes_for_longer_by_what_that_takes() -> None:
    """A collective of one second takes 0.2 s of the core."""
    hidden = of(gather("z", 1), SECOND, Wait(1, False))
    found = simulate(hidden, on_cores(0.2))
    assert (found.time_s, found.communication_s) == pytest.approx((1.2, 0))
    assert (found.compute_s, found.hidden_s) == pytest.approx((1.2, 1))
    assert simulate(hidden, MACHINE).time_s == pytest.approx(1), "nothing where it wasn't measured, nor on accelerators"
    exposed = simulate(of(SECOND, gather("z", 1), Wait(1, True)), on_cores(0.2))
    assert exposed.time_s == pytest.approx(2), "a wait is long enough for it"
    turns = simulate(hidden, on_cores(0.2, ranks_per_core=2))
    assert turns.time_s == pytest.approx(1 + 2 * 0.2), "a rank's share of the core is half of it"
    two = simulate(of(gather("z", 0.5), gather("data", 0.5), SECOND, Wait(1, False)), on_cores(0.2))
    assert two.time_s == pytest.approx(1.2), "together they send for a second"


def test_collectives_get_half_of_a_core_that_computes_and_what_they_take_is_never_lost() -> None:
    found = simulate(of(gather("z", 1), SECOND, Wait(1, False)), on_cores(0.8))
    assert found.time_s == pytest.approx(1.8)
    assert found.hidden_s == pytest.approx(1.6), "0.8 s of the core at half of it"


def test_within_a_node_the_rank_itself_exchanges_when_it_waits() -> None:
    found = simulate(of(gather("x", 1), SECOND, Wait(1, False)), on_cores(0.2, 0.9), timeline=True)
    assert (found.time_s, found.hidden_s) == pytest.approx((2, 0))
    assert found.exposed_s == pytest.approx({"x": 1})
    assert found.timeline is not None
    (flight,) = (span for span in found.timeline.spans if span.kind == "collective")
    assert (flight.issued_s, flight.start_s, flight.end_s) == pytest.approx((0, 1, 2))
    queued = simulate(of(gather("x", 1), gather("x", 1), SECOND, Wait(1, False)), on_cores(0.2, 0.9))
    assert queued.exposed_s == pytest.approx({"x": 2})
    beside = simulate(of(gather("z", 2), gather("x", 1), Wait(1, True), Wait(2, False)), on_cores(0.2, 0.9))
    assert beside.exposed_s == pytest.approx({"x": 1.25, "z": 0.75}), "what is sent meanwhile takes of the core"


def test_where_sending_takes_processors_the_grid_that_sends_less_is_the_fastest() -> None:
    """Over z each weight is gathered twice and its gradient scattered; over data the gradient is summed, once."""
    steps = {grid: trace(*dry_plan(lookup("gpt-test"), grid, Batch(16))) for grid in (Grid(z=4), Grid(data=4))}
    fast = replace(MACHINE, bandwidths=Bandwidths(2, 1e12, 4e12), memory_bytes_per_s=1e9)
    costly = replace(fast, taken=dict.fromkeys(("all_gather", "reduce_scatter", "all_reduce"), Taken(0.0, 1e-7)))

    def fastest(machine: MachineModel) -> Grid:
        return min(steps, key=lambda grid: simulate(steps[grid], machine).time_s)

    assert fastest(fast) == Grid(z=4), "the optimizer has less to do"
    assert fastest(costly) == Grid(data=4)


def test_flights_that_use_the_same_link_share_it_and_others_do_not() -> None:
    both = simulate(of(gather("z", 1), gather("data", 1), Wait(2, False), Wait(1, False)), MACHINE)
    assert both.time_s == pytest.approx(2)
    uneven = simulate(of(gather("z", 1), gather("data", 3), Wait(2, False), Wait(1, False)), MACHINE)
    assert uneven.time_s == pytest.approx(4)
    assert uneven.exposed_s == pytest.approx({"z": 2, "data": 2})
    apart = simulate(of(gather("z", 1), gather("x", 1), Wait(2, False), Wait(1, False)), MACHINE)
    assert apart.time_s == pytest.approx(1)


def test_a_lane_is_a_queue_and_another_lane_of_the_axis_is_not_behind_it() -> None:
    queued = simulate(of(gather("z", 1), gather("z", 1), SECOND, SECOND, Wait(1, False)), MACHINE, timeline=True)
    assert queued.time_s == pytest.approx(2)
    assert queued.timeline is not None
    first, second = (span for span in queued.timeline.spans if span.kind == "collective")
    assert second.issued_s == 0
    assert (first.end_s, second.start_s, second.end_s) == pytest.approx((1, 1, 2))
    lanes = simulate(of(gather("z", 3), gather("z", 1, "z gather"), Wait(1, False)), MACHINE)
    assert lanes.time_s == pytest.approx(2), "half of the link each"


def test_waits_reach_back_over_segments() -> None:
    body = (SECOND, gather("z", 1), Wait(2, False))
    found = simulate(
        replace(of(*body, repeats=3), segments=[Segment(1, [gather("z", 1)], []), Segment(3, list(body), [])]), MACHINE
    )
    assert found.time_s == pytest.approx(3)
    assert found.communication_s == pytest.approx(0)


def test_compute_takes_its_flops_its_bytes_and_its_launches() -> None:
    machine = replace(MACHINE, memory_bytes_per_s=1e6, kernel_s=0.25, modes={"TN": 0.5})
    assert machine.compute_s(Sweep(2_000_000, 1)) == pytest.approx(2)
    assert machine.compute_s(Sweep(0, 8)) == pytest.approx(2)
    assert machine.compute_s(SECOND) == pytest.approx(1)
    assert machine.compute_s(replace(SECOND, mode="TN")) == pytest.approx(2)
    assert machine.compute_s(replace(SECOND, element=1)) == pytest.approx(1 + 2)
    attention = Attention(heads=1, sequence=1000, head_size=250, element=0, backward=False)
    assert machine.compute_s(attention) == pytest.approx(1)
    assert machine.compute_s(replace(attention, backward=True)) == pytest.approx(2)
    processor = replace(machine, launches_itself=True)
    assert [processor.compute_s(event) for event in (SECOND, Sweep(2_000_000, 2))] == pytest.approx([1.25, 2.5])


def test_a_group_within_a_node_has_the_nodes_link_and_one_beyond_it_shares_the_network() -> None:
    machine = MACHINE.with_fitted(replace(EXACT, link=0.5, fading=0.1))
    assert machine.link(GRID, Axis.X).bytes_per_s == 4e6
    assert machine.link(GRID, Axis.Z).bytes_per_s == 0.25e6
    assert machine.link(Grid(1, 1, 8, 1), Axis.Z).over(8) == pytest.approx(0.5e6 / 1.2)
    assert machine.collective_s("all_gather", 1e6, Grid(z=8), Axis.Z) == pytest.approx(7 * 1.2 / 0.5)
    assert ring_s("all_reduce", 1e6, 1, machine.link(GRID, Axis.X)) == 0  # type: ignore[arg-type]


def test_a_message_stays_in_its_node_or_shares_its_way_out_with_those_of_its_neighbours() -> None:
    machine = replace(MACHINE.with_fitted(replace(EXACT, fading=0.1)), taken={"all_gather": Taken(0.0, 3e-7)})

    def message(grid: Grid, one: int, other: int) -> object:
        return pytest.approx(machine.message(1e6, grid, Axis.PIPE, one, other))

    alone, pairs = Grid(pipe=4), Grid(2, pipe=4)
    within, between = (0.25, 0.0), (1.0, 0.3)
    assert [within, between, within, between] == [message(alone, stage, (stage + 1) % 4) for stage in range(4)]
    assert [message(pairs, stage, (stage + 1) % 4) for stage in range(4)] == [(2.0, 0.3)] * 4
    assert within == message(Grid(pipe=2), 0, 1), "there is one node"


@pytest.mark.parametrize("grid", [Grid(pipe=4), Grid(2, pipe=4), Grid(pipe=2), Grid(pipe=3, data=4)], ids=str)
def test_a_pipeline_is_ranked_by_the_link_of_its_slowest_hop(grid: Grid) -> None:
    hops_s = [MACHINE.message(1e6, grid, Axis.PIPE, stage, stage + 1).seconds for stage in range(grid.stages - 1)]
    assert ring_s(Kind.SEND, 1e6, 2, MACHINE.links(grid)[Axis.PIPE]) == pytest.approx(max(hops_s))
    papers = papers_links(MACHINE.bandwidths)(grid)[Axis.PIPE]
    assert papers.bytes_per_s == pytest.approx(1e6 / max(hops_s))


def test_a_sum_too_short_to_be_cut_among_the_ranks_takes_few_steps() -> None:
    machine = replace(MACHINE, step_s=1.0)
    short, long = (machine.collective_s("all_reduce", num_bytes, Grid(z=8), Axis.Z) for num_bytes in (4, 32))
    assert (short, long) == pytest.approx((3, 14), rel=1e-3)


@settings(max_examples=8, deadline=None)
@given(
    slowdown=st.floats(0, 1),
    inter=st.floats(1e6, 1e9),
    flags=st.sampled_from(["none", "oar", "ors", "oag", "oar,ors,oag,data", "oar,ors,oag,cache=2,data"]),
)
def test_a_step_is_at_least_its_longest_part_and_at_most_their_sum(slowdown: float, inter: float, flags: str) -> None:
    found = TRACES.setdefault(flags, trace(*dry_plan(lookup("gpt-test"), GRID, BATCH, overlap=Overlap.parse(flags))))
    machine = replace(
        MACHINE.with_fitted(replace(EXACT, slowdown=slowdown)), bandwidths=Bandwidths(2, inter, 2 * inter)
    )
    told = simulate(found, machine, timeline=True)
    compute_s = sum(machine.compute_s(event) for event in found if isinstance(event, MatrixProduct | Attention | Sweep))
    lanes: dict[str, float] = {}
    for event in found:
        if isinstance(event, Issue):
            alone_s = machine.collective_s(event.kind, event.num_bytes, GRID, Axis(event.axis))
            lanes[event.lane] = lanes.get(event.lane, 0.0) + alone_s
    assert told.time_s == pytest.approx(told.compute_s + told.communication_s)
    assert compute_s <= told.compute_s * (1 + 1e-9)
    assert told.compute_s <= compute_s * (1 + slowdown) * (1 + 1e-9)
    assert max(lanes.values()) <= told.time_s * (1 + 1e-9)
    assert told.time_s <= (compute_s * (1 + slowdown) + 2 * sum(lanes.values())) * (1 + 1e-9)
    assert told.timeline is not None
    for lane in lanes:
        spans = [span for span in told.timeline.spans if span.lane == lane and span.kind == "collective"]
        for before, after in pairwise(spans):
            assert before.end_s <= after.start_s
    if flags == "none":
        assert told.hidden_s == 0


BATCH = Batch(16, 2)
TRACES: dict[str, Trace] = {}


def test_every_flag_helps_where_the_network_is_slow() -> None:
    model = lookup("gpt-test")
    none, some = (trace(*dry_plan(model, GRID, BATCH, overlap=flags)) for flags in (Overlap(), replace(ALL, cache=2)))
    assert simulate(some, MACHINE).time_s < simulate(none, MACHINE).time_s


STEP = simulate(of(gather("z", 1), SECOND, SECOND, Wait(1, False), gather("x", 2), Wait(1, False)), MACHINE)


def test_ranks_in_turns_take_as_long_but_compute_less_of_it_and_wait_more() -> None:
    found = in_turns(STEP, 4.0)
    assert found.time_s == STEP.time_s == pytest.approx(4)
    # Alone a rank computes half a second, R; three others are at it for R / 4 of the time: R = (1 + 3 R / 4) / 2.
    assert found.compute_s == pytest.approx(0.8)
    assert found.compute_s + found.communication_s == pytest.approx(found.time_s)
    assert found.hidden_s == pytest.approx(STEP.hidden_s * 0.4)
    assert sum(found.hidden_by_axis_s.values()) == pytest.approx(sum(STEP.hidden_by_axis_s.values()) * 0.4)
    assert share_of(found.compute_s, found.time_s, 4.0) == pytest.approx(STEP.compute_s)


def test_a_rank_with_a_core_of_its_own_or_nothing_to_wait_for_finds_the_step_as_it_is() -> None:
    busy = simulate(of(SECOND), MACHINE)
    assert in_turns(STEP, 1.0) == STEP
    assert in_turns(busy, 4.0).compute_s == pytest.approx(busy.compute_s)
    assert share_of(1.0, 4.0, 1.0) == pytest.approx(1)


def test_a_collective_within_a_node_reaches_what_its_kind_does() -> None:
    slower = replace(MACHINE, kinds={"all_gather": 0.25}, kinds_within={(1, 2): {"all_gather": 0.5}})

    def times(machine: MachineModel) -> list[float]:
        """Time an all-gather and an all-reduce along x, within a node, and along z, between nodes."""
        return [machine.collective_s(kind, 1e6, GRID, axis) for axis in (Axis.X, Axis.Z) for kind in KINDS]

    assert [b / a for a, b in zip(times(MACHINE), times(slower), strict=True)] == pytest.approx([2, 1, 4, 1])


def test_a_kind_of_collective_takes_its_own_of_a_core_and_another_as_much_as_an_all_reduce() -> None:
    gathers, reduces = Taken(0.0, 1e-7), Taken(0.0, 4e-7)
    machine = replace(MACHINE, taken={"all_gather": gathers, "all_reduce": reduces})
    found = [machine.processor_s(kind, 1e6, GRID, Axis.Z) for kind in ("all_gather", "all_reduce", "reduce_scatter")]
    ranks = GRID[Axis.Z]
    expected = [(Kind.ALL_GATHER, gathers), (Kind.ALL_REDUCE, reduces), (Kind.REDUCE_SCATTER, reduces)]
    assert found == pytest.approx([taken.of(kind, 1e6, ranks) for kind, taken in expected])
    assert machine.processor_s("all_gather", 1e6, GRID, Axis.X) == pytest.approx(0), "within a node it isn't known"


def test_a_product_reaches_what_its_size_does() -> None:
    machine = replace(MACHINE, by_size=((100.0, 1e8), (1000.0, 4e8)))

    def reached(rows: int) -> float:
        product = MatrixProduct(rows, rows, rows, "NT", 0)
        return product.flops / machine.compute_s(product)

    assert [reached(10), reached(100)] == pytest.approx([1e8, 1e8])
    assert reached(316) == pytest.approx(2.5e8, rel=1e-3), "half way on a logarithmic scale"
    assert [reached(1000), reached(4000)] == pytest.approx([4e8, 4e8])
