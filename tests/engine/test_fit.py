"""Fit of a grid to a model, a batch and memory, and the grid that is chosen when none is asked for."""

from dataclasses import replace

import pytest

import systems
from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import check_grid, check_host_memory, check_memory, fits_nodes, offloaded_bytes
from engine.footprint.memory import Footprint, usable
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.overlap.flags import ALL
from engine.pipeline.registry import PipelineOptions
from engine.planning.equations import Costs
from engine.planning.grids import SearchSpace, factorisations
from engine.planning.plan import make_plan
from engine.planning.rank import choose_grid
from engine.planning.workload import Workload
from engine.simulator.bandwidth import Bandwidths, run_links
from engine.tracing.memory import check_memory as check_traced
from engine.training_record import Training
from suites.base.series import AUTO, points

FRONTIER = {"devices_per_node": 8, "device_memory": 64e9}
MODEL = GPTConfig("m", layers=2, hidden=96, heads=12, vocabulary=100, sequence=16)


@pytest.mark.parametrize(
    ("grid", "batch", "said"),
    [
        (Grid(x=10), Batch(8), "12 attention heads among x=10 .*: x may be one of 1, 2, 3, 4, 6, 12"),
        (Grid(y=5), Batch(8), "96 is not a multiple of 5: y may be one of 1, 2, 3, 4, 6, 8, 12"),
        (Grid(z=2, data=3), Batch(8), "into 6 parts.*8 sequences is not a multiple.*--batch-size 12"),
        (Grid(data=2), Batch(8, micro=3), "has 4 of the 8 sequences.*--micro-batch one of 1, 2, 4"),
        (Grid(), Batch(0), "--batch-size 1"),
    ],
)
def test_a_grid_that_does_not_divide_is_refused_with_what_would_fit(grid: Grid, batch: Batch, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_grid(MODEL, grid, batch)


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        (Grid(x=16), "8 key and value heads among x=16 .*: x may be one of 1, 2, 4, 8"),
        (Grid(y=3), "4096 is not a multiple of 3: y may be one of 1, 2, 4, 8"),
    ],
)
def test_llamas_key_and_value_heads_bound_x(grid: Grid, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        check_grid(lookup("llama-3.1-8b"), grid, Batch(48))
    check_grid(lookup("llama-3.1-8b"), Grid(x=8, y=2, z=4), Batch(48))


def test_published_numbers_need_not_be_divided() -> None:
    gpt2 = GPTConfig("gpt2", layers=12, hidden=768, heads=12, vocabulary=50257, sequence=1024)
    check_grid(gpt2, Grid(x=12, z=7), Batch(7))
    check_grid(lookup("bert-large"), Grid(x=4, z=3), Batch(3))
    check_grid(lookup("llama-3.1-8b"), Grid(x=3, z=6), Batch(6))


def _trained(name: str, sequences: int, micro: int = 2) -> Training:
    """Make the training of a published series."""
    return Training(lookup(name), Batch(sequences, micro), precision="bf16", checkpoint_every=1, overlap=ALL)


def test_tensor_parallelism_stays_in_the_node_then_shards_then_data() -> None:
    assert choose_grid(_trained("gpt-5b", 8192), 512, **FRONTIER) == Grid(4, 1, 1, 128)
    assert choose_grid(_trained("gpt-80b", 8192), 8192, **FRONTIER) == Grid(8, 1, 8, 128)
    assert choose_grid(Training(lookup("gpt-local-2"), Batch(8)), 2) == Grid(data=2)


def test_processors_of_a_node_take_the_grid_that_moves_least() -> None:
    """On two processors gpt-pair has 109 MB of gradients, and its layers all-reduce 50 MB over x."""
    node = {"devices_per_node": 4}
    assert choose_grid(Training(lookup("gpt-pair"), Batch(8)), 2, device="cpu", **node) == Grid(x=2)
    assert choose_grid(Training(lookup("gpt-pair"), Batch(64)), 2, device="cpu", **node) == Grid(data=2)
    assert choose_grid(Training(lookup("gpt-pair"), Batch(8)), 2, device="cuda", **node) == Grid(data=2)
    assert choose_grid(Training(lookup("gpt-pair"), Batch(8)), 8, device="cpu", **node) == Grid(data=8)


def test_what_a_step_takes_beyond_the_state_needs_more_tensor_parallelism() -> None:
    """Choose grids of llama-3.1-8b on 64 devices of 64 GB."""
    grids = [choose_grid(_trained("llama-3.1-8b", 256, micro), 64, **FRONTIER) for micro in (1, 8)]
    assert [grid.x * grid.y * grid.z for grid in grids] == [4, 8]


def test_a_grid_that_holds_the_state_but_not_a_step_is_refused() -> None:
    grid = Grid(2, 1, 1, 256)
    check_memory(_trained("gpt-5b", 8192, 32), grid, 64e9)
    check_traced(_trained("gpt-5b", 8192), grid, 64e9)
    with pytest.raises(UsageError, match=r"66\.8 .*42\.2 .*64 GB"):
        check_traced(_trained("gpt-5b", 8192, 32), grid, 64e9)
    with pytest.raises(UsageError, match=r" 64 GB"):
        check_memory(_trained("gpt-5b", 8192, 64), grid, 64e9)


def test_what_a_node_s_ranks_offload_has_to_fit_in_its_memory() -> None:
    """12 bytes an element of matrices: 8 ranks that share a model of 5 billion parameters hold it once."""
    training = replace(_trained("gpt-5b", 8192), offload=True)
    matrices = sum(one.local_numel(Grid()) for one in training.model.placements().values() if one.sharded)
    assert offloaded_bytes(training, Grid(x=4, z=2)) == pytest.approx(12 * matrices / 8, rel=1e-6)
    assert offloaded_bytes(replace(training, offload=False), Grid(x=4)) == 0
    check_host_memory(training, Grid(x=4, z=2, data=8), 64e9, ranks=8)
    with pytest.raises(UsageError, match=r"4x1x1x8 --offload\D+1\d\d .*\b8 ranks\b.*\b64\b"):
        check_host_memory(training, Grid(x=4, data=8), 64e9, ranks=8)


def test_a_plan_leaves_out_what_a_node_cannot_hold_of_the_offload() -> None:
    training = replace(_trained("gpt-5b", 8192), offload=True)
    grids = [Grid(x=4, data=8), Grid(x=4, z=2, data=4)]
    workload = Workload(training, host_memory=offloaded_bytes(training, grids[1]))
    assert [workload.allows(grid, 2) for grid in grids] == [False, True]


def test_a_plan_whose_offload_fits_on_no_node_is_refused() -> None:
    training, alps = replace(_trained("gpt-5b", 64, 1), offload=True), systems.load("alps")
    assert alps.node.memory_bytes
    memory = alps.node.memory_bytes.model_copy(update={"value": 20e9})
    small = alps.model_copy(update={"node": alps.node.model_copy(update={"memory_bytes": memory})})
    space = SearchSpace(training.model, 64, exact=True, micro=1, stages=1)
    assert make_plan(training, space, 4, alps, shown=1, forecast=None)[0].fit
    with pytest.raises(UsageError, match=r"--offload\D+63 .*4 ranks\b.*\b20 GB"):
        make_plan(training, space, 4, small, shown=1, forecast=None)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, 2**k) for name in ("gpt-5b", "gpt-320b") for k in range(13)] + [("gpt-100b", 48), ("gpt-100b", 384)],
)
def test_the_chosen_grid_is_valid(name: str, ranks: int) -> None:
    training = _trained(name, 16384)
    grid = choose_grid(training, ranks, **FRONTIER)
    assert grid.size == ranks
    check_grid(training.model, grid, training.batch)


