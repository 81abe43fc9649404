"""Corpora: tokens in shards on disk.

A folder with header.json, tokenizer.json and shards tokens-00000.bin ... that hold little-endian
unsigned integers and nothing else. Opening checks every shard's size, so a missing or truncated one is found
before a job starts.
"""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from engine.data.prepared import Prepared, RecordFile, check_digests, check_sizes, read_manifest
from engine.data.shuffle import Arrays, Ints, shuffle
from engine.errors import RunError, UsageError
from engine.schema import Digest, Record

FORMAT: Final = "par4d.tokens"

FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]


class Shard(Record):
    """One file of tokens."""

    file: FileName
    tokens: int = Field(gt=0)
    sha256: Digest | None = None


class TextOrigin(Record):
    """Text that was prepared: its folder, its files and bytes, and how many files were not text."""

    folder: str
    files: int
    bytes: int
    skipped: int


class Header(Record):
    """header.json of a corpus, whose tokens are below `vocabulary`; end_of_text ends each document. Version 1 had no
    digests.
    """

    format: Literal["par4d.tokens"] = FORMAT
    version: Literal[1, 2] = 2
    dtype: Literal["uint16", "uint32"]
    vocabulary: int = Field(gt=1)
    end_of_text: int
    shards: tuple[Shard, ...] = Field(min_length=1)
    tokenizer: FileName
    tokenizer_sha256: Digest | None = None
    source: TextOrigin

    @model_validator(mode="after")
    def fits(self) -> "Header":
        largest = 1 << 8 * self.storage.itemsize
        if self.vocabulary > largest:
            raise ValueError(f"{self.dtype} holds no token of a vocabulary of {self.vocabulary}")
        if not 0 <= self.end_of_text < self.vocabulary:
            raise ValueError(f"end_of_text {self.end_of_text} is no token of a vocabulary of {self.vocabulary}")
        if len({shard.file for shard in self.shards}) < len(self.shards):
            raise ValueError("a file of tokens is named twice")
        check_digests(self.version, self.digests)
        return self

    @property
    def tokens(self) -> int:
        """Tokens of all shards together."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def digests(self) -> dict[str, str | None]:
        """Digests of the files, by name."""
        return {self.tokenizer: self.tokenizer_sha256} | {shard.file: shard.sha256 for shard in self.shards}

    @property
    def storage(self) -> np.dtype:
        """Layout of a stored token."""
        return stored_as(self.dtype)


def stored_as(dtype: Literal["uint16", "uint32"]) -> np.dtype:
    """Return the little-endian layout of a shard."""
    return np.dtype(dtype).newbyteorder("<")


class Tokens(Prepared[Header]):
    """Prepared corpus, cut into sequences."""

    form = FORMAT
    classes: tuple[str, ...] = ()

    def __init__(self, path: Path, header: Header, sequence: int) -> None:
        """Raise UsageError if it is too short for a sequence."""
        super().__init__(path, header)
        self.sequence = sequence
        self.sequences = (header.tokens - 1) // sequence
        """Sequences of an epoch."""
        if self.sequences < 1:
            raise UsageError(
                f"The corpus {path} has {header.tokens} tokens, but a sequence length of {sequence} needs at least "
                f"{sequence + 1}: prepare more text or take a shorter sequence."
            )

    @classmethod
    def open(cls, path: Path, sequence: int) -> "Tokens":
        """Check the header and every shard's size. Raises UsageError for what is missing, cut short or too short."""
        header = read_header(path)
        check_sizes(path, FORMAT, {shard.file: shard.tokens * header.storage.itemsize for shard in header.shards})
        return cls(path, header, sequence)

    @property
    def meaning(self) -> dict[str, Any]:
        header = self.header
        return {"dtype": header.dtype, "vocabulary": header.vocabulary, "end_of_text": header.end_of_text}

    @property
    def digests(self) -> dict[str, str | None]:
        return self.header.digests

    @property
    def count(self) -> int:
        """Sequences of an epoch."""
        return self.sequences

    @property
    def tokenizer(self) -> Path:
        """File that made the tokens."""
        return self.path / self.header.tokenizer

    def read(self, seed: int, positions: Ints) -> Arrays:
        """Read tokens [B, sequence + 1]. Raises RunError for what isn't as the header says."""
        window = np.empty((len(positions), self.sequence + 1), np.int64)
        numbers = shuffle(seed, positions, self.sequences)
        for row, start in zip(window, (numbers * self.sequence).tolist(), strict=True):
            self._copy(start, row)
        return {"tokens": window}

    def _copy(self, start: int, out: Ints) -> None:
        """Fill out with the tokens from `start` on, across shards where need be."""
        shard = int(np.searchsorted(self._starts, start, side="right")) - 1
        done = 0
        while done < len(out):
            here = start + done - int(self._starts[shard])
            stop = min(here + len(out) - done, self.header.shards[shard].tokens)
            part = self._shards[shard].read(here, stop)
            self._check(part, shard, here)
            out[done : done + len(part)] = part
            done += len(part)
            shard += 1

    def _check(self, part: NDArray[Any], shard: int, start: int) -> None:
        if int(part.max()) >= self.header.vocabulary:
            place = int(np.argmax(part >= self.header.vocabulary))
            raise RunError(
                f"{self._shards[shard].path} has {part[place]} as its token {start + place}, but the tokens of its "
                f"vocabulary are below {self.header.vocabulary}: prepare the corpus again."
            )

    @cached_property
    def _starts(self) -> Ints:
        return np.cumsum([0, *(shard.tokens for shard in self.header.shards)], dtype=np.int64)

    @cached_property
    def _shards(self) -> list[RecordFile]:
        return [RecordFile(self.path / shard.file, self.header.storage) for shard in self.header.shards]


def read_header(path: Path) -> Header:
    """Read and check header.json alone. Raises UsageError."""
    return read_manifest(path, FORMAT, Header)
