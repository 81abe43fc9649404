"""Coarse count of what a rank holds of its stage of a pipeline, or of the whole network, in a step. No torch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from math import prod
from typing import NamedTuple, Self

from engine.batch import CHUNK_BYTES
from engine.grid import REPLICATING, SHARDING, Grid
from engine.models.image_operations import Conv2d
from engine.models.network import Network, Section
from engine.models.operations import Attention, Linear
from engine.overlap.flags import AUTO
from engine.overlap.tasks import StepSchedule, live_whole_passes
from engine.pipeline.fixed_schedules import OneFOneB
from engine.placement import Placement
from engine.tensor_mode import Side
from engine.training_record import Training

MESSAGES = 3
"""Messages on each side of a stage at a time: two receives are posted ahead, and one that was sent may not have been
received.
"""


class MemoryOfDevice(NamedTuple):
    """Memory that a kind of device, its back end and its libraries take besides a layer's own tensors."""

    chunk_bytes: int
    """of rows of logits that the loss takes at a time"""
    casts_whole: bool
    """whether the loss casts these rows first, where they aren't split"""
    casts_split: bool
    """likewise where they are"""
    exchanges: bool = False
    """whether a reduce-scatter is an exchange into a second buffer, and a sum: gloo has none (comm/gloo.py)"""
    lays_out: bool = False
    """whether oneDNN lays all that a convolution takes its own way"""


DEVICES = {
    "cpu": MemoryOfDevice(CHUNK_BYTES["cpu"], casts_whole=True, casts_split=True, exchanges=True, lays_out=True),
    "cuda": MemoryOfDevice(CHUNK_BYTES["cuda"], casts_whole=False, casts_split=False),
    "meta": MemoryOfDevice(CHUNK_BYTES["cuda"], casts_whole=True, casts_split=False),
}
"""Processors as the record of real steps has them (tests/engine/test_memory.py), GPUs, and the device of traces."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Blocks of a stage, in chunks, and the passes that its schedule has under way."""

    chunks: tuple[range, ...]
    is_first: bool = True
    is_last: bool = True
    kept: float = 0.0
    """passes that are kept at most beside the one that is worked on"""
    pending: float = 0.0
    """passes of which weight gradients alone are still to come"""
    deferring: bool = False
    """whether backwards leave weight gradients for later"""

    @property
    def blocks(self) -> list[int]:
        """Numbers of the blocks."""
        return list(chain(*self.chunks))


def stages(training: Training, grid: Grid) -> Iterator[Stage]:
    """Yield the stages of a grid. A schedule that is still to be chosen counts as 1F1B, which keeps as much."""
    passes, last = max(1, training.passes(grid)), grid.stages - 1
    auto = training.pipeline.schedule == AUTO and grid.stages > 1
    schedule: StepSchedule = OneFOneB() if auto else training.staged(grid).schedule
    for number, chunks in enumerate(training.cut(grid).blocks):
        kept, pending = live_whole_passes(schedule, number, grid.stages, passes)
        if schedule.deferring:  # the pass that is worked on turns from one that is kept into a pending one
            pending = min(max(0.0, pending - 1), passes - 1)
            kept = min(kept, passes - 1 - pending)
        else:
            kept = min(max(0.0, kept - 1), passes - 1)
        yield Stage(tuple(chunks), number == 0, number == last, kept, pending, schedule.deferring)


class Moment(NamedTuple):
    """Bytes at one moment of a step, by the parts of Needs without the state."""

    activations: float
    weights: float = 0.0
    cache: float = 0.0
    logits: float = 0.0
    gradients: float = 0.0