def test_no_valid_grid_is_said_with_the_closest_one_s_reason() -> None:
    with pytest.raises(UsageError, match=r"7 ranks .*gpt-test\D+8 sequences;.*7"):
        choose_grid(Training(lookup("gpt-test"), Batch(8)), 7)


def test_a_batch_smaller_than_the_ranks_moves_them_off_data() -> None:
    grid = choose_grid(Training(lookup("gpt-test"), Batch(2)), 8)
    assert grid.size == 8
    assert grid.batch_split <= 2


def _planes_cut(grid: Grid, devices_per_node: int) -> bool:
    """By looking at every rank: does a plane of x and y share a node with a part of another, or with a part of none?"""
    planes: dict[int, set[int]] = {}
    for rank in range(grid.size):
        planes.setdefault(rank // (grid.x * grid.y), set()).add(rank)
    nodes = [set(range(at, min(at + devices_per_node, grid.size))) for at in range(0, grid.size, devices_per_node)]
    return any(plane & node and not (plane <= node or node <= plane) for plane in planes.values() for node in nodes)


@pytest.mark.parametrize("devices_per_node", [1, 2, 4, 6, 8])
def test_whether_a_plane_lies_across_nodes_is_what_its_ranks_say(devices_per_node: int) -> None:
    for nodes in (1, 2, 3, 6):
        ranks = nodes * devices_per_node
        for x in range(1, ranks + 1):
            for y in [y for y in range(1, ranks // x + 1) if ranks % (x * y) == 0]:
                grid = Grid(x, y, 1, ranks // (x * y))
                assert fits_nodes(grid, devices_per_node) == (not _planes_cut(grid, devices_per_node)), grid


@pytest.mark.parametrize("devices_per_node", [4, 6, 8])
def test_no_chosen_grid_lays_a_plane_across_the_border_of_two_nodes(devices_per_node: int) -> None:
    for nodes in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536):
        ranks = nodes * devices_per_node
        training = _trained("gpt-60b", 8192)
        grid = choose_grid(training, ranks, devices_per_node=devices_per_node, device_memory=96e9)
        assert grid.size == ranks
        assert not _planes_cut(grid, devices_per_node), grid


def test_60b_on_6144_of_alps_takes_whole_nodes_for_the_three_that_its_batch_cannot_be_split_by() -> None:
    grid = choose_grid(_trained("gpt-60b", 8192), 6144, devices_per_node=4, device_memory=96e9)
    assert grid == Grid(12, 1, 2, 256)


def test_where_only_grids_across_nodes_are_left_none_is_chosen() -> None:
    """Twelve ranks and one sequence, which can't be split: none on nodes of eight, two whole nodes of six."""
    with pytest.raises(UsageError, match=r"12 ranks\D+1 sequences"):
        choose_grid(Training(MODEL, Batch(1)), 12, devices_per_node=8)
    assert choose_grid(Training(MODEL, Batch(1)), 12, devices_per_node=6).batch_split == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("study", ["weak_scaling", "strong_scaling", "overlap_ablation"])
@pytest.mark.parametrize("name", ["perlmutter", "frontier", "alps", "summit"])
def test_every_point_of_the_published_series_has_a_grid_on_which_its_step_fits(study: str, name: str) -> None:
    system = systems.load(name)
    assert system.node.devices
    assert system.device.memory_bytes
    node, memory = system.node.devices.value, system.device.memory_bytes.value
    link, within = system.node.nic_bytes_per_s, system.node.intra_node_bytes_per_s
    bandwidths = Bandwidths(node, node * link.value, within.value) if link and within else None
    for point in points(study, name):
        overlap = replace(ALL, cache=point.series.cache) if study == "overlap_ablation" else ALL
        batch = Batch(point.sequences, point.micro_batch)
        model = lookup(point.model)
        pipeline = PipelineOptions(point.schedule)
        training = Training.of(point.series.training, model, batch, overlap=overlap, pipeline=pipeline)
        if point.grid == AUTO:
            grid = choose_grid(
                training, point.devices, devices_per_node=node, device_memory=memory, bandwidths=bandwidths
            )
        else:
            grid = Grid.parse(point.grid)
        check_grid(model, grid, batch)
        check_memory(training, grid, memory)
        assert fits_nodes(grid, node)


@pytest.mark.parametrize("micro", [2, None])
def test_with_known_links_the_grid_is_chosen_whose_communication_costs_least_as_run(micro: int | None) -> None:
    """Without a micro-batch a rank takes its whole share at once, as in a run."""
    model, links = lookup("gpt-5b"), Bandwidths(8, inter=100e9, within=50e9)
    batch = Batch(64, micro)
    training = Training(model, batch, precision="bf16", checkpoint_every=1, overlap=ALL)
    costs, found = Costs(training), run_links(links)

    def cost(grid: Grid) -> float:
        return sum(costs.as_run(grid, found(grid), micro or batch.per_rank(grid)).values())

    def fits(grid: Grid) -> bool:
        try:
            check_grid(model, grid, batch)
        except UsageError:
            return False
        return fits_nodes(grid, 8) and Footprint(training).on(grid).total <= usable(64e9)

    chosen = choose_grid(training, 16, **FRONTIER, bandwidths=links)
    fitting = [grid for grid in factorisations(16) if fits(grid)]
    assert chosen in fitting
    assert len(fitting) < sum(1 for _ in factorisations(16))
    assert cost(chosen) == pytest.approx(min(map(cost, fitting)))


def test_where_nothing_fits_the_grid_is_chosen_as_if_links_were_unknown() -> None:
    links = Bandwidths(8, inter=100e9, within=50e9)
    chosen = [choose_grid(_trained("gpt-80b", 64), 8, **FRONTIER, bandwidths=b) for b in (links, None)]
    assert chosen[0] == chosen[1]
