"""Ranks of one host share memory: on this channel for CPUs the others read what one rank has written.

gloo sends between two ranks of a host through the kernel's network stack, by threads that take the ranks' own cores.
Here a collective is begun by writing its input where the others can read it, and ended by reading theirs: it takes no
thread, and what lies between is the rank's own. A message through a pipe says that an input is written; who waits for
it sleeps, and notices when the writer has ended. What one rank sends another is written and read likewise.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import Channel, all_gather
from engine.comm.collective import Kind
from engine.comm.contact import Line
from engine.comm.mail import Mail
from engine.comm.neighbours import MESSAGE, MOST_RANKS, Door, Neighbour, Own, host
from engine.measure.pending import Pending

log = logging.getLogger(__name__)
SWITCH = "PAR4D_SHARED_MEMORY"
"""With 0 in this environment variable all ranks leave everything to gloo."""
SMALL_BYTES = 16384
"""Each rank adds up all inputs up to this size, which takes one message; of larger ones it adds up its own part for
all.
"""


def shared_or(gloo: Channel, group: dist.ProcessGroup, line: Line, timeout: timedelta) -> Channel:
    """Make the channel of these ranks: through shared memory if they are few and of one host, else gloo's. Collective.

    timeout: of every wait for another rank.
    """
    ranks, own = dist.get_world_size(group), dist.get_rank(group)

    def everyones(row: Tensor) -> Tensor:
        rows = torch.empty(ranks, row.numel(), dtype=row.dtype)
        all_gather(rows, row[None], group=group)
        return rows

    met = meet(ranks, own, line, timeout, everyones)
    return SharedMemoryChannel(*met, own, replace(line, backend="shared memory")) if met else gloo


def meet(
    ranks: int, own: int, line: Line, timeout: timedelta, everyones: Callable[[Tensor], Tensor]
) -> tuple[Own, list[Neighbour]] | None:
    """Give this rank's memory and its neighbours, if the ranks are few and of one host, and nobody has forbidden it.

    Collective. everyones: gathers a row of integers [n] from each rank: [ranks, n].
    """
    if not 1 < ranks <= MOST_RANKS or not hasattr(os, "memfd_create") or os.environ.get(SWITCH) == "0":
        return None
    met = None
    with Door() as door, line.held():
        hosts, doors = everyones(torch.tensor([host(), door.number])).t().tolist()
        if len(set(hosts)) > 1:
            return None
        try:
            met = door.meet(doors, own, timeout.total_seconds())
        except (OSError, ValueError) as error:
            log.warning("rank %d shares no memory with its neighbours, gloo sends instead: %s", line.rank, error)
        all_met = everyones(torch.tensor([int(met is not None)])).min()
    return met if all_met.item() else None


class SharedMemoryChannel:
    """The ranks of one host all begin their collectives in one order, and wait for them in one order.

    Writing and reading are the rank's own work. Nothing is on its way meanwhile: what a recorder sees in flight is the
    wait for ranks that are late, and the reading.
    """

    def __init__(self, memory: Own, neighbours: Sequence[Neighbour], own: int, line: Line) -> None:
        """Make a channel. neighbours: the other ranks of the group, in order."""
        self._memory, self._neighbours, self._own, self._line = memory, neighbours, own, line
        self._mail = [Mail(memory, neighbour, line) for neighbour in neighbours]
        self._ranks = len(neighbours) + 1
        self._begun = 0
        self._unfinished: dict[int, None] = {}

    @property
    def carried(self) -> int:
        """Count the collectives that went through it."""
        return self._begun

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if peer is not None:
            mail = self._mail[peer - (peer > self._own)]
            return mail.send(source, pending) if kind is Kind.SEND else mail.receive(target, pending)
        number, self._begun = self._begun, self._begun + 1
        self._unfinished[number] = None
        with self._line.held():
            for neighbour in self._neighbours:
                neighbour.hear()
            self._memory.free(min(self._done_with(), *(neighbour.done_with for neighbour in self._neighbours)))
            place = self._memory.take(number, source.numel() * source.element_size())
            self._memory.view(place, source).copy_(source)
            self._announce(number, 0, kind, source, place)

        def finish() -> None:
            if pending is not None:
                pending.begin()
            with self._line.held():
                self._carry_out(kind, number, place, self._written(number, 0, kind, source, place), target)
            if pending is not None:
                pending.end()
            del self._unfinished[number]

        return finish

    def _carry_out(self, kind: Kind, number: int, place: int, inputs: list[Tensor], target: Tensor) -> None:
        if kind is Kind.ALL_GATHER:
            for piece, part in zip(target.chunk(self._ranks), inputs, strict=True):
                piece.copy_(part)
        elif kind is Kind.REDUCE_SCATTER:
            add_up([whole.chunk(self._ranks)[self._own] for whole in inputs], torch.add, target)
        else:
            combine = torch.add if kind is Kind.ALL_REDUCE else torch.maximum
            if self._ranks == 2 or target.numel() * target.element_size() <= SMALL_BYTES:
                add_up(inputs, combine, target)
                return
            pieces = target.tensor_split(self._ranks)
            mine = [whole.tensor_split(self._ranks)[self._own] for whole in inputs]
            add_up(mine, combine, pieces[self._own])
            mine[self._own].copy_(pieces[self._own])
            self._announce(number, 1, kind, target, place)
            sums = self._written(number, 1, kind, target, place)
            for rank, piece in enumerate(pieces):
                piece.copy_(sums[rank].tensor_split(self._ranks)[rank])

    def _announce(self, number: int, stage: int, kind: Kind, what: Tensor, place: int) -> None:
        """Say that it is written there."""
        message = MESSAGE.pack(2 * number + stage, self._done_with(), place, _sort(kind, what))
        for neighbour in self._neighbours:
            neighbour.announce(message, listening=True)

    def _done_with(self) -> int:
        """Count the collectives that this rank has finished, up to the first that it has not."""
        return next(iter(self._unfinished), self._begun)

    def _written(self, number: int, stage: int, kind: Kind, like: Tensor, place: int) -> list[Tensor]:
        """Give what each rank has written, in their order, once all have. Raises ValueError if one is at something
        else.
        """
        announced = [neighbour.wait_for(2 * number + stage) for neighbour in self._neighbours]
        if any(sort != _sort(kind, like) for _, sort in announced):
            raise ValueError(f"{kind} of {like.numel()} {like.dtype} met another collective of its group.")
        views = [one.memory.view(where, like) for one, (where, _) in zip(self._neighbours, announced, strict=True)]
        views.insert(self._own, self._memory.view(place, like))
        return views


def _sort(kind: Kind, what: Tensor) -> int:
    """Give a number that is equal for collectives that belong together."""
    return tuple(Kind).index(kind) + len(Kind) * what.numel() * what.element_size()


def add_up(parts: Sequence[Tensor], combine: Callable[..., Tensor], out: Tensor) -> None:
    """Add up in the order of the ranks, so that all that do it get the same; a sum of several is rounded to bf16
    once.
    """
    if len(parts) > 2 and out.is_floating_point() and out.itemsize < torch.float32.itemsize:
        total = out.float()
        add_up([part.float() for part in parts], combine, total)
        out.copy_(total)
        return
    combine(parts[0], parts[1], out=out)
    for part in parts[2:]:
        combine(out, part, out=out)
