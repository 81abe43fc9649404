"""Programs of trainers: their passes over memory, fused kernels of compiled rows, and the parts of predicted steps."""

from dataclasses import astuple, replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import yaml
from dry_plans import dry_plan
from torch import Tensor, nn

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.layers.attention import Attention
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.llama.config import LlamaConfig
from engine.published import Number
from engine.simulator.events import Sweep
from engine.tracing.step import Compiled, trace
from engine.tracing.watch import Log, Operators, fused_attention
from engine.validation.programs import FILE, RankStep, program_of, programs
from engine.validation.trainer_rows import measured_s, rows, rules
from engine.validation.trainers import TracedRow, machine_of, main, trace_row


def published(system: str, model: str, devices: int, sequence: int, *, compiled: bool = False) -> Number:
    asked = (system, model, devices, sequence, compiled)
    (found,) = (one for one in rows() if (one.system, one.model, one.devices, one.sequence, one.compiled) == asked)
    return found


def test_every_predicted_row_has_a_program_and_another_framework_is_refused() -> None:
    assert {program_of(one).compiled for one in rows() if one.compiled} == {"blocks"}
    assert {one.framework for one in rows()} == set(programs())
    other = rows()[0].model_copy(update={"framework": "another"})
    with pytest.raises(UsageError, match="another"):
        program_of(other)


