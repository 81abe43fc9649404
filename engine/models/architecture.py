"""Architecture: one network's shape as data, and all that the engine asks of a network. No torch in it.

A family of networks is a folder beside this file: config.py (the shape, which is the Architecture), model.py (the
serial network in plain PyTorch), placements.py, flops.py, sizes.yaml. Nothing outside a folder names its family.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import UsageError, divisors
from engine.grid import Grid
from engine.placement import Placement

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from engine.models.serial import SerialModel


@dataclass(frozen=True, slots=True)
class ForwardFlops:
    """Floating-point operations of one forward pass of the whole job; a product of m x k by k x n counts 2 m k n.

    blocks: of what activation checkpointing runs once more. rest: of everything else. repeated_over_y: the part of
    blocks that all Gy ranks run alike, because Algorithm 1 leaves them the same activations.
    """

    blocks: int
    rest: int
    repeated_over_y: int


@dataclass(frozen=True, slots=True)
class FeedForwardFeatures:
    """Features of a token, split over x, at a block's feed-forward: two products, an activation function between them.

    kept: of it, from the first product's result on. last, first: gradients of what goes into the last product, and of
    what comes out of the first one. bend: all that is there in the function's backward, kept or not.
    """

    kept: int
    last: int
    bend: int
    first: int


@dataclass(frozen=True, slots=True)
class KeptFeatures:
    """What a block keeps of each token for its backward, its input excepted: features in the compute dtype.

    over_x, over_y: which axis splits them, what its two norms keep of the residual stream not among them. norm:
    layernorm or rmsnorm. feed_forward: the part of over_x whose backward comes first. angles: numbers in the dtype of
    statistics that are kept once, not of each token of a batch.
    """

    over_x: int
    over_y: int
    norm: str
    feed_forward: FeedForwardFeatures
    angles: int = 0


class Architecture(Protocol):
    """What a network says of itself. Who inherits from it is a frozen dataclass.

    hidden: features of the residual stream, which y splits. vocabulary: tokens that it knows, which x splits. layers:
    blocks, each of which activation checkpointing runs again as a whole. nominal: parameters as its publication gives
    them.
    """

    @property
    def family(self) -> str:
        """As --architecture names it."""

    @property
    def name(self) -> str: ...

    @property
    def layers(self) -> int: ...

    @property
    def hidden(self) -> int: ...

    @property
    def heads(self) -> int: ...

    @property
    def kv_heads(self) -> int:
        """Of keys and values, each of which serves as many query heads as any other."""

    @property
    def head_size(self) -> int: ...

    @property
    def vocabulary(self) -> int: ...

    @property
    def sequence(self) -> int: ...

    @property
    def nominal(self) -> float | None: ...

    @property
    def source(self) -> str: ...

    def check(self, grid: Grid) -> None:
        """Raises UsageError, naming what would fit, unless the grid divides all that it has to."""

    def placements(self) -> dict[str, Placement]:
        """Of every parameter of the serial model by its name, in the model's order; a tied one under its first name."""

    @property
    def ties(self) -> Mapping[str, str]:
        """Second names of parameters, and the first: "head.weight" -> "tokens.weight"."""

    def forward_flops(self, sequences: int) -> ForwardFlops:
        """For a batch of so many sequences; the formula and its source are in the family's flops.py."""

    def kept_features(self) -> KeptFeatures:
        """Of the serial model's blocks, as their operations save them; what is saved is in the family's model.py."""

    def serial(self, *, checkpoint_activations: bool = False) -> "SerialModel":
        """The serial network on torch's default device. Its blocks are what is checkpointed."""

    @property
    def parameters(self) -> int:
        """Every parameter counted once."""
        return _parameters(self)  # type: ignore[arg-type]

    @property
    def options(self) -> dict[str, Any]:
        """Every field, for the record."""
        return asdict(self)  # type: ignore[call-overload]

    @property
    def shape(self) -> dict[str, Any]:
        """What has to be the same for a checkpoint to fit: not what it is called, and not its dropout."""
        other = ("name", "nominal", "source", "dropout")
        return {key: value for key, value in self.options.items() if key not in other}


@lru_cache
def _parameters(model: Architecture) -> int:
    return sum(prod(placement.shape) for placement in model.placements().values())


def hardware_flops(model: Architecture, sequences: int, *, recompute: bool) -> int:
    """Flops of one step of the whole job. recompute: with the second forward of checkpointed blocks.

    The backward of a product is two products of its size.
    """
    forward = model.forward_flops(sequences)
    return (4 if recompute else 3) * forward.blocks + 3 * forward.rest


def model_flops(model: Architecture, sequences: int) -> int:
    """Flops of one step of the whole job that the mathematics asks for: nothing recomputed."""
    return hardware_flops(model, sequences, recompute=False)


def repeated_flops(model: Architecture, sequences: int, grid: Grid, *, recompute: bool) -> int:
    """Flops of one step of the whole job that Algorithm 1 runs on top of `hardware_flops`, and no utilisation counts.

    Between the sum over y that ends a projection and the next product all Gy ranks hold the same activations, so
    attention runs Gy times over.
    """
    return (grid.y - 1) * (4 if recompute else 3) * model.forward_flops(sequences).repeated_over_y


def check_positive(shape: "DataclassInstance") -> None:
    """Raises UsageError for a size below 1."""
    for key, size in asdict(shape).items():
        if type(size) is int and size < 1:
            raise UsageError(f"A model's {key} must be at least 1, but {size} was given.")


def check_multiple_of_heads(hidden: int, heads: int) -> None:
    """Raises UsageError unless heads divides the hidden size."""
    if hidden % heads:
        raise UsageError(
            f"A model's hidden size must be a multiple of its heads, but {hidden} is not a multiple of {heads}; "
            f"{heads * (hidden // heads + 1)} would be."
        )


def check_splits(model: Architecture, grid: Grid, *, over_x: Mapping[str, int]) -> None:
    """Raises UsageError unless x divides what it splits, y the hidden size, and z every tile.

    over_x: what x splits besides the vocabulary, by what it is called.
    """
    fitting = divisors(gcd(model.vocabulary, *over_x.values()))
    for what, number in over_x.items():
        if number % grid.x:
            raise UsageError(
                f"Grid {grid} splits the {what} over x={grid.x}, but {number} {what.split()[-1]} are not a multiple of "
                f"{grid.x}: x may be one of {fitting}."
            )
    if model.vocabulary % grid.x:
        raise UsageError(
            f"Grid {grid} splits the vocabulary over x={grid.x}, but {model.vocabulary} is not a multiple of {grid.x}: "
            f"use a vocabulary of {-(-model.vocabulary // grid.x) * grid.x}, or x one of {fitting}."
        )
    if model.hidden % grid.y:
        raise UsageError(
            f"Grid {grid} splits the hidden size over y={grid.y}, but {model.hidden} is not a multiple of {grid.y}: y "
            f"may be one of {divisors(model.hidden)}."
        )
    for placement in model.placements().values():
        tile = prod(placement.tile_shape(grid))
        if placement.sharded and tile % grid.z:
            raise UsageError(
                f"Grid {grid} shards {placement.name} over z={grid.z}, but a tile of {tile} elements is not a multiple "
                f"of {grid.z}: choose z among the divisors of {gcd(model.hidden // grid.y, tile)}."
            )
