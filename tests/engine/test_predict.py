"""Few layers stand for all: what they predict is what the whole network's trace does."""

from dataclasses import replace
from statistics import fmean

import pytest
from dry_plans import dry_plan, few_layers
from pipelines import make

from engine.batch import Batch
from engine.footprint.memory import USABLE, Footprint, blocks_cached
from engine.grid import Grid
from engine.overlap.flags import Overlap
from engine.pipeline.fixed_schedules import OneFOneB
from engine.pipeline.registry import PipelineOptions
from engine.planning.grids import SearchSpace
from engine.planning.rank import pipelines, rank
from engine.planning.workload import Workload
from engine.simulator.bandwidth import Bandwidths
from engine.simulator.collectives import Taken
from engine.simulator.machine import Fitted, MachineModel
from engine.simulator.simulate import simulate
from engine.tracing.predict import trace_network
from engine.tracing.stage_times import time_tasks
from engine.tracing.stages import trace_stages
from engine.tracing.step import trace

MACHINE = MachineModel(
    name="some",
    peak_flops=300e12,
    empirical_peak=200e12,
    memory_bytes_per_s=1.5e12,
    device_memory=40e9,
    bandwidths=Bandwidths(4, 100e9, 100e9),
    fitted=Fitted(),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "grid", "batch", "overlap"),
    [
        ("gpt-10b", Grid(1, 1, 64, 16), Batch(8192, 8), "oar,ors,oag"),
        ("gpt-10b", Grid(1, 1, 64, 16), Batch(8192, 8), "oar,ors,oag,cache=4,data"),
        ("gpt-80b", Grid(8, 2, 16, 32), Batch(8192, 4), "oar,ors,oag"),
        ("gpt-80b", Grid(8, 2, 16, 32), Batch(8192, 4), "none"),
        ("llama-3.1-8b", Grid(2, 1, 8, 64), Batch(4096, 1), "oar,ors,oag"),
    ],
    ids=str,
)
def test_few_layers_predict_what_all_do(name: str, grid: Grid, batch: Batch, overlap: str) -> None:
    plan = dry_plan(few_layers(name, 10), grid, batch, overlap=Overlap.parse(overlap))
    whole, found = trace_network(*plan, exact=True).on(MACHINE), trace_network(*plan).on(MACHINE)
    assert found.time_s == pytest.approx(whole.time_s, rel=3e-3)
    assert found.communication_s == pytest.approx(whole.communication_s, abs=3e-3 * whole.time_s)
    assert found.hidden_s == pytest.approx(whole.hidden_s, abs=5e-3 * whole.time_s)
    assert found.time_s == pytest.approx(found.compute_s + found.communication_s)


def test_few_groups_predict_what_all_do() -> None:
    """Three of four blocks each and one of two, which runs again first."""
    overlap = Overlap.parse("oar,ors,oag,cache=3")
    plan = dry_plan(few_layers("gpt-10b", 14), Grid(1, 1, 64, 16), Batch(8192, 8), overlap=overlap, checkpoint=4)
    whole, few = trace_network(*plan, exact=True), trace_network(*plan)
    assert few.drawn == 6
    assert few.on(MACHINE).time_s == pytest.approx(whole.on(MACHINE).time_s, rel=3e-3)
    assert few.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("first", "every", "overlap", "grid"),
    [
        (8, 1, "oar,ors,oag,cache=2", Grid(1, 1, 64, 16)),
        (1, 1, "oar,ors,oag", Grid(1, 1, 64, 16)),
        (13, 1, "none", Grid(2, 2, 16, 16)),
        (9, 2, "all", Grid(2, 1, 32, 16)),
    ],
)
def test_few_blocks_that_are_recomputed_and_few_that_arent_predict_what_all_do(
    first: int, every: int, overlap: str, grid: Grid
) -> None:
    model = few_layers("gpt-10b", 16)
    training, _ = dry_plan(model, grid, Batch(8192, 8), overlap=Overlap.parse(overlap), checkpoint=every)
    plan = replace(training, checkpoint_blocks=first), grid
    whole, few = trace_network(*plan, exact=True), trace_network(*plan)
    assert few.drawn < whole.drawn == 16
    assert few.on(MACHINE).time_s == pytest.approx(whole.on(MACHINE).time_s, rel=4e-3)
    assert few.peak_bytes == pytest.approx(whole.peak_bytes, rel=0.02)
    all_s, none_s = (trace_network(training.recomputing(number), grid).on(MACHINE).time_s for number in (every, 0))
    assert none_s < whole.on(MACHINE).time_s < all_s


