"""Layers multiply in any mode, with weights stored either way, as the serial model does; and which mode is chosen."""

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_parity import ALL_AXES, CASES, TOLERANCE, serial
from training import Case, grid_id, train_parallel, worst_error
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers import matmul
from engine.layers.matmul import PLAIN, Kernels, Mode, Role, own_mode
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.precision import Precision
from engine.result import provenance
from engine.result.schema.tuning import TunedShape, Tuning
from engine.training_record import Training
from engine.tuning import timing, tune
from engine.tuning.cache import Table, Tables, cache_file, load, save
from engine.tuning.shapes import Products, Shape, products
from engine.tuning.timing import GemmVariant, gemm_variants, rate, time_shape
from engine.tuning.tune import choose, uses, wins

CPU = torch.device("cpu")
LAID = (None, Mode.NN, Mode.NT, Mode.TN)
WAYS = [Kernels(stored, *modes) for stored in (False, True) for modes in itertools.product(LAID, repeat=3)]
OTHERS = ("rows", "columns", "mixed")
MACHINE = {"device": "one", "torch": "2"}
RATE = 84e9
FP32 = Precision.parse("fp32")
NEW = Table(machine=MACHINE, flops_per_s=RATE)
SHAPE = TunedShape(m=8, n=6, k=4, dtype="fp32", layers=1, layer="a", forwards=1, movable=True)


def of_rank(model: Architecture, grid: Grid, sequences: int, *, recompute: bool) -> list[Products]:
    batch = Batch(sequences * grid.batch_split)
    return products(Training(model, batch, checkpoint_every=int(recompute)), grid, torch.device("cpu"))


def tuned(case: Case, which: str) -> Case:
    """The case with kernels that differ from layer to layer; its gradients must not."""
    found = of_rank(case.config, Grid(), 1, recompute=case.checkpoint)
    drawing = random.Random(which)
    ways = [way for way in WAYS if which == "mixed" or way.column_major == (which == "columns")]
    kernels = tuple((name, drawing.choice(ways)) for of in found for name in of.layers)
    return replace(case, kernels=kernels)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("grid", [Grid(), *ALL_AXES], ids=grid_id)
