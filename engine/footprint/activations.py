"""Activations of one rank are counted in bytes, the logits among them. No torch in it.

What a block keeps follows from its operations (models/operations.py). What the engine's own layers make besides that is
here; each method names the layer. A rank works on `rows` tokens at once.
"""

from dataclasses import dataclass
from math import ceil

from engine.grid import INNER, STREAM, Grid
from engine.layers.chunk import CHUNK_BYTES
from engine.models.architecture import Architecture
from engine.models.network import Section
from engine.models.operations import Activation, Kept, Linear, Norm, Table


@dataclass(frozen=True, slots=True)
class Block:
    """It says what a block keeps of a token, and describes its feed-forward: two products with an activation between.

    norm: one of its norms. norm_last: whether it ends with one, behind the feed-forward.
    """

    kept: Kept
    norm: Norm
    first: Linear
    activation: Activation
    last: Linear
    norm_last: bool
    products: tuple[Linear, ...]

    @classmethod
    def of(cls, section: Section) -> "Block":
        """Describe one repeat of a section that ends with a feed-forward, but perhaps for a norm."""
        norm_last = isinstance(section.operations[-1], Norm)
        *_, first, activation, last = section.operations[:-1] if norm_last else section.operations
        assert isinstance(first, Linear)
        assert isinstance(activation, Activation)
        assert isinstance(last, Linear)
        products = tuple(section.of_kind(Linear))
        return cls(section.kept, section.of_kind(Norm)[-1], first, activation, last, norm_last, products)

    @property
    def kept_inside(self) -> int:
        """Count the features over x that are kept from the first product's result on."""
        return self.activation.kept.over_inner + self.last.kept.over_inner


class Activations:
    """It counts those on one grid. compute, master: bytes of an element of activations, and of statistics and losses.

    Bytes: over_x, of a feature that x splits; stream, of the residual stream, which y splits, as a block's input or its
    gradient; wide_stream, of the same in the master dtype. head_share: the part of all tokens that the head reads.
    group: so many blocks are recomputed together; none if 0.
    """

    def __init__(
        self,
        model: Architecture,
        block: Block,
        grid: Grid,
        rows: float,
        compute: int,
        master: int,
        device: str,
        *,
        group: int,
    ) -> None:
        self._model, self._block, self._grid = model, block, grid
        network = model.network()
        self._before, self._head = network.around[0], network.sections[-1]
        self.head_share = self._share(self._head)
        self._rows = rows * self.head_share
        self._master, self._on_cpu, self._group = master, device == "cpu", group
        self._narrow = compute != master
        self._chunk = CHUNK_BYTES[device]
        self.over_x = rows * compute / grid[INNER]
        self.stream = rows * compute * model.hidden / grid[STREAM]
        self.wide_stream = self.stream * master / compute

    def kept(self, blocks: int) -> float:
        """Count what the first blocks keep for the backward: of those that are recomputed each group's input alone."""
        return ceil(blocks / self._group) * self.stream if self._group else blocks * self.kept_of_block()

    def kept_of_block(self) -> float:
        """Count what a block's operations save, including its input, which the first norm keeps."""
        return self._bytes(self._block.kept)

    def kept_of_head(self) -> float:
        """Count what the operations behind the blocks save, including the input of the first."""
        return self._bytes(self._head.kept) * self.head_share

    def kept_before(self) -> float:
        """Count what the operations before the blocks save: the patches of images that a product takes."""
        return sum(self._bytes(section.kept) * self._share(section) for section in self._before)

    def _share(self, section: Section) -> float:
        return (section.tokens or self._model.sequence) / self._model.sequence

    def _bytes(self, kept: Kept) -> float:
        products = kept.over_inner * self.over_x + kept.over_stream * self.stream / self._model.hidden
        return products + kept.streams * self.stream + kept.angles * self._model.sequence * self._master

    def recomputed(self, blocks: int) -> float:
        """Count what recomputing the first blocks of a group adds to the input of the first, which is there already."""
        return blocks * self.kept_of_block() - self.stream if self._group else 0.0

    def left_of_block(self) -> float:
        """Count what a block's backward leaves for its weight gradients: input and output gradient of each product."""
        return sum(map(self._left, self._block.products))

    def left_of_head(self) -> float:
        """Count the same of the operations behind the blocks."""
        return self.head_share * sum(map(self._left, self._head.of_kind(Linear)))

    def left_before(self) -> float:
        """Count the same of the operations before the blocks, and the gradient of the rows that were looked up."""
        products = sum(self._share(of) * sum(map(self._left, of.of_kind(Linear))) for of in self._before)
        looked_up = sum(table.sharded for of in self._before for table in of.of_kind(Table))
        return products + looked_up * self.stream

    def _left(self, product: Linear) -> float:
        sizes = zip((product.n, product.k), product.ranks(self._grid), strict=True)
        return sum(features * self.over_x * self._grid[INNER] / ranks for features, ranks in sizes)

    def made_by_norm(self) -> float:
        """Count what a norm's backward makes: a kernel the gradient, the engine's own norms two products, too.

        The products are in the master dtype. PyTorch has kernels of both norms on a GPU, on a processor of LayerNorm
        alone (layers/norm.py).
        """
        if self._grid[STREAM] > 1 or (self._block.norm.kind == "rmsnorm" and self._on_cpu):
            return 2 * self.wide_stream + (self.stream if self._narrow else 0.0)
        return self.stream

    def made_by_table(self) -> float:
        """Count the looked-up rows' gradient, a copy with zeros for other ranks' tokens, and a cast for the sum."""
        copies = 2 if self._grid[INNER] > 1 else 1
        return copies * self.stream + (self.wide_stream if self._narrow else 0.0)

    def logits(self) -> float:
        """Count the one copy, which becomes their gradient in place."""
        return self._model.outputs * self.over_x * self.head_share

    def made_by_loss(self) -> float:
        """Count rows of logits, some at a time, never below fp32 (layers/loss.py); a processor casts them first."""
        row = self._model.outputs / self._grid[INNER] * self._master
        rows = min(self._rows, max(1, self._chunk // row))
        return rows * row * (2 if self._on_cpu and self._narrow else 1)
