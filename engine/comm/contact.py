"""Loss of contact: what a rank says when others are out of its reach. No torch."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from engine.errors import ContactError, first_line, is_out_of_memory

NAMED = 8
"""Ranks that are named of many."""


class LostContact(ContactError):
    """Collective that failed or was not answered in time: other ranks of its group are gone, stand still or wait."""

    def __init__(self, line: "Line", error: Exception) -> None:
        self._line = line
        super().__init__(line.lost(), f"{line.backend}: {first_line(error)}")

    def story(self, lost: Collection[int] = ()) -> str:
        """Name with whom contact was lost, of several those that are known to be lost (ContactError.story)."""
        return self._line.lost(lost)


@dataclass(frozen=True, slots=True)
class Line:
    """Way from one rank to others. where: on which axis, or in doing what. backend: whose own words follow."""

    rank: int
    where: str
    others: Sequence[int]
    backend: str

    @contextmanager
    def held(self) -> Iterator[None]:
        """Turn a back end's RuntimeError into LostContact; memory that has run out is no such thing."""
        try:
            yield
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise LostContact(self, error) from error

    def lost(self, lost: Collection[int] = ()) -> str:
        """Word the clause that says so. lost: ranks that are known to be."""
        return f"rank {self.rank} lost contact with {self.whom(lost)} {self.where}"

    def whom(self, lost: Collection[int] = ()) -> str:
        """Name the other ranks, or those of them that are known to be lost."""
        known = [rank for rank in self.others if rank in lost] or list(self.others)
        if len(known) == 1:
            return f"rank {known[0]}"
        if len(known) <= NAMED:
            return f"one of ranks {', '.join(map(str, known))}"
        return f"one of {len(known)} ranks"