def test_a_pass_without_its_source_is_refused(tmp_path: Path) -> None:
    data = yaml.safe_load(FILE.read_text())
    data["torchtitan"]["weights"][0]["source"] = ""
    (tmp_path / "programs.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(UsageError, match="source"):
        programs(tmp_path / "programs.yaml")


@pytest.mark.parametrize(("ranks", "micro_batches"), [(8, 4), (64, 1)])
def test_passes_are_counted_over_what_each_is_over(ranks: int, micro_batches: int) -> None:
    step = RankStep(64_000, ranks, micro_batches, features=1000, recomputed=0.5, compiled=True)
    foundry, titan = (programs()[name] for name in ("llm-foundry", "torchtitan"))
    shard = 60 * 64_000 // ranks
    assert foundry.beside(step).num_bytes == 12 * 64_000 * micro_batches + shard + 22 * 1000
    assert titan.beside(step).num_bytes == 8 * 64_000 * micro_batches + shard + 14 * 1000
    single = titan.beside(replace(step, compiled=False)).num_bytes - titan.beside(step).num_bytes
    assert single == 1000 * (1.5 * 23 + 47.5)


@cache
def traced(model: str, devices: int, sequence: int, *, compiled: bool) -> TracedRow:
    return trace_row(published("H100 96GB", model, devices, sequence, compiled=compiled), rules())


def test_a_row_has_the_passes_of_its_own_micro_batches_and_ranks() -> None:
    parameters, features = lookup("llama-3.1-8b").parameters, 2 * 8192 * 4096 * 32
    beside = traced("Llama-3.1-8B", 8, 8192, compiled=True).beside
    assert beside.num_bytes == pytest.approx(8 * parameters + 60 * parameters / 8 + 14 * features, abs=1)


FEATURES, HEAD, TOKENS = 512, 64, 4096
"""Sizes of a block as wide as Llama 3.1 8B's is for its features, for so many tokens that weights cost nothing."""


class TitanNorm(nn.Module):
    """RMSNorm in fp32 by single operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class TitanBlock(nn.Module):
    """Block of Llama with a linear layer for each projection, and keys and values repeated for their queries."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(TitanNorm() for _ in range(2))
        sizes = [(FEATURES, n) for n in (FEATURES, FEATURES // 4, FEATURES // 4, FEATURES)]
        self.q, self.k, self.v, self.out = (nn.Linear(*size, bias=False) for size in sizes)
        wide = 7 * FEATURES // 2
        self.gate, self.up, self.down = (
            nn.Linear(*size, bias=False) for size in ((FEATURES, wide), (FEATURES, wide), (wide, FEATURES))
        )

    def forward(self, x: Tensor, turns: Tensor) -> Tensor:
        normed = self.norms[0](x)
        heads = [linear(normed).unflatten(2, (-1, HEAD)) for linear in (self.q, self.k, self.v)]
        q, k = (self._turn(one, turns) for one in heads[:2])
        k, v = (one.unsqueeze(3).expand(-1, -1, -1, 4, -1).flatten(2, 3) for one in (k, heads[2]))
        x = x + self.out(Attention(causal=True)(*(one.transpose(1, 2) for one in (q, k, v))))
        normed = self.norms[1](x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))

    def _turn(self, x: Tensor, turns: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(3, (-1, 2)))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def count_eager(block: nn.Module, *beside: Tensor) -> list[float]:
    """Bytes that a block's forward and backward move by single operators, for each token and feature."""
    log = Log()
    x, dx = (torch.empty(1, TOKENS, FEATURES, dtype=torch.bfloat16, device="meta") for _ in range(2))
    with Operators(log), fused_attention(log):
        out = block(x.requires_grad_(), *beside)
        forward = log.segment(1)
        log.start()
        out.backward(dx)
    passes = ([event for event in part.events if isinstance(event, Sweep)] for part in (forward, log.segment(1)))
    return [sum(event.num_bytes for event in some) / (TOKENS * FEATURES) for some in passes]


def count_traced(network: Architecture, together: int) -> float:
    """Bytes that a block of the engine moves for each token and feature, without what its weights take."""

    def swept(layers: int, rows: int) -> int:
        model = replace(network, layers=layers)  # type: ignore[type-var]
        plan = dry_plan(model, Grid.parse("1x1x2x1"), Batch(2 * rows, rows), checkpoint=together)
        return sum(event.num_bytes for event in trace(*plan) if isinstance(event, Sweep))

    small, large = (swept(3, rows) - swept(2, rows) for rows in (1, 2))
    return (large - small) / (TOKENS * FEATURES)


def test_the_operators_of_torchtitans_blocks_are_those_traced_and_the_ones_beside() -> None:
    with torch.device("meta"):
        block = TitanBlock().to(torch.bfloat16)
        turns = torch.empty(TOKENS, 1, HEAD // 2, dtype=torch.complex64)
    forward, backward = count_eager(block, turns)
    heads = FEATURES // HEAD
    network = LlamaConfig("some", 2, FEATURES, heads, heads // 4, 7 * FEATURES // 2, 512, TOKENS)
    both, again = (count_traced(network, together) for together in (0, 1))
    program = programs()["torchtitan"]
    more = [sum(one.bytes for one in passes if one.unfused) for passes in (program.forward, program.backward)]
    assert forward - (again - both) == pytest.approx(more[0], abs=1)
    assert forward + backward - both == pytest.approx(sum(more), abs=4), "few features have longer tables of turns"


@cache
def swept(compiled: Compiled, layers: int) -> tuple[int, int]:
    """Bytes that kernels of a step move which only read and write, and the flops of the others."""
    network = replace(lookup("llama-pair"), layers=layers)  # type: ignore[type-var]
    found = trace(*dry_plan(network, Grid.parse("1x1x2x1"), Batch(64, 32), checkpoint=False), compiled=compiled)
    return sum(event.num_bytes for event in found if isinstance(event, Sweep)), found.flops


def test_fused_blocks_move_less_and_leave_the_loss_and_the_optimizer_as_they_are() -> None:
    by_layer, around = {}, {}
    for compiled in ("nothing", "blocks", "all"):
        (two, _), (three, flops) = (swept(compiled, layers) for layers in (2, 3))
        assert flops == swept("nothing", 3)[1]
        by_layer[compiled], around[compiled] = three - two, two - 2 * (three - two)
    assert by_layer["all"] == pytest.approx(by_layer["blocks"], rel=0.1)
    assert by_layer["blocks"] < 0.4 * by_layer["nothing"]
    assert around["blocks"] > 0.85 * around["nothing"], "the last norm is fused, too"
    assert around["all"] < 0.5 * around["blocks"]


def test_a_compiled_row_is_close_with_fused_kernels_alone() -> None:
    fused = traced("Llama-3.1-8B", 8, 8192, compiled=True)
    machine, limit = machine_of(fused.number), rules().limits.median
    unfused = replace(traced("Llama-3.1-8B", 8, 8192, compiled=False), number=fused.number)
    assert fused.on(machine) == pytest.approx(measured_s(fused.number), rel=limit)
    assert unfused.on(machine) > (1 + limit) * measured_s(fused.number), "a planted trace of single operators"


@pytest.mark.parametrize("compiled", [False, True])
def test_parts_add_up_to_the_predicted_time(compiled: bool) -> None:
    row = traced("Llama-3.1-8B", 8, 8192, compiled=compiled)
    machine = machine_of(row.number)
    parts = row.parts(machine)
    assert sum(astuple(parts)) == pytest.approx(row.on(machine))
    assert min(astuple(parts)) > 0
    assert parts.beside == pytest.approx(machine.compute_s(row.beside))
    slower = row.parts(machine.reaching({"memory": machine.sweeps / 2}))
    assert slower.memory == pytest.approx(2 * parts.memory, rel=0.01)
    assert slower.products == parts.products


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(UsageError, match="--partly"):
        main(["--partly"])