@pytest.mark.parametrize("which", OTHERS)
@pytest.mark.parametrize("name", ["everything", "llama-plain"])
def test_in_any_mode_every_grid_trains_like_the_serial_model(name: str, which: str, grid: Grid) -> None:
    case = CASES[name]
    ours = run_ranks(grid, lambda comm: train_parallel(tuned(case, which), comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_each_product_is_the_same_in_every_mode(way: Kernels) -> None:
    generator = torch.Generator().manual_seed(1)
    sizes = ((5, 4), (5, 3), (3, 4), (3, 4))
    I_, dO, W, dW = (torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes)
    stored = W.t().contiguous().t() if way.column_major else W
    assert stored.is_contiguous() is not way.column_major
    torch.testing.assert_close(matmul.forward(I_, stored, None, way.forward), I_ @ W.t())
    bias = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(matmul.forward(I_, stored, bias, way.forward), I_ @ W.t() + bias)
    torch.testing.assert_close(matmul.input_gradient(dO, stored, way.input_gradient), dO @ W)
    out = (dW.t().contiguous().t() if way.column_major else dW.clone()).fill_(torch.nan)
    matmul.weight_gradient(out, dO, I_, add=False, mode=way.weight_gradient)
    torch.testing.assert_close(out, dO.t() @ I_)
    matmul.weight_gradient(out, dO, I_, add=True, mode=way.weight_gradient)
    torch.testing.assert_close(out, 2 * dO.t() @ I_)


@pytest.mark.skipif(not matmul.has_onednn(torch.float32, CPU), reason="PyTorch has no oneDNN here")
@pytest.mark.parametrize("stored", [False, True])
def test_onednn_makes_the_products_that_add_to_nothing_in_fp32_on_processors(stored: bool) -> None:
    ways = gemm_variants(torch.float32, CPU, movable=True)
    assert {way.role for way in ways if way.mode is Mode.ONEDNN} == {Role.FORWARD, Role.INPUT_GRADIENT}
    assert len(ways) == len(gemm_variants(torch.float64, CPU, movable=True)) + 4
    assert Mode.ONEDNN not in matmul.list_modes(Role.FORWARD, torch.float32, torch.device("cuda"))
    I_, dO, W = (torch.randn(size) for size in ((65, 48), (65, 31), (31, 48)))
    weight, bias = W.t().contiguous().t() if stored else W, torch.randn(31)
    for given in (None, bias):
        made = matmul.forward(I_, weight, given, Mode.ONEDNN)
        torch.testing.assert_close(
            made, F.linear(I_.double(), W.double(), None if given is None else given.double()).float()
        )
    torch.testing.assert_close(matmul.input_gradient(dO, weight, Mode.ONEDNN), (dO.double() @ W.double()).float())


@pytest.mark.parametrize("stored", [False, True])
def test_the_own_mode_of_a_product_copies_nothing(stored: bool) -> None:
    shape = Shape(7, 5, 3)
    for way in gemm_variants(torch.float64, CPU, movable=True):
        if way.column_major == stored:
            assert (way.copied(shape) == 0) == way.own == (way.mode is own_mode(way.role, column_major=stored))
    forward = {
        way.mode: way.copied(shape)
        for way in gemm_variants(torch.float64, CPU, movable=False)
        if way.role is Role.FORWARD
    }
    assert forward == {Mode.NN: 5 * 3, Mode.NT: 0, Mode.TN: 7 * 3 + 5 * 3}


def test_the_products_of_a_rank_are_those_of_its_tiles() -> None:
    model = lookup("llama-3.1-8b")
    found = {of.layers[0]: of for of in of_rank(model, Grid(2, 2, 2, 4), 3, recompute=True)}
    down = found["blocks.0.feed_forward.down"]
    assert down.shape == Shape(3 * model.sequence, 4096 // 2, 14336 // 2)
    assert (down.forwards, down.movable, len(down.layers)) == (2, True, 32)
    assert (found["head"].forwards, found["head"].shape.n) == (1, model.vocabulary // 2)
    tied = replace(CASES["everything"].config, tied=True)
    (head,) = [of for of in of_rank(tied, Grid(), 1, recompute=False) if "head" in of.layers]
    assert not head.movable, "an embedding looks rows up in it"


def of_times(**faster: float) -> dict[GemmVariant, list[float]]:
    """Every way takes 1 s and some noise, except those named, such as forward_rows_NN."""
    drawing = random.Random(3)
    found = {}
    for way in gemm_variants(torch.float64, CPU, movable=True):
        name = f"{way.role}_{'columns' if way.column_major else 'rows'}_{way.mode}"
        found[way] = [faster.get(name, 1.0) * drawing.uniform(0.998, 1.002) for _ in range(7)]
    return found


def test_the_fastest_mode_wins_only_by_more_than_the_noise() -> None:
    assert choose(of_times(), forwards=1) == PLAIN
    assert choose(of_times(forward_rows_NN=0.985), forwards=1) == PLAIN
    assert choose(of_times(forward_rows_NN=0.9), forwards=1) == Kernels(forward=Mode.NN)
    both = of_times(weight_gradient_rows_NN=0.8, weight_gradient_rows_NT=0.6)
    assert choose(both, forwards=1) == Kernels(weight_gradient=Mode.NT)
    assert wins([0.5] * 6 + [1.2], [1.0] * 7)
    assert not wins([0.5] * 5 + [1.2] * 2, [1.0] * 7), "noise reaches beyond it"


def test_of_a_u_net_the_products_are_those_of_attention_and_time_steps() -> None:
    """On images of 8 x 8 pixels of 128 channels, with a middle of as many; convolutions are none."""
    found = of_rank(lookup("unet-test"), Grid(x=2, y=2), 3, recompute=True)
    pixels, embedding = 3 * 8 * 8, 256
    shapes = {of.shape for of in found}
    assert Shape(pixels, 3 * 128 // 2, 128 // 2) in shapes
    assert Shape(3, 2 * 64 // 2, embedding // 2) in shapes
    names = [name for of in found for name in of.layers]
    assert {name.rsplit(".", 1)[-1] for name in names} == {"qkv", "out", "fc1", "fc2", "embedding"}
    assert next(of for of in found if "time.fc1" in of.layers).forwards == 1


def test_the_weight_is_stored_as_its_layers_products_together_are_fastest() -> None:
    slow = {f"input_gradient_columns_{mode}": 1.3 for mode in Mode}
    other_way = of_times(forward_columns_NN=0.8, **slow)
    assert choose(other_way, forwards=1) == PLAIN
    assert choose(other_way, forwards=2) == Kernels(column_major=True), "a recomputed forward counts twice"
    fixed = {way: of for way, of in of_times(forward_columns_NN=0.1).items() if not way.column_major}
    assert choose(fixed, forwards=2) == PLAIN


def test_what_is_chosen_is_one_way_of_each_product() -> None:
    for kernels in WAYS:
        ways = [way for way in gemm_variants(torch.float64, CPU, movable=True) if uses(way, kernels)]
        assert [way.role for way in ways] == list(Role)


def test_every_way_is_timed_and_those_that_memory_forbids_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    of = Products(Shape(16, 8, 4), forwards=1, movable=True)
    comm, ways = Comm(Grid()), gemm_variants(torch.float64, CPU, movable=True)
    times = time_shape(of, FP32, comm, ways, budget_s=0)
    assert set(times) == set(ways)
    assert {len(of) for of in times.values()} == {timing.FEWEST}
    assert all(s > 0 for of in times.values() for s in of)
    room = timing.Operands.held_bytes(of, FP32, movable=True)
    monkeypatch.setattr(timing, "free_bytes", lambda _: room)
    assert all(way.own for way in time_shape(of, FP32, comm, ways, budget_s=0))
    assert " 12 of 18 ways" in caplog.text
    monkeypatch.setattr(timing, "free_bytes", lambda _: room - 1)
    assert time_shape(of, FP32, comm, ways, budget_s=0) == {}
    assert choose({}, forwards=1) == PLAIN


def with_rate(flops_per_s: float) -> Table:
    return NEW.model_copy(update={"flops_per_s": flops_per_s})


def test_a_table_is_found_again_and_grows(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "t.json"
    first = load(file, NEW)
    assert first == NEW
    assert save(file, first, SHAPE).shapes == (SHAPE,)
    again = load(file, NEW)
    assert again.shapes == (SHAPE,)
    newer, other = SHAPE.model_copy(update={"forward": "NN"}), SHAPE.model_copy(update={"m": 9})
    save(file, again, newer)
    save(file, first, other)  # another job, which has not seen these
    assert set(load(file, NEW).shapes) == {newer, other}


def test_machines_that_differ_only_in_how_fast_they_multiply_share_no_table(tmp_path: Path) -> None:
    file, slow, fast = tmp_path / "t.json", with_rate(84e9), with_rate(235e9)
    other = SHAPE.model_copy(update={"forward": "NN"})
    save(file, load(file, slow), SHAPE)
    assert load(file, fast) == fast
    save(file, fast, other)
    assert load(file, slow).shapes == (SHAPE,)
    assert load(file, fast).shapes == (other,)


@pytest.mark.parametrize("noise", [0.9, 1.1])
def test_a_rate_that_is_off_by_noise_finds_the_same_table(noise: float, tmp_path: Path) -> None:
    file = tmp_path / "t.json"
    drawing = random.Random(5)
    for flops_per_s in (84e9, 235e9, *(10 ** drawing.uniform(13, 15) for _ in range(20))):
        own, again = with_rate(flops_per_s), with_rate(noise * flops_per_s)
        file.unlink(missing_ok=True)
        save(file, own, SHAPE)
        assert load(file, again).shapes == (SHAPE,)
        save(file, again, SHAPE)
        assert [table.flops_per_s for table in Tables.model_validate_json(file.read_bytes()).tables] == [flops_per_s]


def test_the_rate_of_this_machine_is_one_that_a_processor_can_have() -> None:
    before = torch.get_num_threads()
    assert 1e7 < rate(torch.device("cpu")) < 1e13
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    "said", [{"device": "EPYC, stepping 1, 4 cores"}, {"device": "EPYC, stepping 2, 4 cores"}], ids=str
)
def test_processors_of_one_model_keep_files_apart(said: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "processor", lambda: said["device"])
    assert tune._machine(Comm(Grid()))["device"] == said["device"]
    assert cache_file(said) != cache_file({"device": "EPYC"})


def written(machine: dict[str, str]) -> str:
    table = Table(machine=machine, flops_per_s=RATE, shapes=(SHAPE,))
    return Tables(tables=(table,)).model_dump_json(by_alias=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (written({"device": "two"}), "of another device"),
        (written(MACHINE)[:-9], "invalid JSON"),
        ('{"schema": "par4d.matmul", "version": 1, "machine": {"device": "one", "torch": "2"}}', "at version"),
        ("", "invalid JSON"),
    ],
    ids=["another device", "cut short", "older", "empty"],
)
def test_a_file_that_is_no_use_is_ignored_with_one_line_and_rebuilt(
    text: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "t.json"
    file.write_text(text)
    table = load(file, NEW)
    assert table == NEW
    assert why in caplog.text
    assert "is made anew" in caplog.text
    assert caplog.text.count("\n") == 1
    save(file, table, SHAPE)
    assert load(file, NEW).shapes == (SHAPE,)


def test_a_table_that_cant_be_kept_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    save(tmp_path / "file" / "t.json", NEW, SHAPE)
    assert "tunes again" in caplog.text


def test_a_user_without_a_home_tunes_without_a_table(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    file = cache_file(MACHINE)
    table = load(file, NEW)
    assert (file, table) == (None, NEW)
    assert save(file, table, SHAPE) == table
    assert caplog.text.count("set XDG_CACHE_HOME") == 1


@pytest.mark.parametrize(("spread", "rounds"), [(0.001, 7), (0.4, 28)])
def test_a_second_timing_goes_on_until_it_tells_or_has_taken_four_times_the_rounds(
    spread: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow way was chosen and is known to be, or noise hides it for good."""
    (of, *_) = of_rank(CASES["llama-plain"].config, Grid(), 1, recompute=False)

    def planted(*_: object, rounds: int | None = None, **__: object) -> dict[GemmVariant, list[float]]:
        high_low = itertools.cycle((1 - spread, 1 + spread))
        other = itertools.cycle((1.0,))
        return {
            way: [0.1 * next(high_low if uses(way, kernels) else other) for _ in range(rounds or 7)]
            for way in gemm_variants(torch.float64, CPU, movable=of.movable)
        }

    kernels = Kernels(forward=Mode.NN)
    monkeypatch.setattr(tune, "time_shape", planted)
    shape = tune._timed(tune._untimed(of, "fp32"), planted(), kernels, PLAIN)
    again = tune.time_again(Tuning(time_s=1.0, timed=1, shapes=(shape,)), [of], "fp32", Comm(Grid())).again
    assert {way.rounds for way in again[0].times} == {rounds}


def test_a_second_timing_that_memory_has_no_room_for_tells_nothing_of_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (of, *_) = of_rank(CASES["llama-plain"].config, Grid(), 1, recompute=False)
    _, tuning = tune.tune([of], "fp32", Comm(Grid()), force=True)
    monkeypatch.setattr(tune, "time_shape", lambda *_, **__: {})
    (again,) = tune.time_again(tuning, [of], "fp32", Comm(Grid())).again
    assert tuning.shapes[0].times
    assert (again.times, again.chosen_s) == ((), None)
