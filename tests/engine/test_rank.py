"""The order of grids: the papers' equations by plain arithmetic, what the engine repeats, placement and ties."""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from closed_form import closed_form
from hypothesis import given
from hypothesis import strategies as st

from engine.batch import Batch
from engine.comm.collective import Kind
from engine.errors import UsageError
from engine.footprint.fit import fits_nodes
from engine.footprint.memory import USABLE, Needs
from engine.grid import SPLITTING_FEATURES, Axis, Grid
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.planning.equations import EQUATIONS, MOVED, Costs, Layer
from engine.planning.grids import SearchSpace
from engine.planning.plan import fewest, refusal
from engine.planning.rank import Ranking, ordered, rank
from engine.planning.workload import Candidate, Workload
from engine.simulator.bandwidth import Bandwidths, agnostic, papers_links, run_links
from engine.simulator.collectives import Link, moved_bytes
from engine.tensor_mode import ALGORITHM_1, SPLIT, Side, TensorMode
from engine.training_record import Training, TrainingOptions

GPT = GPTConfig("m", layers=2, hidden=8, heads=4, vocabulary=16, sequence=4)
BERT = BertConfig("bert", layers=2, hidden=8, heads=2, vocabulary=16, sequence=4)
FRONTIER = Bandwidths(devices_per_node=8, inter=100e9, within=50e9)
PERLMUTTER = Bandwidths(devices_per_node=4, inter=100e9, within=100e9)
NOTHING = Needs(0, 0, 0, 0, 0, 0)


def _workload(
    model: str, sequences: int, memory: float | None = None, micro: int | None = None, again: bool = True
) -> Workload:
    options = TrainingOptions(precision="bf16", checkpoint_activations=again, reduce_dtype="bf16")
    return Workload(Training.of(options, lookup(model), Batch(sequences, micro)), memory)


def _ranked(workload: Workload, ranks: int, bandwidths: Bandwidths) -> Ranking:
    batch = workload.training.batch
    space = SearchSpace(workload.training.model, batch.sequences, exact=True, micro=batch.micro)
    return rank(workload, space.grids(ranks, batch.sequences), bandwidths)


