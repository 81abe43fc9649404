"""Networks of libraries, unmodified, train on every grid as they do alone: loss and every gradient, in float64.

What no adapter knows of a network is refused by name.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from engine_command import train
from library_models import CONFIGS, DIFFUSERS, LITGPT, SEQUENCES, batch_for, build, loss_and_gradients
from pretrained_folders import CONFIGURATIONS
from test_parity import TOLERANCE
from torch import Tensor, nn
from training import grid_id
from virtual_ranks import factorisations, run_ranks

from engine.comm.funnel import Comm
from engine.data.sampler import batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.library import WeightLoader, adapt, understand, weight_loader
from engine.models.adapters.options import IGNORED
from engine.models.adapters.stored import Stored
from engine.models.architecture import Architecture
from engine.models.denoising import Denoising
from engine.models.tasks import Task
from engine.parallel.parallelize import parallelize
from engine.precision import Precision

if not find_spec("transformers"):
    pytest.skip("transformers is not installed", allow_module_level=True)

SMALL_GRIDS = [*factorisations((1, 2, 4)), Grid(2, 2, 2, 1)]
GRIDS = {"llama": factorisations(), "gpt2": factorisations(), "qwen3": SMALL_GRIDS, "neox": SMALL_GRIDS}
GRIDS |= {"bert": factorisations(), "vit": factorisations()}
GRIDS |= {
    "unet": [Grid(), Grid(2), Grid(1, 2), Grid(2, 2, 2)],
    "unet-blocks": [Grid(2, 2, 2)],
    "unet-ddpm": [Grid(1, 2, 2)],
}
WITHOUT_GRADIENT = ("attention.self.key.bias", "attention.k_proj.bias", ".to_k.bias")
"""What is added to all keys alike changes no softmax, where positions don't turn them."""
FP32, FP64 = Precision.parse("fp32"), Precision.parse("fp64")


@dataclass
class Reference:
    """A network and what its library finds."""

    model: nn.Module
    architecture: Architecture
    stored: Stored
    loader: WeightLoader | None
    loss: float
    gradients: dict[str, Tensor]


@cache
def reference(name: str) -> Reference:
    model = build(name)
    architecture, loader = adapt(model, Comm(Grid()))
    return Reference(
        model, architecture, understand(model).stored, loader, *loss_and_gradients(model, architecture.task)
    )


def errors(known: Reference, comm: Comm) -> dict[str, float]:
    """Errors of the loss and, relative to its tensor's largest, of this rank's part of each gradient."""
    if comm.grid.size <= 4:
        parallel = parallelize(known.model, comm, precision=FP64, seed=0)
    else:  # what that comes to, which takes half of the time
        parallel = parallelize(known.architecture, comm, precision=FP64, seed=0, loader=known.loader)
    share = SEQUENCES // comm.grid.batch_split
    first = (comm.coords.data * comm.grid.z + comm.coords.z) * share
    task = known.architecture.task
    whole = batch_for(task)
    own = {name: tensor[first : first + share] for name, tensor in whole.items()}
    parallel.start_step()
    loss = parallel.loss(own, divisor=float(task.valid(whole)))
    loss.backward()
    parallel.finish_step()
    total = parallel.sum_over_batch(loss.detach().clone()).item()
    found = {"loss": abs(total - known.loss) / known.loss}
    gradient_of = weight_loader(
        known.stored, lambda name, region: known.gradients[name].view(known.stored.shapes[name])[region]
    )
    for name, parameter in parallel.local_parameters().items():
        assert parameter.grad is not None
        expected = gradient_of(parallel.placements[name], comm.grid, comm.coords, torch.float64)
        tensors = [part.tensor for part in known.stored.parts[name] if not part.tensor.endswith(WITHOUT_GRADIENT)]
        least = min(known.gradients[tensor].abs().max().item() for tensor in tensors)
        assert least > 1e-5, "a gradient that vanishes compares nothing"
        found[name] = (parameter.grad.flatten() - expected).abs().max().item() / least
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        (name, grid)
        for name in (*CONFIGS, *LITGPT, *DIFFUSERS)
        for grid in GRIDS.get(name, (Grid(2, 2, 2, 1), Grid(1, 1, 4, 2)))
    ],
    ids=lambda value: value if isinstance(value, str) else grid_id(value),
)
def test_a_librarys_network_trains_on_every_grid_as_it_does_alone(name: str, grid: Grid) -> None:
    if name in LITGPT:
        pytest.importorskip("litgpt", reason="litgpt is not installed")
    if name in DIFFUSERS:
        pytest.importorskip("diffusers", reason="diffusers is not installed")
    known = reference(name)
    assert known.stored.shapes.keys() == known.gradients.keys()
    for found in run_ranks(grid, lambda comm: errors(known, comm)):
        assert all(error < TOLERANCE for error in found.values()), found  # also false where one is no number