def test_auto_caches_more_blocks_in_more_memory_and_that_saves_time() -> None:
    slow = replace(MACHINE, bandwidths=Bandwidths(4, 10e9, 100e9))
    plan = dry_plan(few_layers("gpt-10b", 24), Grid(1, 1, 64, 16), Batch(8192, 4), overlap=Overlap.parse("all"))
    small, large = trace_network(*plan, device_memory=12e9), trace_network(*plan, device_memory=80e9)
    assert small.cached_blocks < large.cached_blocks == 24
    assert small.on(slow).time_s > large.on(slow).time_s
    assert small.peak_bytes < large.peak_bytes


def test_few_blocks_of_three_stages_predict_a_pipelines_step() -> None:
    """Stages of equal blocks stand still for (stages - 1) / m of the step, and the head makes the last one slower."""
    grid, stages, passes = Grid(x=2, pipe=4), 4, 16
    plan = dry_plan(few_layers("gpt-10b", 16), grid, Batch(passes, 1), overlap=Overlap.parse("all"))
    by = {name: replace(plan[0], pipeline=PipelineOptions(name)) for name in ("gpipe", "1f1b", "auto")}
    found = {name: trace_stages(training, grid).on(MACHINE) for name, training in by.items()}
    assert found["gpipe"].time_s == pytest.approx(found["1f1b"].time_s, rel=0.03), "messages take next to nothing"
    whole = trace_stages(by["1f1b"], grid)
    busy_s = [
        sum(part.end_s - part.start_s for part in whole.played(OneFOneB(), passes, MACHINE).played if part.stage == s)
        for s in range(stages)
    ]
    idle_s = found["1f1b"].time_s - max(busy_s)
    assert idle_s == pytest.approx((stages - 1) / passes * max(busy_s), rel=0.25)
    assert found["auto"].time_s <= min(found["gpipe"].time_s, found["1f1b"].time_s)
    assert found["auto"].schedule is not None
    roomy = trace_stages(by["auto"], grid, device_memory=1e12).on(MACHINE)
    more = PipelineOptions("message-driven-zb", pipeline_limit=8, weight_limit=8)
    more_passes = trace_stages(replace(plan[0], pipeline=more), grid).on(MACHINE)
    assert roomy.schedule == "interleaved, chunks 4"
    assert roomy.time_s < more_passes.time_s < found["auto"].time_s
    assert more_passes.peak_bytes > found["auto"].peak_bytes


@pytest.mark.parametrize("ranks_per_core", [1.0, 4.0])
def test_what_a_pipeline_exposes_is_the_mean_of_its_stages_and_has_their_idle_time(ranks_per_core: float) -> None:
    """A stage works the faster on a core that it shares the longer others are idle, so that the busiest one tells
    nothing. Stages of 1 to 8 blocks wait for unlike times.
    """
    grid, machine, passes = Grid(x=2, pipe=4), replace(MACHINE, ranks_per_core=ranks_per_core), 16
    training = dry_plan(few_layers("gpt-10b", 16), grid, Batch(passes, 1), overlap=Overlap.parse("all"))[0]
    stages = trace_stages(replace(training, pipeline=PipelineOptions("1f1b", stages="1,2,5,8")), grid)
    found, played = stages.on(machine), stages.played(OneFOneB(), passes, machine)
    alone = [stages.traces[False, 1].times(lambda one: time_tasks(one, machine))[stage] for stage in range(4)]
    tails_s = [stage.tail_s for stage in alone]
    idle_s = played.time_s - fmean(played.busy_s) + max(tails_s) - fmean(tails_s)
    assert found.exposed_s["pipe"] == pytest.approx(idle_s)
    waits_s = fmean(passes * stage.exposed_s["x"] for stage in alone)
    shorter = min(fmean(played.busy_s) / fmean(passes * sum(stage.tasks_s.values()) for stage in alone), 1.0)
    assert (shorter < 0.9) == (ranks_per_core > 1)
    of_tails_s = fmean(stage.tail_exposed_s.get("x", 0.0) for stage in alone)
    assert found.exposed_s["x"] == pytest.approx(shorter * waits_s + of_tails_s)
    assert found.time_s == pytest.approx(found.compute_s + found.communication_s)


