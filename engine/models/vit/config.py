"""Vision transformer as an Architecture."""

from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from engine.data import CHANNELS
from engine.data.dataset import Images
from engine.errors import UsageError
from engine.models.architecture import EvenHeads, check_even_heads
from engine.models.network import Network, Section
from engine.models.operations import ONTO_STREAM, SMALL, ZERO, Activation, Attention, Linear, Norm, Table
from engine.models.tasks import ImageClass
from engine.placement import Gaussian, Uniform


@dataclass(frozen=True, slots=True)
class ViTConfig(EvenHeads):
    """Vision transformer, whose attention heads, feed-forward's width, patch's pixels and classes x splits."""

    family: ClassVar[str] = "vit"
    name: str
    layers: int
    hidden: int
    heads: int
    image: int = 224
    """pixels along a side, a multiple of patch"""
    patch: int = 16
    classes: int = 1000
    ffn: int | None = None
    dropout: float = 0.0
    norm_eps: float = 1e-6
    activation: str = "gelu"
    head_std: float = 0.0
    """standard deviation of the head's initial weights"""
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        check_even_heads(self)
        if self.image % self.patch:
            raise UsageError(
                f"An image's side must be a multiple of a patch's, but {self.image} is not a multiple of {self.patch}: "
                f"{self.patch * (self.image // self.patch + 1)} would be."
            )

    @property
    def patches(self) -> int:
        return (self.image // self.patch) ** 2

    @property
    def sequence(self) -> int:  # type: ignore[override]
        """Tokens of an image: that of its class, and its patches."""
        return 1 + self.patches

    def network(self) -> Network:
        """List the operations. The head reads the class's token alone.

        Initial values are those of Dosovitskiy et al.'s JAX: Glorot's uniform ones for products of blocks, LeCun's
        normal ones for patches (here not cut off at two standard deviations), and zeros for the head.
        """
        h, wide, pixels = self.hidden, self.wide, CHANNELS * self.patch**2
        square, oblong, bias = _glorot(h, h), _glorot(h, wide), Gaussian(1e-6)
        patches = Linear("patches", h, pixels, ONTO_STREAM, bias=True, init=Gaussian(1 / sqrt(pixels)), reads_data=True)
        tables = (
            Table("class_token", 1, h, sharded=False, init=ZERO),
            Table("positions", self.sequence, h, sharded=False, init=SMALL),
        )
        block = (
            Norm("norm1", h, "layernorm", bias=True),
            Linear("attention.qkv", 3 * h, h, parts=(h, h, h), units=self.heads, bias=True, init=square),
            Attention(self.heads, self.heads, self.head_size, causal=False),
            Linear("attention.out", h, h, ONTO_STREAM, units=self.heads, bias=True, init=square),
            Norm("norm2", h, "layernorm", bias=True),
            Linear("feed_forward.fc1", wide, h, bias=True, init=oblong, bias_init=bias),
            Activation("gelu", wide),
            Linear("feed_forward.fc2", h, wide, ONTO_STREAM, bias=True, init=oblong, bias_init=bias),
        )
        head = (
            Norm("norm", h, "layernorm", bias=True),
            Linear("head", self.classes, h, bias=True, init=Gaussian(self.head_std)),
        )
        return Network(
            (
                Section((patches,), tokens=self.patches, whole=True),
                Section(tables, whole=True),
                Section(block, "blocks", self.layers, recomputed=True),
                Section(head, tokens=1, whole=True),
            ),
            self.stream,
        )

    @property
    def task(self) -> ImageClass:
        return ImageClass(Images(self.image, self.classes))


def _glorot(n: int, k: int) -> Uniform:
    """Return the initial values of a matrix by its two sizes (Glorot and Bengio 2010, Eq. 16)."""
    return Uniform(sqrt(6 / (n + k)))
