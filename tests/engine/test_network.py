"""A family's table of operations and its serial model describe one network, of whatever shape."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.flops import model_flops
from engine.models.gpt.config import GPTConfig
from engine.models.image_operations import Conv2d, GroupNorm, Resample
from engine.models.llama.config import LlamaConfig
from engine.models.network import Network
from engine.models.operations import Activation, Attention, Linear, Norm, Operation
from engine.models.unet.config import UNetConfig
from engine.models.vit.config import ViTConfig
from engine.parallel.initial import without_values
from engine.parallel.parallelize import parallelize
from engine.precision import Precision

EVEN = st.integers(2, 4).map(lambda half: 2 * half)
HEADS = st.sampled_from([4, 8])
"""On each of two ranks two or more: rows of one head lie as they are needed, and no copy of them is kept."""
BATCH = 2


@st.composite
def drawn(draw: st.DrawFn) -> Architecture:
    """Transformers of all families, of any options that x = 2 and y = 2 divide."""
    heads, size, sequence = draw(HEADS), draw(EVEN), draw(st.integers(3, 9))
    blocks = {"layers": draw(st.integers(1, 3)), "heads": heads, "hidden": heads * size}
    text = {"vocabulary": 2 * draw(st.integers(5, 20)), "sequence": sequence}
    ffn = draw(st.none() | st.integers(20, 40).map(lambda half: 2 * half))
    positions = draw(st.none() | st.integers(sequence, 12))
    flags = st.booleans()
    match draw(st.sampled_from(["gpt", "llama", "bert", "vit"])):
        case "gpt":
            return GPTConfig(
                "drawn",
                **blocks | text,  # type: ignore[arg-type]
                bias=draw(flags),
                tied=draw(flags),
                norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
                ffn=ffn,
                positions=positions,
                rotary=draw(st.none() | st.integers(1, size // 2).map(lambda pairs: 2 * pairs)),
                parallel_residual=draw(flags),
            )
        case "llama":
            group = draw(st.integers(1, 3))
            grouped = blocks | {"heads": group * heads, "hidden": group * heads * size, "kv_heads": heads}
            options = {name: draw(flags) for name in ("tied", "qkv_bias", "qk_norm")}
            shape = grouped | text | options | {"head_features": draw(st.none() | EVEN)}
            return LlamaConfig("drawn", ffn=ffn or 48, **shape)  # type: ignore[arg-type]
        case "bert":
            return BertConfig("drawn", **blocks | text, ffn=ffn, positions=positions)  # type: ignore[arg-type]
        case _:
            patch, classes = draw(EVEN), 2 * draw(st.integers(5, 20))
            image = patch * draw(st.integers(1, 3))
            return ViTConfig("drawn", **blocks, image=image, patch=patch, classes=classes, ffn=ffn)


FAMILIES = drawn()


def batch_of(model: Architecture) -> dict[str, torch.Tensor]:
    """A batch as the task has it of random data."""
    rows = np.arange(BATCH)
    made = model.task.batch(model.task.data.synthetic().read(0, rows), 0, rows)
    return {name: torch.from_numpy(array) for name, array in made.items()}


def layers_and_parameters_agree(model: Architecture) -> None:
    network, serial = model.network(), without_values(model)
    shapes = {name: tuple(parameter.shape) for name, parameter in serial.named_parameters()}
    placed = {name: placement.shape for name, placement in network.placements().items()}
    assert list(placed.items()) == list(shapes.items())
    assert network.parameters == sum(parameter.numel() for parameter in serial.parameters())
    linears = {
        f"{section.prefix(number)}{linear.name}": (linear.n, linear.k, linear.bias)
        for section, number in network.repeats()
        for linear in section.of_kind(Linear)
    }
    modules = {name: module for name, module in serial.named_modules() if isinstance(module, nn.Linear)}
    assert linears == {name: (m.out_features, m.in_features, m.bias is not None) for name, m in modules.items()}


def flops_agree(model: Architecture) -> None:
    serial = without_values(model)
    batch = {name: tensor.to("meta") for name, tensor in batch_of(model).items()}
    with FlopCounterMode(display=False) as counter:
        serial.loss(batch).backward()
    assert counter.get_total_flops() == model_flops(model, BATCH)


def saved_numbers(model: Architecture, grid: Grid) -> int:
    """Numbers of 4 bytes that a forward on a rank keeps for its backward, parameters not among them."""
    with fake_group(grid, rank=0):
        parallel = parallelize(model, Comm(grid), precision=Precision.parse("fp32"), seed=0)
        kept = {parameter.untyped_storage()._cdata: parameter.untyped_storage() for parameter in parallel.parameters()}
        first = len(kept)

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            kept.setdefault(storage._cdata, storage)
            return tensor

        batch = batch_of(model)
        parallel.start_step()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            parallel.loss(batch)
        parallel.abort_step()
    return sum(storage.nbytes() for storage in list(kept.values())[first:]) // 4


def statistics(model: Architecture, grid: Grid) -> int:
    """Numbers of each token that a block's norms and attention keep besides features."""
    block = model.network().blocks[0].section
    of_norms = sum((2 if norm.kind == "layernorm" else 1) * (norm.heads or grid.x) for norm in block.of_kind(Norm))
    return (of_norms + sum(attention.heads for attention in block.of_kind(Attention))) // grid.x


