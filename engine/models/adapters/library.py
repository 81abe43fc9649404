"""A library's network as it was built: the engine trains one of its own instead, with the same weights."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import Coords, Grid
from engine.models.adapters.adapter import ADAPTERS, Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.stored import Stored
from engine.models.architecture import Architecture
from engine.placement import Placement

Fetch = Callable[[str, tuple[slice, ...]], Tensor]
"""Reader of a region of a library's tensor."""
WeightLoader = Callable[[Placement, Grid, Coords, torch.dtype], Tensor]
"""Maker of the elements of a parameter that a rank stores: [local_numel], 0 where the parameter has none."""

BITS = {torch.float16: torch.int16, torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.float64: torch.int64}
"""Whole numbers of as many bits."""
PLAIN = (
    *(nn.Linear, nn.Conv2d, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.SiLU, nn.AvgPool2d, nn.Dropout),
    *(nn.ModuleList, nn.ModuleDict, nn.Identity),
)


@dataclass(frozen=True, slots=True)
class Understood:
    """A library's network, as the engine takes it."""

    adapter: Adapter
    architecture: Architecture
    stored: Stored


def understand(model: nn.Module) -> Understood:
    """Understand a library's network. Raises UsageError, naming it, for whatever no adapter knows. In eval mode it
    has no dropout.
    """
    adapter, config = _adapter(model), model.config
    given = config if isinstance(config, Mapping) else getattr(config, "to_dict", lambda: vars(config))()
    options = Options(adapter.title, given)
    architecture = adapter.read(options, adapter.model_type, None, None if model.training else 0.0)
    _check_modules(model, adapter)
    stored = adapter.stored(architecture)
    stored.check({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, adapter.title)
    understood = Understood(adapter, architecture, stored)
    _check_parameters(model, understood)
    return understood


def adapt(model: nn.Module, comm: Comm) -> tuple[Architecture, WeightLoader | None]:
    """Return the network that equals a library's, and its weights; None where it is on the meta device. Collective.

    Raises UsageError as understand() does, and if ranks hold different weights.
    """
    understood = understand(model)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if unmade := [name for name, tensor in state.items() if tensor.is_meta]:
        if len(unmade) < len(state):
            raise UsageError(f"{unmade[0]} is on the meta device and others aren't: load all weights, or none.")
        return understood.architecture, None
    _check_alike(state.values(), comm)
    shapes = understood.stored.shapes
    return understood.architecture, weight_loader(
        understood.stored, lambda name, region: state[name].view(shapes[name])[region]
    )


def weight_loader(stored: Stored, fetch: Fetch) -> WeightLoader:
    """Make what reads a rank's part of a parameter region by region: never more than it keeps."""

    def load(placement: Placement, grid: Grid, coords: Coords, dtype: torch.dtype) -> Tensor:
        local = torch.zeros(placement.local_numel(grid), dtype=dtype)
        for rectangle in placement.rectangles(grid, coords):
            target = rectangle.view(local)
            for run in stored.runs(placement.name, rectangle.region):
                source = fetch(run.tensor, run.region)
                target[torch.from_numpy(run.rows)] = (source.t() if run.transposed else source).to(local)
        return local

    return load


def library_state(stored: Stored, serial: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make whole serial tensors, by name, the library's; what it calls by two names is there once."""
    state: dict[str, Tensor] = {}
    for name, value in serial.items():
        for run in stored.runs(name, tuple(slice(0, size) for size in value.shape)):
            target = state.setdefault(run.tensor, value.new_empty(stored.shapes[run.tensor]))
            rows = value[torch.from_numpy(run.rows)]
            target[run.region] = rows.t() if run.transposed else rows
    return {name: tensor.view(stored.shape(name)) for name, tensor in state.items()}


def _adapter(model: nn.Module) -> Adapter:
    kind = type(model)
    for adapter in ADAPTERS.values():
        if (_package(kind), kind.__name__) == (adapter.package, adapter.network):
            return adapter
    known = ", ".join(adapter.title for adapter in ADAPTERS.values())
    raise UsageError(f"No adapter knows the network {kind.__name__} of {_package(kind)}: known are {known}.")


def _check_modules(model: nn.Module, adapter: Adapter) -> None:
    """Raise UsageError for a module that the adapter doesn't know, or that isn't as the configuration builds it."""
    own = {adapter.network, adapter.attention, *adapter.modules}
    with torch.device("meta"):
        make = getattr(type(model), "from_config", type(model))  # of diffusers, whose classes take options one by one
        built = {name: _describe(module) for name, module in make(model.config).named_modules()}
    for name, module in model.named_modules():
        kind, title = type(module), f"{name or 'The network'} of {adapter.title}"
        if kind not in PLAIN and (_package(kind) != adapter.package or kind.__name__ not in own):
            raise UsageError(f"{title} is a {kind.__name__}, which the adapter doesn't know: build it without.")
        if built.get(name) != _describe(module):
            raise UsageError(
                f"{title} is a {_describe(module)}, but the configuration says "
                f"{built.get(name, 'nothing of it')}: change that instead."
            )
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            raise UsageError(f"{title} has a forward or hooks of its own, which would not run: remove them.")


def _check_parameters(model: nn.Module, understood: Understood) -> None:
    title, first_names = understood.adapter.title, {parameter: name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if not parameter.requires_grad:
            raise UsageError(f"{name} of {title} asks for no gradient, but all is trained: unfreeze it.")
        if parameter.dtype not in BITS:
            raise UsageError(f"{name} of {title} is in {parameter.dtype}, which can't be trained: cast the network.")
        if first_names[parameter] != understood.stored.aliases.get(name, name):
            raise UsageError(
                f"{name} of {title} and {first_names[parameter]} are one tensor or two, but not as the configuration "
                "says: build the network by it."
            )


def _describe(module: nn.Module) -> str:
    """Name a module's class, its sizes, eps and dropout, and what diffusers' attention is computed by."""
    processor = getattr(module, "processor", None)
    by = "" if processor is None else f" with {type(processor).__name__}"
    return f"{type(module).__name__}({module.extra_repr()}){by}"


def _check_alike(tensors: Iterable[Tensor], comm: Comm) -> None:
    """Raise UsageError unless all ranks hold the same weights: their bits as whole numbers have the same sum."""
    total = torch.zeros(1, dtype=torch.int64)
    for number, tensor in enumerate(tensors, start=1):
        bits = tensor.contiguous().view(BITS[tensor.dtype])
        total += number * bits.sum(dtype=torch.int64).cpu()
    if len(comm.gather_rows(total).unique()) > 1:
        raise UsageError(
            "The ranks built networks of different weights: seed them alike before (torch.manual_seed), or build them "
            "on the meta device for the engine's own initial values."
        )


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]