@pytest.mark.parametrize("grid", [Grid(2, 2, 2, 2), Grid(4, 1, 2, 1), Grid(1, 4, 1, 4), Grid(1, 2, 4, 2)])
def test_the_equations_are_the_papers_formulas(grid: Grid) -> None:
    """Two blocks and the head of 32 rows of 2 bytes, written out; nodes of four ranks, 7 B/s within, 100 between."""
    bandwidths = Bandwidths(4, inter=100.0, within=7.0)
    inner = {Axis.X: 1, Axis.Y: grid.x, Axis.Z: grid.x * grid.y, Axis.DATA: grid.x * grid.y * grid.z}
    inner[Axis.PIPE] = inner[Axis.DATA]
    beta = {a: 7.0 if inner[a] * grid[a] <= 4 else 100.0 / min(4, inner[a]) for a in Axis}
    expected = dict.fromkeys(Axis, 0.0)
    for n, k, transposed, count in ((24, 8, 0, 2), (8, 8, 1, 2), (32, 8, 0, 2), (8, 32, 1, 2), (16, 8, 0, 1)):
        out_axis, in_axis = (Axis.Y, Axis.X) if transposed else (Axis.X, Axis.Y)
        gx, gy, gz, gdata = grid[out_axis], grid[in_axis], grid.z, grid.data
        m = 8 * 4 / gdata
        expected[Axis.Z] += count * 2 / beta[Axis.Z] * (gz - 1) * k * n / (gx * gy * gz)
        expected[Axis.Z] += count * 2 / beta[Axis.Z] * (gz - 1) / gz * k * n / (gx * gy)
        expected[in_axis] += count * 2 * 2 / beta[in_axis] * (gy - 1) / gy * m * n / (gz * gx)
        expected[out_axis] += count * 2 * 2 / beta[out_axis] * (gx - 1) / gx * m * k / (gz * gy)
        expected[Axis.DATA] += count * 2 * 2 / beta[Axis.DATA] * (gdata - 1) / gdata * k * n / (gx * gy * gz)
    spent = Costs(Training(GPT, Batch(8), precision="bf16")).equations(grid, papers_links(bandwidths)(grid))
    for axis in Axis:
        assert sum(s for (_, along), s in spent.items() if along is axis) == pytest.approx(expected[axis])


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("micro", [2, 4])
@pytest.mark.parametrize(
    ("network", "mode"), [(GPT, ALGORITHM_1), (BERT, ALGORITHM_1), (GPT, SPLIT)], ids=["gpt", "bert", "split"]
)
def test_as_run_a_block_moves_what_the_engine_sends(
    network: Architecture, mode: TensorMode, micro: int, again: bool
) -> None:
    """By the closed form that recorded runs are compared with; at 1 B/s seconds are bytes."""
    grid, batch = Grid(2, 2, 2, 2), Batch(4 * 2 * micro, micro)
    seconds, sent = [], []
    for layers in (2, 3):
        model = replace(network, layers=layers)  # type: ignore[type-var]
        links = dict.fromkeys(Axis, Link(1.0))
        seconds.append(
            Costs(
                Training(model, batch, precision="bf16", checkpoint_every=int(again), tensor_mode=mode.name)  # type: ignore[arg-type]
            ).as_run(grid, links, micro)
        )
        sent.append(closed_form(model, batch, grid, precision="bf16", checkpoint=again, mode=mode).num_bytes)
    of_block = {key: seconds[1][key] - seconds[0][key] for key in seconds[1]}

    def moved(kind: Kind, axis: Axis, other: float = 0.0) -> float:
        key = str(kind), str(axis)
        return moved_bytes(kind, sent[1].get(key, 0) - sent[0].get(key, 0) - other, 2)

    statistics = 2 * 2 * batch.per_rank(grid) * GPT.sequence * 4  # of two norms' backward, over y
    statistics //= mode.parts(Side.STREAM, grid) // grid.y
    assert of_block["all_gather_z", Axis.Z] == pytest.approx(moved(Kind.ALL_GATHER, Axis.Z))
    assert of_block["reduce_scatter_z", Axis.Z] == pytest.approx(moved(Kind.REDUCE_SCATTER, Axis.Z))
    for axis, other in ((Axis.X, 0), (Axis.Y, statistics)):
        sums = of_block["all_reduce_y", axis] + of_block["all_reduce_x", axis]
        sent_by = moved(Kind.ALL_REDUCE, axis, other)
        if mode is SPLIT:  # where gradients of norms alone are summed on all ranks
            sent_by = moved(Kind.REDUCE_SCATTER, axis) + moved(Kind.ALL_GATHER, axis, other * (1 + again))
        assert sums == pytest.approx(sent_by)


def test_features_that_change_axes_are_gathered_once_a_micro_batch_each_way() -> None:
    grid, batch, links = Grid(2, 2, 2, 2), Batch(16, 1), dict.fromkeys(Axis, Link(1.0))
    sent = closed_form(BERT, batch, grid, precision="bf16", checkpoint=True).num_bytes
    seconds = Costs(Training(BERT, batch, precision="bf16", checkpoint_every=1)).as_run(grid, links, 1)
    assert seconds[MOVED, Axis.X] == pytest.approx(sent["all_gather", "x"])
    assert seconds[MOVED, Axis.Y] == pytest.approx(seconds[MOVED, Axis.X])
    assert not any(key == MOVED for key, _ in Costs(Training(GPT, batch)).as_run(grid, links, 1))


def test_a_layer_on_one_rank_sends_nothing_and_latency_comes_on_top_of_its_equations() -> None:
    layer, grid = Layer(4096, 1024, 2048, 2), Grid(2, 2, 4, 2)

    def seconds(grid: Grid, link: Link) -> float:
        return sum(equation(layer, grid, dict.fromkeys(Axis, link)) for equation in EQUATIONS)

    papers = Link(1e9)
    assert seconds(Grid(), papers) == 0
    steps = 3 + 3 + 2 + 2 + 2
    assert seconds(grid, Link(1e9, step_s=1e-3)) == pytest.approx(seconds(grid, papers) + steps * 1e-3)
    assert seconds(grid, Link(1e9, half_bytes=1e6, fading=0.1)) > seconds(grid, papers)