def kept_tensors_agree(model: Architecture, grid: Grid) -> None:
    one, two = (saved_numbers(replace(model, layers=layers), grid) for layers in (1, 2))  # type: ignore[type-var]
    kept = model.network().blocks[0].section.kept(model.sequence)
    features = kept.inner // grid.x + (kept.stream + kept.streams * model.hidden) // grid.y
    assert two - one == BATCH * (features + model.sequence * statistics(model, grid)) + kept.angles


@settings(max_examples=60)
@given(FAMILIES)
def test_layers_and_parameters_are_the_serial_models_on_both_sides_of_the_blocks(model: Architecture) -> None:
    layers_and_parameters_agree(model)
    network = model.network()
    before, after, rest = ([placed.name for placed in some] for some in (network.before, network.after, network.rest))
    assert list(dict.fromkeys(before + after)) == rest
    assert set(before) & set(after) == set(network.ties.values())


@settings(max_examples=20)
@given(FAMILIES)
def test_flops_are_those_that_torch_counts(model: Architecture) -> None:
    flops_agree(model)


@settings(max_examples=60)
@given(FAMILIES, st.sampled_from([Grid(), Grid(x=2), Grid(y=2), Grid(2, 2)]))
def test_a_block_keeps_the_tensors_that_autograd_saves(model: Architecture, grid: Grid) -> None:
    kept_tensors_agree(model, grid)


UNETS = {
    "guided": UNetConfig("guided", 64, (1, 2, 2), 1, (8,), image=16),
    "improved": UNetConfig("improved", 64, (1, 2), 2, (8,), image=16, resampling="convolution", level_heads=2),
    "shifted": UNetConfig("shifted", 64, (2, 1), 1, (), image=8, head_channels=32, scales=False),
}


def kept_numbers_agree(model: UNetConfig, grid: Grid, lacking: type[Operation] | None = None) -> None:
    """Check what is kept, except statistics, numbers for each channel, and what comes of the time step."""
    kept = [
        operation.kept.times(section.tokens_of(operation, model.sequence))
        for section in model.network().sections
        for operation in section.operations
        if type(operation) is not lacking
    ]
    features = sum(each.inner // grid.x + each.stream // grid.y for each in kept)
    assert BATCH * features == pytest.approx(saved_numbers(model, grid), rel=0.015)


@pytest.mark.parametrize("grid", [Grid(), Grid(x=2), Grid(y=2)], ids=str)
@pytest.mark.parametrize("name", UNETS)
def test_a_u_net_keeps_the_tensors_that_autograd_saves(name: str, grid: Grid) -> None:
    kept_numbers_agree(UNETS[name], grid)


@pytest.mark.parametrize("kind", [GroupNorm, Conv2d, Resample, Linear, Attention])
def test_an_operation_that_the_u_nets_table_lacks_is_missed(kind: type[Operation]) -> None:
    with pytest.raises(AssertionError):
        kept_numbers_agree(UNETS["guided"], Grid(), lacking=kind)


PLANTED: list[tuple[Callable[[Architecture], None], type[Operation]]] = [
    (layers_and_parameters_agree, Norm),
    (layers_and_parameters_agree, Linear),
    (flops_agree, Linear),
    (flops_agree, Attention),
    (lambda model: kept_tensors_agree(model, Grid()), Attention),
    (lambda model: kept_tensors_agree(model, Grid()), Activation),
]


@pytest.mark.parametrize(("agree", "kind"), PLANTED)
def test_an_operation_that_the_table_lacks_is_missed(
    agree: Callable[[Architecture], None], kind: type[Operation], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = GPTConfig.network

    def without(model: GPTConfig) -> Network:
        first, blocks, last = whole(model).sections
        gone = blocks.of_kind(kind)[-1]
        return Network(
            (first, replace(blocks, operations=tuple(op for op in blocks.operations if op is not gone)), last),
            model.stream,
        )

    model = GPTConfig("toy", layers=2, hidden=16, heads=4, vocabulary=10, sequence=5)
    agree(model)
    monkeypatch.setattr(GPTConfig, "network", without)
    with pytest.raises(AssertionError):
        agree(model)
