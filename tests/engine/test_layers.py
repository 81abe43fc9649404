"""Single layers where the whole-model parity would not look closely enough."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_parity import SMALL
from test_prefetch import TILE, Watched
from test_reduction import Model as OneRank
from torch import nn
from training import Case, grid_id, start
from virtual_ranks import run_ranks

from engine.batch import CHUNK_BYTES, chunks
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Axis, Grid
from engine.layers import embedding
from engine.layers.counter_random import BatchRows
from engine.layers.dropout import keep_mask
from engine.layers.elementwise import FusedRotate, FusedSwiGLU, Rotate, SwiGLU
from engine.layers.embedding import TokenEmbedding
from engine.layers.linear import Linear, all_reduce
from engine.layers.loss import CrossEntropy
from engine.layers.norm import LayerNorm, RMSNorm
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.precision import Precision


def _parts(tensor: torch.Tensor, comm: Comm, coordinate: int, size: int) -> torch.Tensor:
    return tensor.chunk(size, dim=-1)[coordinate].contiguous()


def _norm(kind: type[nn.Module], comm: Comm, weight: nn.Parameter, precision: str) -> nn.Module:
    schedule = WeightSchedule(comm, [], [weight], Precision.parse(precision), Overlap())
    if kind is LayerNorm:
        return LayerNorm(comm, Axis.Y, schedule, weight, None, 1e-5)
    return RMSNorm(comm, Axis.Y, schedule, weight, 1e-5)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_split_layer_norm_keeps_fp32_digits_far_from_zero(ranks: int) -> None:
    """Mean 100, deviation 1: the sum of squares would lose four digits of seven."""
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) + 100
    exact = F.layer_norm(x.double(), (256,))

    def split(comm: Comm) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(256 // ranks))
        return _norm(LayerNorm, comm, weight, "fp32")(_parts(x, comm, comm.coords.y, ranks)).detach()

    ours = torch.cat(run_ranks(Grid(y=ranks), split), dim=1)
    native = (F.layer_norm(x, (256,)) - exact).abs().max()
    assert (ours - exact).abs().max() < 4 * native + 1e-6


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("norm", [LayerNorm, RMSNorm])
def test_a_norm_of_bf16_rounds_its_statistics_no_more_than_its_output(norm: type[nn.Module], ranks: int) -> None:
    x = (torch.randn(64, 96, generator=torch.Generator().manual_seed(0)) + 1).bfloat16()
    exact = F.layer_norm(x.double(), (96,)) if norm is LayerNorm else F.rms_norm(x.double(), (96,), eps=1e-5)

    def split(comm: Comm) -> torch.Tensor:
        own = nn.Parameter(torch.ones(96 // ranks))
        return _norm(norm, comm, own, "bf16")(_parts(x, comm, comm.coords.y, ranks)).detach()

    ours = torch.cat(run_ranks(Grid(y=ranks), split), dim=1)
    assert ours.dtype == torch.bfloat16
    assert ((ours - exact).abs() <= 2**-8 * exact.abs() + 1e-6).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("plain", "fused"), [(Rotate(), FusedRotate()), (SwiGLU(), FusedSwiGLU())], ids=["rotate", "swiglu"]
)
def test_an_element_wise_part_in_fewer_passes_is_the_plain_one(
    plain: nn.Module, fused: nn.Module, dtype: torch.dtype
) -> None:
    """Or nearer to the true one, on a part of the features of a projection, as attention takes its queries."""
    generator = torch.Generator().manual_seed(5)
    whole = torch.randn(2, 7, 24, dtype=torch.float64, generator=generator).to(dtype)
    angles = torch.randn(7, 4, dtype=torch.float64, generator=generator)
    turn = torch.stack([angles.cos(), angles.sin()])

    def passes(layer: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().requires_grad_()
        wide = torch.promote_types(x.dtype, torch.float32)
        y = layer(
            x.unflatten(2, (3, 8)).transpose(1, 2)[:, :2], *([turn.to(wide)] if isinstance(layer, Rotate) else [])
        )
        assert y.dtype == x.dtype
        (dx,) = torch.autograd.grad(y, x, torch.linspace(-2, 3, y.numel()).view(y.shape).bfloat16().to(y.dtype))
        return y.detach(), dx

    for exact, theirs, ours in zip(
        passes(plain, whole.double()), passes(plain, whole), passes(fused, whole), strict=True
    ):
        assert (ours - exact).abs().max() <= (theirs - exact).abs().max() + 1e-12


@pytest.mark.parametrize("vocabulary", [50257, 50304])
def test_logits_that_are_worked_on_at_once_begin_where_compiled_code_needs_no_copy(vocabulary: int) -> None:
    """At 16 bytes, bf16 and the single numbers of their rows alike."""
    starts = [rows.start for rows in chunks(8192, 4 * vocabulary, "cuda")]
    assert len(starts) > 4
    assert {start * num_bytes % 16 for start in starts for num_bytes in (2 * vocabulary, 4)} == {0}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("scale", [1.0, 1e4])
@pytest.mark.parametrize("at_once", [2, 6], ids="{}-rows".format)
def test_the_cross_entropy_is_pytorchs_even_if_logits_overflow_an_exponential(
    at_once: int, scale: float, ranks: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CHUNK_BYTES, "cpu", at_once * 8 // ranks * max(4, dtype.itemsize))
    logits = (torch.randn(6, 8, generator=torch.Generator().manual_seed(3)) * scale).to(dtype)
    targets = torch.tensor([0, 3, 4, 7, 2, 5])

    def split(comm: Comm) -> tuple[float, torch.Tensor]:
        own = _parts(logits, comm, comm.coords.x, ranks).clone().requires_grad_()
        with torch.no_grad():
            CrossEntropy(comm, Axis.X, 8)(own, targets)
        assert torch.equal(own, _parts(logits, comm, comm.coords.x, ranks)), "where no gradient is wanted"
        loss = CrossEntropy(comm, Axis.X, 8)(own * 1, targets, 5.0)
        (loss / 7).backward()
        assert own.grad is not None
        return loss.item(), own.grad

    results = run_ranks(Grid(x=ranks), split)
    whole = logits.clone().requires_grad_()
    loss = F.cross_entropy(whole.to(torch.promote_types(dtype, torch.float32)), targets, reduction="sum") / 5
    (loss / 7).backward()
    assert [value for value, _ in results] == pytest.approx([loss.item()] * ranks)
    torch.testing.assert_close(torch.cat([g for _, g in results], dim=1), whole.grad)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_rows_that_are_ignored_have_no_loss_and_no_gradient(ranks: int) -> None:
    logits, targets = (
        torch.randn(6, 8, generator=torch.Generator().manual_seed(3)),
        torch.tensor([0, -100, 4, 7, -100, 5]),
    )

    def split(comm: Comm) -> tuple[float, float, torch.Tensor]:
        own, criterion = (
            _parts(logits, comm, comm.coords.x, ranks).requires_grad_(),
            CrossEntropy(comm, Axis.X, 8, ignores=True),
        )
        with torch.no_grad():
            evaluated = criterion(own, targets).item()
        loss = criterion(own * 1, targets)
        loss.backward()
        assert own.grad is not None
        return evaluated, loss.item(), own.grad

    results = run_ranks(Grid(x=ranks), split)
    whole = logits.clone().requires_grad_()
    loss = F.cross_entropy(whole, targets, reduction="sum")
    loss.backward()
    assert [value for *values, _ in results for value in values] == pytest.approx([loss.item()] * 2 * ranks)
    torch.testing.assert_close(torch.cat([g for *_, g in results], dim=1), whole.grad)


@pytest.mark.parametrize("columns", [7, 6, 5])
def test_logits_behind_the_last_column_have_no_part_in_the_loss(columns: int) -> None:
    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))
    targets = torch.tensor([0, 3, 4, 1, 2, -100])

    def split(comm: Comm) -> tuple[float, torch.Tensor]:
        own = _parts(logits, comm, comm.coords.x, 4).requires_grad_()
        loss = CrossEntropy(comm, Axis.X, columns, ignores=True)(own * 1, targets)
        loss.backward()
        assert own.grad is not None
        return loss.item(), own.grad

    results = run_ranks(Grid(x=4), split)
    whole = logits.clone().requires_grad_()
    loss = F.cross_entropy(whole[:, :columns], targets, reduction="sum")
    loss.backward()
    assert [value for value, _ in results] == pytest.approx([loss.item()] * 4)
    torch.testing.assert_close(torch.cat([g for _, g in results], dim=1), whole.grad)


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_small_loss_of_large_logits_keeps_its_digits(ranks: int) -> None:
    logits = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)) + 1e3
    targets = torch.tensor([0, 3, 4, 7, 2, 5])
    logits[torch.arange(6), targets] += 9
    told = run_ranks(
        Grid(x=ranks),
        lambda comm: CrossEntropy(comm, Axis.X, 8)(_parts(logits, comm, comm.coords.x, ranks), targets).item(),
    )
    assert told == pytest.approx([F.cross_entropy(logits.double(), targets, reduction="sum").item()] * ranks, rel=2e-4)


def test_an_all_reduce_of_what_its_producer_needs_again_is_refused() -> None:
    """A sum in place; a back end that tells autograd nothing of that would lead to wrong gradients."""
    with fake_group(Grid(x=2), 0):
        weight = torch.ones(3, requires_grad=True)
        total = all_reduce(weight.tanh(), Comm(Grid(x=2)), Axis.X)
        with pytest.raises(RuntimeError, match="inplace"):
            total.sum().backward()


def test_a_dropout_mask_drops_the_asked_part_and_differs_by_all_it_depends_on() -> None:
    def mask(seed: int = 1, step: int = 2, site: int = 3, first: int = 0) -> torch.Tensor:
        rows = BatchRows(seed, step, torch.arange(first, first + 16))
        return keep_mask(rows, site, rows.places(32), range(64), 0.25)

    base = mask()
    assert base.double().mean().item() == pytest.approx(0.75, abs=0.01)
    assert base.double().mean((0, 1)).std() < 0.05
    assert base.double().mean((0, 2)).std() < 0.05
    for other in (mask(seed=2), mask(step=3), mask(site=4), mask(first=16), mask(seed=1 + (1 << 32))):
        assert (other == base).double().mean().item() == pytest.approx(0.75**2 + 0.25**2, abs=0.02)
    rows = BatchRows(1, 2, torch.arange(8, 12))
    part = keep_mask(rows, 3, rows.places(32), range(16, 48), 0.25)
    assert torch.equal(part, base[8:12, :, 16:48])


def test_evaluation_without_gradients_equals_the_serial_model_and_drops_nothing() -> None:
    case = Case(replace(SMALL, dropout=0.5))
    tokens = torch.arange(2 * SMALL.sequence).view(2, -1)

    def evaluate(comm: Comm) -> torch.Tensor:
        model = start(case, comm).eval()
        with torch.no_grad():
            return model(tokens)

    serial = start(case, Comm(Grid())).eval()(tokens).detach()
    ours = run_ranks(Grid(2, 2, 2, 1), evaluate)
    assert torch.allclose(torch.cat(ours[:2], dim=2), serial, rtol=1e-10)


@pytest.mark.parametrize("grid", [Grid(), Grid(z=2)], ids=grid_id)
def test_a_token_that_comes_a_thousand_times_adds_up_exactly(grid: Grid) -> None:
    """1025 is no bf16 number, and a kernel that adds one by one in bf16 would not pass 256."""

    def train(comm: Comm) -> None:
        model = OneRank(comm, Overlap(), Precision.parse("bf16", "fp32"))
        layer = TokenEmbedding(comm, model.schedule, model.weights[0])
        for micro_batches in (1, 3):
            model.start_step()
            for _ in range(micro_batches):
                layer(torch.ones(5, 205, dtype=torch.int64)).sum().backward()
            model.schedule.finish_step()
            shard = layer.weight.grad
            assert shard is not None
            tile = torch.tensor([0.0] * 3 + [1025.0 * micro_batches * grid.z] * 3)
            assert torch.equal(shard, tile.chunk(grid.z)[comm.coords.z])

    run_ranks(grid, train, of=Watched)


def test_zeros_for_the_tokens_of_other_ranks_meet_in_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU adds those of one row one after the other: half of all tokens would take it milliseconds."""
    rows_of: list[torch.Tensor] = []
    monkeypatch.setattr(embedding, "add_rows", lambda out, rows, values: rows_of.append(rows))
    ranks = 4

    def train(comm: Comm) -> None:
        model = OneRank(comm, Overlap(), Precision.parse("fp32"))
        tokens = torch.arange(ranks * TILE[0]).unsqueeze(0)
        model.start_step()
        TokenEmbedding(comm, model.schedule, model.weights[0])(tokens).sum().backward()
        model.schedule.finish_step()

    run_ranks(Grid(x=ranks), train, of=Watched)
    assert [rows.bincount().tolist() for rows in rows_of] == [[ranks] * TILE[0]] * ranks


@pytest.mark.parametrize("overlap", [Overlap(), Overlap(oar=True)], ids=str)
def test_a_layer_whose_input_needs_no_gradient_sends_none(overlap: Overlap) -> None:
    def work(comm: Comm) -> int:
        model = OneRank(comm, overlap, Precision.parse("fp64"))
        layer = Linear(comm, model.schedule, model.weights[0], None)
        model.start_step()
        layer(torch.ones(5, TILE[1], dtype=torch.float64)).sum().backward()
        model.schedule.finish_step()
        assert layer.weight.grad is not None
        assert layer.weight.grad.eq(5).all()
        return model.comm.all.total()

    assert run_ranks(Grid(2, 1, 1, 1), work, of=Watched)[0] == 0