class LlamaMLP(nn.Linear):
    """Module called like the library's own."""


def changed(name: str, module: str, change: Callable[[nn.Module], object]) -> nn.Module:
    """A network one of whose modules is changed."""
    model = build(name)
    change(model.get_submodule(module))
    return model


def with_layer(name: str, layer: nn.Module) -> nn.Module:
    model = build("llama")
    model.set_submodule(name, layer)
    return model


def untie(head: nn.Module) -> None:
    head.weight = nn.Parameter(head.weight.clone())  # type: ignore[operator, union-attr]


MLP, NORM = "model.layers.0.mlp", "model.norm"
REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "network": (lambda: nn.Linear(2, 2), "Linear of torch: .*transformers' GPT2L"),
    "own class": (lambda: with_layer(MLP, LlamaMLP(64, 64)), f"{MLP} of .* LlamaMLP"),
    "other norm": (lambda: with_layer(NORM, nn.RMSNorm(64)), f"{NORM} of .* RMSNorm"),
    "activation": (lambda: with_layer(f"{MLP}.act_fn", nn.Identity()), "act_fn of .* Identity"),
    "eps": (
        lambda: with_layer(NORM, build("llama", rms_norm_eps=0.5).get_submodule(NORM)),
        r"norm of .*eps=0\.5\), .*LlamaRMSNorm.*eps=0\.001",
    ),
    "untied": (lambda: changed("llama-tied", "lm_head", untie), r"lm_head\.weight of .* one tensor or two"),
    "hook": (lambda: changed("llama", NORM, lambda m: m.register_forward_hook(lambda *call: None)), f"{NORM} .*hooks"),
    "hook before": (
        lambda: changed("llama", NORM, lambda m: m.register_forward_pre_hook(lambda *call: None)),
        f"{NORM} .*hooks",
    ),
    "forward": (lambda: changed("llama", "lm_head", lambda m: setattr(m, "forward", lambda x: x)), "lm_head .*forward"),
    "frozen": (lambda: changed("llama", NORM, lambda m: m.requires_grad_(False)), rf"{NORM}\.weight of .* no gradient"),
    "dropout": (lambda: build("gpt2-narrow").train(), r"embd_pdrop=0\.1"),
    "option": (lambda: build("llama", mlp_bias=True), "mlp_bias=True, .* False"),
    "window": (lambda: build("qwen2", use_sliding_window=True), "use_sliding_window=True"),
    "causal": (lambda: build("bert", is_decoder=True), "is_decoder=True, .* False"),
    "new option": (lambda: build("llama", logit_scale=2.0), r"logit_scale=2\.0"),
}


OTHER_VALUES: dict[str, object] = CONFIGURATIONS["other_values"]
"""Of every option that is said to change nothing."""
THEIR_CLASSES = ("id2label", "label2id", "num_labels")
"""These are of an image's classes, which ViT counts."""


def forgotten(name: str) -> set[str]:
    """Options that an adapter forgets of a network."""
    tables = ADAPTERS[build(name).config.model_type].tables.values()  # type: ignore[union-attr]
    return {option for table in tables for option in table.forget}


def configure(model: nn.Module, options: Mapping[str, object]) -> None:
    for config in {id(one.config): one.config for one in model.modules() if hasattr(one, "config")}.values():
        for option, value in options.items():
            setattr(config, option, value)


def check_alike(model: nn.Module, usual: Reference, option: str) -> None:
    loss, gradients = loss_and_gradients(model, usual.architecture.task)
    assert loss == pytest.approx(usual.loss, rel=1e-12), option
    for tensor, gradient in gradients.items():
        assert torch.allclose(gradient, usual.gradients[tensor], rtol=1e-9, atol=1e-14), (option, tensor)


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2", "qwen3", "neox", "bert", "vit"])
def test_options_that_are_said_to_change_nothing_change_nothing(name: str) -> None:
    """The library's own network gives the loss and gradients."""
    known = {*IGNORED["network"], *forgotten(name)} - set(THEIR_CLASSES if name == "vit" else ())
    assert known - RUNS_NOT <= OTHER_VALUES.keys()
    usual = reference(name)
    for option in sorted(known - RUNS_NOT):
        how = {"attn_implementation": "eager"} if option == "output_attentions" else {}
        model = build(name, **how)
        configure(model, {option: OTHER_VALUES[option]})
        built_with = {} if option in NOT_BUILT_WITH else {option: OTHER_VALUES[option]}
        for one in (model, build(name, **how, **built_with)):
            check_alike(one, usual, option)