def test_what_the_end_of_a_pipelines_step_waits_for_is_exposed() -> None:
    """Without overlap gradients are added over data when all passes are over."""
    grid, slow = Grid(pipe=2, data=4), replace(MACHINE, bandwidths=Bandwidths(4, 1e9, 1e9))
    training = dry_plan(few_layers("gpt-10b", 4), grid, Batch(32, 2), overlap=Overlap.parse("none"))[0]
    found = trace_stages(replace(training, pipeline=PipelineOptions("1f1b")), grid).on(slow)
    gradient_bytes = 2 * training.model.parameters / 2  # of a stage, in bf16
    least_s = 2 * 3 / 4 * 0.9 * gradient_bytes / 1e9  # of a ring
    assert least_s < found.exposed_s["data"] < found.time_s
    assert found.time_s == pytest.approx(found.compute_s + found.communication_s)


@pytest.mark.parametrize("cache", [2, 8])
def test_what_a_pipeline_caches_is_predicted_as_its_stages_own_traces_have_it(cache: int) -> None:
    """Stages have four blocks, the first of which is traced as it is."""
    grid, slow = Grid(z=4, pipe=3), replace(MACHINE, bandwidths=Bandwidths(4, 1e9, 1e9))

    def found(cached: str) -> tuple[float, float]:
        plan = dry_plan(few_layers("gpt-10b", 12), grid, Batch(12, 1), overlap=Overlap.parse(f"oar,ors,oag,{cached}"))
        training = replace(plan[0], pipeline=PipelineOptions("1f1b", stages="4,4,4"))
        whole = simulate(trace(training, grid, one_by_one=True), slow)
        return trace_stages(training, grid).on(slow).time_s, sum(
            whole.phases_s[name] for name in ("forward", "backward")
        )

    (without_s, own_without_s), (with_s, own_with_s) = found("data"), found(f"cache={cache},data")
    assert own_with_s < 0.95 * own_without_s
    assert with_s / without_s == pytest.approx(own_with_s / own_without_s, rel=0.03)


def test_a_pipeline_s_auto_caches_what_is_free_for_all_passes_under_way() -> None:
    grid = Grid(z=4, pipe=3)
    training = dry_plan(few_layers("gpt-10b", 12), grid, Batch(12, 1), overlap=Overlap.parse("all"))[0]
    training = replace(training, pipeline=PipelineOptions("1f1b"))
    needed = Footprint(training).on(grid).total

    def cached(memory: float) -> int:
        return blocks_cached(training, grid, needed, memory)

    one = 12 * 5120**2 * 2  # bytes of a block's matrices
    room = 2 * 3 * 2 * one  # half of what is free, of three passes under way, for two blocks
    assert [cached((needed + room * by) / USABLE) for by in (0.4, 0.51, 1.01)] == [0, 1, 2]