class Tiles(NamedTuple):
    """Elements of a rank's parts of some parameters."""

    sharded: Sequence[float]
    """of each weight that is sharded, before it is, in the order of use"""
    stored: float
    """of all, as they are stored"""

    @classmethod
    def of(cls, placements: Sequence[Placement], grid: Grid) -> Self:
        """Count the elements of these placements."""
        tiles = [(prod(p.shape) / prod(grid[axis] for axis in p.split if axis), p.sharded) for p in placements]
        stored = sum(tile / grid.shards if sharded else tile for tile, sharded in tiles)
        return cls([tile for tile, sharded in tiles if sharded], stored)

    @property
    def gathered(self) -> float:
        return sum(self.sharded)


class SectionBytes(NamedTuple):
    """Bytes of a section's activations."""

    kept: float
    """for its backward, with its input"""
    left: float
    """by a backward for weight gradients: input and output gradient of each product"""
    made: float
    """of activations' gradients at most, beside what is kept"""


class Parts(NamedTuple):
    """Network, and what all grids ask of it."""

    network: Network
    placed: Mapping[int, Sequence[Placement]]
    """placements of each section, by its id"""
    waiting: Sequence[Sequence[int]]
    """of each boundary, the boundaries whose streams wait there for later blocks"""

    @classmethod
    def of(cls, network: Network) -> Self:
        waiting: list[tuple[int, ...]] = [()]
        for number, (section, _) in enumerate(network.blocks):
            there = (*waiting[-1], number) if section.leaves else waiting[-1]
            waiting.append(there if section.takes is None else there[:-1])
        return cls(network, {id(section): section.placements(network.mode) for section in network.sections}, waiting)