def test_as_run_in_one_go_with_nothing_recomputed_is_what_the_equations_say() -> None:
    costs = Costs(Training(GPT, Batch(16), precision="bf16"))
    grid = Grid(2, 2, 2, 2)
    links = papers_links(FRONTIER)(grid)
    assert costs.as_run(grid, links, 4) == pytest.approx(costs.equations(grid, links))


sizes = st.sampled_from([1, 2, 3, 4, 6, 8])


@given(x=sizes, y=sizes, z=sizes, data=sizes, n=st.integers(1, 99), k=st.integers(1, 99), m=st.integers(1, 99))
def test_a_transposed_layer_costs_what_the_layer_does_where_x_and_y_change_places(
    x: int, y: int, z: int, data: int, n: int, k: int, m: int
) -> None:
    links = dict.fromkeys(Axis, Link(3.0))
    for equation in EQUATIONS:
        normal = equation(Layer(m, k, n, 2), Grid(x, y, z, data), links)
        assert normal == pytest.approx(
            equation(Layer(m, k, n, 2, SPLITTING_FEATURES[::-1]), Grid(y, x, z, data), links)
        )


@given(z=sizes, data=sizes)
def test_z_and_data_are_interchangeable_where_they_share_a_bandwidth(z: int, data: int) -> None:
    costs, links = Costs(Training(GPT, Batch(48 * 48))), papers_links(agnostic())
    one, other = Grid(2, 2, z, data), Grid(2, 2, 1, z * data)
    total = [sum(costs.equations(grid, links(grid)).values()) for grid in (one, other)]
    assert total[0] == pytest.approx(total[1])


def _candidate(grid: Grid, equations: float, as_run: float = 1.0) -> Candidate:
    spent: list[Mapping[tuple[str, Axis], float]] = [{("all_gather_z", Axis.Z): s} for s in (equations, as_run)]
    return Candidate(grid, Training(GPT, Batch(16, 1)), NOTHING, *spent)


@given(st.permutations(range(7)))
def test_ties_go_to_what_clearly_costs_less_as_run_then_to_more_data_then_larger_x_whatever_came_first(
    order: list[int],
) -> None:
    noise = 1 + 1e-14
    best_first = [
        _candidate(Grid(1, 1, 8, 1), 1.0),
        _candidate(Grid(1, 1, 4, 2), 2.0 * noise, as_run=0.5),
        _candidate(Grid(1, 2, 1, 4), 2.0, as_run=1.005),
        _candidate(Grid(2, 1, 2, 2), 2.0 * noise),
        _candidate(Grid(1, 2, 2, 2), 2.0),
        _candidate(Grid(1, 1, 2, 4), 2.0 * noise, as_run=3.0),
        _candidate(Grid(4, 2, 1, 1), 2.0 * (1 + 1e-6)),
    ]
    assert list(ordered([best_first[at] for at in order], 8)) == best_first


def test_ordered_as_run_what_is_repeated_decides() -> None:
    cheap, dear = _candidate(Grid(2), 1.0, as_run=5.0), _candidate(Grid(data=2), 2.0, as_run=4.0)
    assert ordered([cheap, dear], 2) == (cheap, dear)
    assert ordered([cheap, dear], 2, as_run=True) == (dear, cheap)


def test_grids_that_lay_planes_across_nodes_come_last() -> None:
    grids = [c.grid for c in _ranked(_workload("gpt-60b", 96), 24, FRONTIER).candidates]
    across = [not fits_nodes(grid, 8) for grid in grids]
    assert any(across)
    assert across == sorted(across)