def test_chunks_are_predicted_with_less_idle_time_and_blocks_of_their_own_cut() -> None:
    """Idle share is (stages - 1) / (chunks * m) if stages take equal time but for the head."""
    grid, stages, passes = Grid(x=2, pipe=4), 4, 16
    plan = dry_plan(few_layers("gpt-10b", 16), grid, Batch(passes, 1), overlap=Overlap.parse("all"))
    found = {}
    for chunks in (1, 2, 4):
        options = PipelineOptions("interleaved", chunks=chunks) if chunks > 1 else PipelineOptions("1f1b")
        traced_by = trace_stages(replace(plan[0], pipeline=options), grid)
        assert traced_by.blocks.keys() == {chunks}
        assert sum(traced_by.blocks[chunks]) == 16
        found[chunks] = traced_by.on(MACHINE).time_s
    idle_s = [(found[one] - found[two]) for one, two in ((1, 2), (2, 4))]
    assert idle_s[0] == pytest.approx(2 * idle_s[1], rel=0.3)
    assert idle_s[0] == pytest.approx((stages - 1) / passes / 2 * found[1] / (1 + (stages - 1) / passes), rel=0.3)


def test_on_slow_links_a_pipeline_is_ranked_before_grids_that_sum_all_gradients() -> None:
    slow = replace(MACHINE, bandwidths=Bandwidths(4, 100e6, 100e9))
    training = dry_plan(few_layers("gpt-10b", 8), Grid(), Batch(32))[0]
    space, workload = (
        SearchSpace(training.model, 32, exact=True, stages=None),
        Workload(training, 1e12, flops_per_s=200e12),
    )
    grids = space.pipelines(8, 32)
    assert {grid.size for grid in grids} == {8}
    assert {grid.stages for grid in grids} == {2, 4, 8}
    first = pipelines(workload, grids, slow.links)[0]
    flat = rank(workload, space.grids(8, 32), slow.bandwidths, links_as_run=slow.links).candidates
    assert first.as_run_s < min(one.as_run_s for one in flat)


def test_stages_stand_outside_data_where_its_sums_then_stay_in_a_node() -> None:
    """A node has four of eight ranks: of four groups of two stages all sum gradients between both, or each in one."""
    slow = replace(MACHINE, bandwidths=Bandwidths(4, 1e9, 100e9))
    workload = Workload(dry_plan(few_layers("gpt-10b", 8), Grid(), Batch(32))[0], 1e12, flops_per_s=200e12)
    grids = [Grid(data=4, pipe=2, pipe_outermost=outermost) for outermost in (False, True)]
    first, *_, last = pipelines(workload, grids, slow.links)
    assert (str(first.grid), str(last.grid)) == ("1x1x1x4P2", "1x1x1x4p2")


def test_stages_that_share_cores_do_with_fewer_micro_batches() -> None:
    training = dry_plan(few_layers("gpt-10b", 8), Grid(), Batch(16))[0]
    grids = SearchSpace(training.model, 16, exact=True, stages=8).pipelines(8, 16)
    of = Workload(training, 1e12, flops_per_s=200e12)
    alone, four = ({one.micro for one in pipelines(of, grids, MACHINE.links, shared)} for shared in (1.0, 4.0))
    assert (alone, four) == ({1, 2}, {1, 2, 4, 8})


def test_messages_and_agreement_take_their_part_of_processors() -> None:
    grid, passes, step_s = Grid(x=2, pipe=2), 4, 1e-3
    plan = dry_plan(few_layers("gpt-10b", 8), grid, Batch(passes, 1), overlap=Overlap.parse("all"))
    processors = replace(MACHINE, taken_within={"all_gather": Taken(step_s, 0.0)})

    def more_s(name: str) -> float:
        """By how much a stage works longer for it."""
        stages = trace_stages(replace(plan[0], pipeline=PipelineOptions(name)), grid)  # type: ignore[arg-type]
        free_s, taken_s = (
            sum(
                part.end_s - part.start_s
                for part in stages.played(make(name), passes, machine).played
                if not part.stage
            )
            for machine in (MACHINE, processors)
        )
        return taken_s - free_s

    halves = 2 * passes
    assert more_s("1f1b") >= 0.99 * halves * step_s / 2, "stage 0 sends what its forwards make, and its backwards take"
    assert more_s("message-driven") - more_s("1f1b") == pytest.approx(halves * step_s), "both ranks agree on each task"