@pytest.mark.parametrize("name", ["llama", "gpt2", "neox", "bert", "vit"])
def test_options_of_generation_and_notes_change_nothing(name: str) -> None:
    """All at once, of the library's own loss and gradients, by its own network."""
    usual, model = reference(name), build(name)
    configure(model, dict.fromkeys((IGNORED["generation"] | IGNORED["notes"]) - {"attn_implementation"}, 3))
    check_alike(model, usual, "all")


RUNS_NOT = {"return_dict"}
"""With these at another value networks of transformers don't run."""
NOT_BUILT_WITH = ("model_type", "dtype", "torch_dtype", "architectures")
"""A network isn't built with these."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_adapter_knows_is_refused_by_name(what: str) -> None:
    make, said = REFUSED[what]
    model = make()
    with pytest.raises(UsageError, match=said):
        parallelize(model, Comm(Grid()), precision=FP32, seed=0)


def test_ranks_that_built_different_weights_are_refused() -> None:
    def own(comm: Comm) -> None:
        model = build("llama")
        with torch.no_grad():
            model.get_parameter("model.norm.weight")[3] += 1e-9 * comm.rank
        parallelize(model, comm, precision=FP32, seed=0)

    with pytest.raises(UsageError, match="manual_seed"):
        run_ranks(Grid(data=2), own)


def test_a_network_that_is_half_made_is_refused() -> None:
    model = build("llama")
    model.model.norm.to("meta")
    with pytest.raises(UsageError, match=r"norm\.weight.*meta"):
        parallelize(model, Comm(Grid()), precision=FP64, seed=0)


def test_a_network_on_the_meta_device_starts_from_the_engines_own_weights() -> None:
    model = build("llama").to("meta")
    ours = parallelize(model, Comm(Grid()), precision=FP32, seed=3)
    alone = parallelize(understand(model).architecture, Comm(Grid()), precision=FP32, seed=3)
    for name, parameter in alone.local_parameters().items():
        assert torch.equal(parameter, ours.local_parameters()[name])


def library_loss(model: nn.Module, task: Task, samples: dict[str, Tensor]) -> float:
    """Loss of a library's network in float32."""
    if isinstance(task, Denoising):
        noisy, steps = task.inputs(samples)
        return task.loss(task.criterion(), model(noisy, steps - 1).sample, samples, task.valid(samples)).item()
    segments = {"token_type_ids": samples["segments"]} if "segments" in samples else {}
    logits = model(task.inputs(samples)[0], **segments).logits
    targets = samples["labels" if "labels" in samples else "targets"]
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten()).item()


@pytest.mark.parametrize(
    "name", ["llama-tied", "gpt2", pytest.param("neox", marks=pytest.mark.weekly), "bert", "vit", "unet"]
)
def test_a_library_finds_our_loss_in_what_was_trained_and_written(name: str, tmp_path: Path) -> None:
    """Two ranks train and write; what one rank finds of that is what the library does."""
    if name in DIFFUSERS:
        pytest.importorskip("diffusers", reason="diffusers is not installed")
    given, trained, result = tmp_path / "given", tmp_path / "trained", tmp_path / "result.json"
    size = "1MB" if name in DIFFUSERS else "20KB"
    build(name).float().save_pretrained(given, max_shard_size=size)  # type: ignore[operator]
    run = ("--batch-size", "8", "--data", "synthetic", "--warmup", "0", "--learning-rate", "0.01", "--out", str(result))
    both = (*run, "--grid", "2x1x1x1", "--iterations", "2", "--export", str(trained))
    assert train(2, "--model", f"hf:{given}", *both)[0] == [0, 0]
    assert train(1, "--model", f"hf:{trained}", *run, "--grid", "1x1x1x1", "--iterations", "1")[0] == [0]
    assert {file.name for file in trained.iterdir()} == {file.name for file in given.iterdir()}
    (iteration,) = json.loads(result.read_text())["iterations"]
    task = understand(build(name)).architecture.task
    read = batch(task.data.synthetic(), task.batch, seed=0, step=0, batch_size=8, rows=range(8))
    samples = {key: torch.from_numpy(array) for key, array in read.items()}
    losses = {}
    for folder in (given, trained):
        model = type(build(name)).from_pretrained(folder).eval()  # type: ignore[attr-defined]
        with torch.no_grad():
            losses[folder] = library_loss(model, task, samples)
    assert iteration["loss"] == pytest.approx(losses[trained], rel=1e-5)
    assert abs(losses[trained] - losses[given]) > 1e-3, "it has learnt something"