class StageCount:
    """Count of a stage on a grid, which needn't divide everything: parts are taken as fractions."""

    def __init__(self, training: Training, parts: "Parts", grid: Grid, stage: Stage, device: MemoryOfDevice) -> None:
        """Count what is there whatever the moment."""
        self._device = device
        self._training = training
        self._network = network = parts.network
        self._waiting = parts.waiting
        self._share = training.batch.sequences / grid.batch_split
        self._at_once = training.batch.micro or self._share
        self._mode = mode = training.mode(grid, network)
        self._grid = grid
        self._inner, self._streams = (mode.parts(side, grid) for side in (Side.INNER, Side.STREAM))
        """parts into which a plane of ranks cuts what lies inside of blocks, and in the stream"""
        self._stage = stage
        self._compute, self._wide, self._group = training.compute, training.wide, training.checkpoint_group(grid)
        self._several = self._share / self._at_once * len(stage.chunks) > 1
        self._recomputed = sum(number < training.recomputed_blocks for number in stage.blocks)
        """blocks of the stage, the first ones, that are recomputed"""
        overlap = training.overlap
        sections = [network.blocks[number].section for number in stage.blocks]
        kinds = {id(section): section for section in sections}
        bytes_of = {key: self._section(section) for key, section in kinds.items()}
        tiles_of = {key: Tiles.of(parts.placed[key], grid) for key in kinds}
        self._blocks = [bytes_of[id(section)] for section in sections]
        self._tiles = [tiles_of[id(section)] for section in sections]
        self._rest = Tiles.of(network.part((), first=stage.is_first, last=stage.is_last), grid)
        head = Tiles.of([network.head_weight], grid).sharded if stage.is_last else []
        self._head, self._table = sum(head), self._rest.sharded[0] if self._rest.sharded else 0.0
        self._head_bytes = self._section(network.sections[-1]) if stage.is_last else SectionBytes(0.0, 0.0, 0.0)
        self._stream = self._features(training.model.sequence * training.model.hidden, self._streams)
        gathers = grid.shards > 1
        self._each = self._compute if gathers else 0
        self._depth = overlap.prefetch_depth if overlap.oag and gathers else 0
        self._window = overlap.reduce_window if overlap.ors and gathers else 0
        self._holding = len(sections) if grid.stages > 1 else self._recomputed
        """first block that holds its gathered weights from forward to backward, as all after it do"""
        cached = self._group > 0 and gathers and overlap.cache != AUTO
        self._uncached = self._recomputed - (min(int(overlap.cache), self._recomputed) if cached else 0)
        """first block whose gathered weights are cached, as those of all after it that are recomputed"""
        self._cache = self._each * sum(tiles.gathered for tiles in self._tiles[self._uncached : self._recomputed])
        copies = (2 if self._device.exchanges else 1) + 1 / grid.shards
        self._flight = self._scattered * copies if gathers else 0.0
        """Bytes of an element whose contribution is in flight: what is sent, what comes in, and the sum."""
        self.stored = sum(tiles.stored for tiles in self._tiles) + self._rest.stored
        self.sharded = (sum(tiles.gathered for tiles in self._tiles) + self._rest.gathered) / grid.shards
        narrow = self._compute != training.master
        self._sent_as_cast = gathers and narrow and not training.offload
        casts = self.stored - self.sharded * self._sent_as_cast
        self.casts = self._compute * casts if narrow else 0.0

    def fullest(self) -> Moment:
        """Return the fullest moment of a step."""
        moments = [*self._at_blocks(), *self._elsewhere()]
        if self._stage.is_last:
            moments += self._at_head()
        beside, always = self._beside(), Moment(self._always(), self.casts)
        moments = [Moment(*map(sum, zip(moment, beside, strict=True))) for moment in moments]
        moments.append(Moment(0.0, gradients=self._copies(self.stored)))
        return Moment(*map(sum, zip(max(moments, key=sum), always, strict=True)))

    @property
    def _scattered(self) -> int:
        return self._training.reduce(self._grid, SHARDING)

    def _features(self, count: float, ranks: int = 1) -> float:
        """Count the bytes of so many numbers of a sample, which so many ranks split."""
        return self._at_once * self._compute * count / ranks

    def _parts_at_product(self, side: Side | None) -> int:
        """Count the parts into which a plane of ranks cuts what a product takes or gives: features, of all rows but on
        a square.
        """
        axes = () if side is None else self._mode[side].axes[:1] if self._mode.gathers else self._mode[side].axes
        return prod(self._grid[axis] for axis in axes)

    def _section(self, section: Section) -> SectionBytes:
        model = self._training.model
        kept, taken, left, largest = section.kept(model.sequence), section.kept(model.sequence, Linear), 0.0, 0.0
        bytes_kept = self._features(kept.inner - taken.inner, self._inner) + kept.angles * self._wide
        bytes_kept += self._features(kept.stream - taken.stream + kept.streams * model.hidden, self._streams)
        again = self._mode.gathers_again
        bytes_kept += self._features(taken.inner, self._inner if again else self._parts_at_product(Side.INNER))
        bytes_kept += self._features(taken.stream, self._streams if again else self._parts_at_product(Side.STREAM))
        for product in section.of_kind(Linear):
            tokens, (n, k) = section.tokens_of(product, model.sequence), map(self._parts_at_product, product.sides)
            both = self._features(product.input_tokens(tokens) * product.k, k) + self._features(tokens * product.n, n)
            left += both
            exchanged = self._device.exchanges and self._mode.gathers
            largest = max(
                largest,
                both * (2 if self._device.lays_out and isinstance(product, Conv2d) else 1)
                + exchanged * self._features(product.input_tokens(tokens) * product.k, k),
            )
        for attention in section.of_kind(Attention):
            features = section.tokens_of(attention, model.sequence) * attention.heads * attention.head_size
            largest = max(largest, self._features(5 * features, self._inner))
            if self._mode.gathers and not again:  # the next product keeps a gathered copy
                bytes_kept += self._features(features, self._inner)
        return SectionBytes(bytes_kept, left, largest)

    def _always(self) -> float:
        """Count the samples of a step, the patches of images, and messages of other stages."""
        whole = [sum(prod(carried.shape) for carried in boundary) for boundary in self._network.boundaries]
        enter = max((whole[chunk.start] for chunk in self._stage.chunks if chunk.start), default=0)
        leave = max((whole[chunk.stop] for chunk in self._stage.chunks if chunk.stop < len(whole) - 1), default=0)
        messages = MESSAGES * self._features(enter + leave, self._grid.plane)
        return self._share * self._training.model.task.row_bytes + messages + self._before

    @property
    def _before(self) -> float:
        if not self._stage.is_first:
            return 0.0
        return sum(self._section(section).kept for section in self._network.around[0])

    def _inputs(self) -> list[float]:
        """Count what the first blocks keep for the backward, of none to all: of groups that are recomputed their input,
        and what is left there for later blocks.
        """
        features = [prod(carried[0].shape) for carried in self._network.boundaries]
        kept = set[int]()
        found = [0.0]
        for place, number in enumerate(self._stage.blocks[: self._recomputed]):
            new = {number, *self._waiting[number]} - kept if place % self._group == 0 else ()
            kept.update(new)
            found.append(found[-1] + sum(self._features(features[boundary], self._streams) for boundary in new))
        return [*found[:-1], *accumulate((block.kept for block in self._blocks[self._recomputed :]), initial=found[-1])]

    def _logits(self, element: int) -> float:
        """Count the bytes of all logits, in elements of so many bytes."""
        section, head = self._network.sections[-1], self._network.head
        tokens = section.tokens_of(section.operations[-1], self._training.model.sequence)
        parts = 1 if head.sides[0] is None else self._inner
        return self._at_once * tokens * head.n / parts * element

    def _beside(self) -> Moment:
        """Count the passes beside the one that is worked on. With several chunks no other pass is in the head."""
        stage, forward = self._stage, self._inputs()[-1] + self._before
        alone = stage.is_last and len(stage.chunks) == 1
        in_head = self._head_bytes.kept + self._logits(self._compute) if alone else 0.0
        heads = self._each * self._rest.gathered if alone and self._group else 0.0
        waiting = max(forward + in_head, self._left(0))
        passes = stage.kept + stage.pending
        return Moment(stage.kept * (forward + in_head) + stage.pending * waiting, passes * heads, passes * self._cache)

    def _left(self, first: int) -> float:
        """Count what backwards leave for the weight gradients of the blocks from one on, and of the head."""
        if not self._stage.deferring:
            return 0.0
        return sum(block.left for block in self._blocks[first:]) + self._head_bytes.left

    def _made(self, tile: float, dtype: int) -> float:
        """Count a contribution that is made in a dtype of so many bytes, and given to its sum."""
        cast = tile * dtype if dtype != self._scattered else 0.0
        if self._flight:
            return cast + tile * self._flight
        return 0.0 if dtype == self._training.gradient else cast + tile * self._scattered

    def _in_flight(self, tiles: Sequence[float]) -> float:
        """Count the latest contributions, of which a window is on its way."""
        return 0.0 if self._stage.deferring else self._flight * sum(tiles[: self._window])

    def _copies(self, stored: float) -> float:
        """Count the copies of so many elements that are summed over model replicas."""
        summed = self._training.reduce(self._grid, REPLICATING[0])
        return summed * stored if self._grid.model_replicas > 1 and summed != self._training.gradient else 0.0

    def _summing(self, first: int) -> float:
        """Count the copies of the blocks from one on, of whole buckets, in the last pass."""
        overlap = self._training.overlap
        if self._stage.deferring or not overlap.data:
            return 0.0
        bucket = overlap.bucket(self._grid)
        return self._copies(sum(tiles.stored for tiles in self._tiles[first:])) // bucket * bucket

    def _ahead(self, tiles: Sequence[float]) -> float:
        """Count the next weights that are gathered ahead, and what a rank sends of them where that is a cast."""
        return self._compute * (1 + self._sent_as_cast / self._grid.shards) * sum(tiles[: self._depth])

    def _first(self) -> list[float]:
        """List the first weights that a pass uses, whose gradients come last."""
        return [self._table, *chain.from_iterable(tiles.sharded for tiles in self._tiles[:2]), self._head]

    def _at_head(self) -> Iterator[Moment]:
        """Yield the loss, which takes some rows of logits at a time, and the backward of the product before it."""
        inputs, head, last = self._inputs()[-1] + self._head_bytes.kept, self._each * self._head, self._tiles[-1]
        waiting = self._each * sum(tiles.gathered for tiles in self._tiles[self._holding :])
        weights = waiting + head + self._ahead(last.sharded[::-1])
        logits = self._logits(self._compute)
        casts = self._device.casts_whole if self._grid[self._mode.inner.features] == 1 else self._device.casts_split
        loss = min(self._device.chunk_bytes, self._logits(self._wide))
        loss *= 2 if casts and self._compute != self._wide else 1
        earlier = self._first() if self._several else []
        yield Moment(inputs, weights, self._cache, logits + loss, self._in_flight(earlier))
        made = self._made(self._head, self._compute) + self._in_flight(earlier[1:])
        whole = (
            logits * self._inner / self._parts_at_product(self._network.head.sides[0]) if self._mode.gathers else 0.0
        )
        yield Moment(inputs + self._stream, weights, self._cache, logits + whole, made)
        if whole:  # before they are summed and scattered
            whole += whole * self._device.exchanges
            yield Moment(inputs, weights, self._cache, logits + whole, self._in_flight(earlier))

    def _at_blocks(self) -> Iterator[Moment]:
        """Yield the backward of the first and the last block, and of the last of a group before that."""
        last, again, inputs = len(self._blocks) - 1, self._recomputed, self._inputs()
        ends = {0, last}
        if again:
            size, end = self._group, again - 1
            ends |= {min(size - 1, end), end // size * size - 1, end}
        other_pass = self._first() if self._several else []
        for place in sorted(ends) if self._network.alike else range(last + 1):
            if place < 0:
                continue
            group = self._group if place < again else 0
            first = place // group * group if group else place
            block, tiles = self._blocks[place], self._tiles[place].sharded
            activations = inputs[first] + block.kept + self._left(place + 1)
            if group:
                activations += sum(each.kept for each in self._blocks[first:place])
            waiting = self._tiles[first if group else self._holding : place]
            uncached = first if again < first <= self._holding else min(first, self._uncached)
            before = self._tiles[uncached - 1].sharded if uncached else []
            ahead = self._ahead([*before, *other_pass])
            cache = self._each * sum(each.gathered for each in self._tiles[self._uncached : min(first, again)])
            above = [*chain(*(each.sharded for each in self._tiles[place + 1 : place + 3])), self._head, *other_pass]
            used = tiles[:-1] if group or place >= self._holding else tiles[-2:-1]
            weights = self._each * (sum(each.gathered for each in waiting) + sum(used)) + ahead
            sent = self._in_flight([*tiles[-1:], *above]) + self._summing(place + 1)
            if not self._stage.deferring:
                sent += self._made(max(tiles, default=0.0), self._compute)
            yield Moment(activations + block.made, weights, cache, 0.0, sent)

    def _elsewhere(self) -> Iterator[Moment]:
        """Yield the token table's backward, in the master dtype, and the weight gradients that were left."""
        first = self._first()
        ahead = self._ahead(first) if self._several else 0.0
        if self._stage.is_first:
            master = self._training.master
            copies = 2 if self._grid[self._mode.inner.features] > 1 else 1
            wide = master / self._compute if self._compute != master else 0.0
            made = 0.0 if self._stage.deferring else self._made(self._table, master)
            made += self._in_flight(first[1:]) + self._summing(0)
            yield Moment((copies + wide) * self._stream + self._left(0), ahead, 0.0, 0.0, made)
        if self._stage.deferring:
            largest = max(chain(*(tiles.sharded for tiles in self._tiles)), default=0.0)
            sums = self._made(largest, self._compute) + self._flight * largest * self._window
            yield Moment(self._left(0), 0.0, 0.0, 0.0, sums)
