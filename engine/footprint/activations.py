"""Activations of one rank are counted in bytes, the logits among them. No torch in it.

What a section keeps follows from its operations (models/operations.py); what a block's backward makes besides is in
blocks.py, what blocks give to one another in stream.py. Here is what the layers around blocks make, too; each method
names the layer.
"""

from collections.abc import Sequence
from itertools import accumulate

from engine.footprint.blocks import BlockBytes, describe, kept_by, left, of_head
from engine.footprint.rows import Rows
from engine.footprint.stream import Stream
from engine.grid import INNER, STREAM
from engine.layers.chunk import CHUNK_BYTES
from engine.models.network import Network, Section
from engine.models.operations import Table


class Activations:
    """It counts those of a stage that has these blocks of a network. group: so many of them are recomputed together;
    none if 0. deferring: whether backwards leave weight gradients.

    stream: bytes of the residual stream where the network begins and ends, as of its gradient. head_share: the part of
    all tokens that the head reads. gradients: bytes that are there of those of the stream in each block's backward.
    """

    def __init__(
        self,
        network: Network,
        stream: Stream,
        blocks: Sequence[int],
        rows: Rows,
        *,
        group: int,
        deferring: bool = False,
    ) -> None:
        self._rows, self._group = rows, group
        self._before, self._head, self._product = network.around[0], network.sections[-1], network.head
        sections = [network.blocks[number].section for number in blocks]
        described = {id(section): section for section in sections}
        bytes_of = {key: describe(section, rows, deferring=deferring) for key, section in described.items()}
        self.blocks: list[BlockBytes] = [bytes_of[id(section)] for section in sections]
        self.head = of_head(self._head, rows)
        self.stream = rows.stream
        self.head_share = self._share(self._head)
        each = rows.features(1, rows.grid[STREAM])
        self.gradients = [each * numel for numel in stream.gradients(blocks)]
        self._inputs = [each * stream.numel[number] for number in blocks]
        self._joins = [stream.skips[number] is not None for number in blocks]
        self._of_blocks = [0.0, *accumulate(block.kept for block in self.blocks)]
        self._left = [0.0, *accumulate(block.left for block in self.blocks)]
        self._kept = [each * numel for numel in stream.inputs(blocks, group)] if group else self._of_blocks
        entering, leaving = (stream.whole[blocks[0]], stream.whole[blocks[-1] + 1]) if blocks else (0, 0)
        self.message = each * max(entering, leaving) / rows.grid[INNER]

    def kept(self, blocks: int) -> float:
        """Count what the first blocks keep for the backward: of those that are recomputed each group's input alone."""
        return self._kept[blocks]

    def in_backward(self, index: int, first: int) -> float:
        """Count what is there of other blocks in the backward of one, of which those from the first on have been
        recomputed, whose input is there already.
        """
        if not self._group:
            return self._kept[index]
        again = self._of_blocks[index] - self._of_blocks[first]
        return self._kept[index + 1] + again - (0.0 if self._joins[first] else self._inputs[first])

    def kept_of_head(self) -> float:
        """Count what the operations behind the blocks save, including the input of the first."""
        return kept_by(self._head, self._rows)

    def kept_before(self) -> float:
        """Count what the operations before the blocks save: the patches of images that a product takes."""
        return sum(kept_by(section, self._rows) for section in self._before)

    def _share(self, section: Section) -> float:
        return section.tokens_of(section.operations[-1], self._rows.model.sequence) / self._rows.model.sequence

    def left(self, first: int) -> float:
        """Count what backwards leave for the weight gradients of the blocks from this one on: input and output gradient
        of each product.
        """
        return self._left[-1] - self._left[first]

    def left_of_head(self) -> float:
        """Count the same of the operations behind the blocks."""
        return left(self._head, self._rows)

    def left_before(self) -> float:
        """Count the same of the operations before the blocks, and the gradient of the rows that were looked up."""
        looked_up = sum(table.sharded for section in self._before for table in section.of_kind(Table))
        return sum(left(section, self._rows) for section in self._before) + looked_up * self.stream

    def made_by_table(self) -> float:
        """Count the looked-up rows' gradient, a copy with zeros for other ranks' tokens, and a cast for the sum."""
        copies = 2 if self._rows.grid[INNER] > 1 else 1
        return copies * self.stream + (self._rows.wide_stream if self._rows.narrow else 0.0)

    def logits(self) -> float:
        """Count the one copy, which becomes their gradient in place."""
        ranks, _ = self._product.ranks(self._rows.grid)
        return self._rows.features(self._rows.model.sequence * self._product.n, ranks) * self.head_share

    def made_by_loss(self) -> float:
        """Count rows of logits, some at a time, never below fp32 (layers/loss.py); a processor casts them first."""
        ranks, _ = self._product.ranks(self._rows.grid)
        row = self._product.n / ranks * self._rows.master
        chunk = CHUNK_BYTES["cpu" if self._rows.on_cpu else "cuda"]
        all_rows = self._rows.samples * self._rows.model.sequence * self.head_share
        rows = min(all_rows, max(1, chunk // row))
        return rows * row * (2 if self._rows.on_cpu and self._rows.narrow else 1)
