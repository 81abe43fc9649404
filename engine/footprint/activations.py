"""Activations of one rank are counted in bytes, the logits among them. No torch in it.

What a section keeps follows from its operations (models/operations.py); what a block's backward makes besides is in
blocks.py, what blocks give to one another in stream.py. Here is what the layers around blocks make, too; each method
names the layer.
"""

from itertools import accumulate

from engine.batch import CHUNK_BYTES
from engine.footprint.blocks import BlockBytes, describe, kept_by, left, of_head
from engine.footprint.rows import Rows
from engine.footprint.stream import OfStage
from engine.grid import INNER, STREAM
from engine.models.network import Network, Section
from engine.models.operations import Table


class Activations:
    """It counts those of a stage of a network. group: so many of its blocks are recomputed together; none if 0.
    deferring: whether backwards leave weight gradients.

    stream: bytes of the residual stream where the network begins and ends, as of its gradient. head_share: the part of
    all tokens that the head reads. waiting: bytes of gradients that wait in each block's backward for others. messages:
    those of one from each neighbour.
    """

    def __init__(self, network: Network, stage: OfStage, rows: Rows, *, group: int, deferring: bool = False) -> None:
        self._rows, self._group, self._stage = rows, group, stage
        self._before, self._head, self._product = network.around[0], network.sections[-1], network.head
        self.blocks = _described(network, stage, rows, deferring=deferring)
        self.head = of_head(self._head, rows)
        self.stream = rows.stream
        self.head_share = self._share(self._head)
        self._each = each = rows.features(1, rows.grid[STREAM])
        self.waiting = [each * numel for numel in stage.waiting]
        self.messages = each * stage.messages / rows.grid[INNER]
        self._of_blocks = [0.0, *accumulate(block.kept for block in self.blocks)]
        self._left = [0.0, *accumulate(block.left for block in self.blocks)]
        self._entered = each * stage.entered
        self._kept = [each * numel for numel in stage.inputs] if group else self._of_blocks

    def kept(self, blocks: int) -> float:
        """Count what the first blocks keep for the backward: of those that are recomputed each group's input alone."""
        return self._kept[blocks] + self._entered

    def in_backward(self, index: int, first: int) -> float:
        """Count what is there of other blocks in the backward of one, of which those from the first on have been
        recomputed, whose input is there already.
        """
        if not self._group:
            return self.kept(index)
        there = 0.0 if self._stage.joins[first] else self._each * self._stage.streams[first]
        return self.kept(index + 1) + self._of_blocks[index] - self._of_blocks[first] - there

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


def _described(network: Network, stage: OfStage, rows: Rows, *, deferring: bool) -> list[BlockBytes]:
    """Describe each block; those that are alike once."""
    found: dict[tuple[int, bool], BlockBytes] = {}
    blocks = list[BlockBytes]()
    for number, part in zip(stage.blocks, stage.parts, strict=True):
        section = network.blocks[number].section
        key = id(section), part
        if key not in found:
            found[key] = describe(section, rows, part=part, deferring=deferring)
        blocks.append(found[key])
    return blocks