def test_placement_changes_the_order() -> None:
    """Rank gpt-20b on 32 devices of Perlmutter (par4d V-C): the agnostic order knows no node."""
    workload = _workload("gpt-20b", 512, 40e9)
    aware, blind = (_ranked(workload, 32, b).candidates for b in (PERLMUTTER, agnostic(100e9)))
    assert {c.grid for c in aware} == {c.grid for c in blind}
    assert [c.grid for c in aware] != [c.grid for c in blind]


def test_only_what_fits_is_ranked_in_the_largest_micro_batch_that_fits() -> None:
    workload = _workload("gpt-5b", 64, 40e9)
    ranking = _ranked(workload, 8, FRONTIER)
    assert 0 < len(ranking.candidates) < ranking.valid
    for c in ranking.candidates:
        assert c.needs.total <= USABLE * 40e9
        share = 64 // c.grid.batch_split
        larger = [m for m in range(c.micro + 1, share + 1) if share % m == 0]
        assert all(workload.needs(c.grid, m).total > workload.usable for m in larger)
    assert any(c.micro < 64 // c.grid.batch_split for c in ranking.candidates)
    assert {c.micro for c in _ranked(_workload("gpt-5b", 64, 40e9, micro=2), 8, FRONTIER).candidates} == {2}
    whole = _ranked(_workload("gpt-5b", 64), 8, FRONTIER)
    assert len(whole.candidates) == whole.valid
    assert all(c.micro == 64 // c.grid.batch_split for c in whole.candidates)


@pytest.mark.parametrize(("model", "memory"), [("gpt3-1.3b", 3e9), ("gpt3-1.3b", 0.5e9), ("gpt-60b", 64e9)])
def test_the_fewest_devices_are_the_fewest_on_which_some_grid_fits(model: str, memory: float) -> None:
    """In whole nodes of four, or on one. Eighteen would do for gpt-60b, which are no whole nodes."""
    workload, node = _workload(model, 48, memory), 4
    space = SearchSpace(workload.training.model, 48, exact=True)

    def fits(ranks: int) -> bool:
        return any(workload.needs(grid, 1).total <= workload.usable for grid in space.grids(ranks, 48))

    counts = [1, 2, 3, *range(4, 200, 4)]
    found = fewest(workload, space, node)
    assert found is not None
    assert found.size == next(n for n in counts if fits(n))
    assert workload.needs(found, 1).total <= workload.usable
    assert found in space.grids(found.size, 48)


def test_what_fits_nowhere_is_told_with_what_it_lacks() -> None:
    workload = _workload("gpt-5b", 8, 20e9)
    space = SearchSpace(workload.training.model, 8, exact=True)
    said = str(refusal(workload, space, space.grids(4, 8), 8))
    lightest = min(workload.needs(grid, 1).total for grid in space.grids(4, 8))
    assert f"a rank needs {lightest / 1e9:.4g} GB at least" in said
    assert re.search(rf" {lightest / 1e9 - 14:.3g} GB more .*14 GB", said)
    assert re.search(r"whole nodes,\D+8 \(grid ", said)
    tiny = replace(workload, device_memory=1e3)
    assert str(refusal(tiny, space, space.grids(4, 8), 8)).endswith(" no number of devices.")
    assert isinstance(refusal(tiny, space, space.grids(4, 8), 8), UsageError)


def test_a_run_finds_latency_and_no_faster_ring_between_nodes_than_within() -> None:
    links = run_links(FRONTIER)(Grid(1, 1, 16, 2))
    assert (links[Axis.Z].bytes_per_s, links[Axis.DATA].bytes_per_s) == (50e9, 12.5e9)
    assert 0 < links[Axis.X].step_s < links[Axis.Z].step_s
    best = _ranked(_workload("gpt-80b", 8192, 64e9), 8192, FRONTIER).candidates[0]
    grids = SearchSpace(lookup("gpt-80b"), 8192, exact=True).grids(8192, 8192)
    ranked = rank(_workload("gpt-80b", 8192, 64e9), grids, FRONTIER).candidates
    as_run = ordered(ranked, 8, as_run=True)[0]
    assert as_run.as_run_s < best.as_run_s
    assert best.equations_s < as_run.equations_s
    assert as_run.grid.z < best.grid.z
