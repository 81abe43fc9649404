"""Preparation of text: any folder -> byte-level BPE, or a given tokenizer -> token shards (format: tokens.py).

Files are taken recursively in sorted order, a folder's own before those of its subfolders; what is left out, as hidden
files and links to folders are, is named (documents.py has what is text). The vocabulary is learnt on at most
SAMPLE_BYTES, taken evenly from the whole corpus. Everything is written to a temporary folder beside the target and
renamed at the end.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engine.data.documents import NotText, units
from engine.data.folder import LeftOut, check_folders, files, replacing
from engine.data.prepared import HEADER, KINDS
from engine.data.tokenizer import END_OF_TEXT, TOKENIZER, open_tokenizer
from engine.data.tokens import FORMAT, Header, Shard, TextOrigin, stored_as
from engine.errors import UsageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

KIND = KINDS[FORMAT]
VOCABULARY = 8192
SMALLEST_VOCABULARY = 256 + 1
SAMPLE_BYTES = 16_000_000
SHARD_TOKENS = 1 << 28
PIECES_AT_ONCE = 256
TEXT_KEY = "text"


@dataclass(frozen=True, slots=True)
class _File:
    """File of text."""

    path: Path
    size: int
    """Bytes of text that are used, from its beginning."""
    key: str

    def units(self) -> Iterator[str | None]:
        """Yield its text in pieces, and None after each document. Raises UsageError if it has changed since."""
        left = self.size
        try:
            for unit in _limited(units(self.path, self.key, lambda path, cause: None), left):
                left -= 0 if unit is None else len(unit.encode())
                yield unit
        except (OSError, NotText):
            left = -1
        if left:
            raise UsageError(f"{self.path} was changed while it was read: prepare again once it stays as it is.")


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Tokenizer, and what it makes of the end of a text."""

    tokenizer: "Tokenizer"
    end: int
    content: bytes
    """The tokenizer's file."""
    whole: bool
    """Whether documents are given to it whole: another than ours may put something before each piece."""


def prepare(
    source: Path,
    out: Path,
    vocab_size: int | None = None,
    *,
    tokenizer: Path | None = None,
    end_of_text: str | None = None,
    max_bytes: int | None = None,
    text_key: str = TEXT_KEY,
    shard_tokens: int = SHARD_TOKENS,
) -> Header:
    """Turn the text under `source` into a corpus at `out`, replacing a corpus that is there already.

    vocab_size: tokens to learn, the 256 bytes and the end of text included (default: VOCABULARY); text too small for
    that many gives fewer, and the header says how many there are. tokenizer: a network's folder, or a tokenizer.json,
    to take instead; end_of_text: its token for that, where the folder doesn't tell. max_bytes: use only so much text,
    from the first file on. text_key: under which an object of JSON Lines has its text. Raises UsageError if there is no
    text, if `out` is something other than a corpus, or if it can't be written.
    """
    out = out.resolve()
    check_folders(source, out, KIND)
    if tokenizer is not None and vocab_size is not None:
        raise UsageError("--vocab-size is of a tokenizer to learn, and --tokenizer names one: give one of them.")
    if tokenizer is None and end_of_text is not None:
        raise UsageError("--end-of-text is of the tokenizer that --tokenizer names: give both, or none.")
    if vocab_size is not None and vocab_size < SMALLEST_VOCABULARY:
        raise UsageError(
            f"A byte-level vocabulary needs at least {SMALLEST_VOCABULARY} tokens (256 bytes and the end of "
            f"text), but --vocab-size {vocab_size} was given."
        )
    if max_bytes is not None and max_bytes < 1:
        raise UsageError(f"--max-bytes must be at least 1, but {max_bytes} was given.")
    ready = None
    if tokenizer is not None:
        file, opened, number = open_tokenizer(tokenizer, end_of_text)
        ready = _Tokens(opened, number, file.read_bytes(), whole=True)
    left_out = LeftOut()
    texts = _survey(source, out, max_bytes, text_key, left_out)
    size = sum(text.size for text in texts)
    log.info("%d text files, %d bytes; %d left out", len(texts), size, left_out.files)
    if not size:
        raise UsageError(
            f"The folder {source} holds no text ({left_out.files} left out, all others empty): --source needs a folder "
            "with text files."
        )
    tokens = ready or _learnt(_sample(texts, size), vocab_size or VOCABULARY)
    vocabulary = max(tokens.tokenizer.get_vocab().values()) + 1
    dtype: Literal["uint16", "uint32"] = "uint16" if vocabulary <= 1 << 16 else "uint32"
    with replacing(out, KIND) as folder:
        (folder / TOKENIZER).write_bytes(tokens.content)
        shards = _write(folder, _encode(tokens, texts), stored_as(dtype), shard_tokens)
        header = Header(
            dtype=dtype,
            vocabulary=vocabulary,
            end_of_text=tokens.end,
            shards=shards,
            tokenizer=TOKENIZER,
            tokenizer_sha256=sha256(tokens.content).hexdigest(),
            source=TextOrigin(folder=str(source.resolve()), files=len(texts), bytes=size, skipped=left_out.files),
        )
        left_out.write(folder)
        (folder / HEADER).write_text(header.model_dump_json(indent=1) + "\n")
    return header


def _learnt(text: Iterator[str], vocab_size: int) -> _Tokens:
    tokenizer = _train(text, vocab_size)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        log.warning("the text is too small for %d tokens: the vocabulary has %d", vocab_size, found)
    return _Tokens(tokenizer, tokenizer.get_vocab()[END_OF_TEXT], tokenizer.to_str(pretty=True).encode(), whole=False)


def _survey(source: Path, out: Path, max_bytes: int | None, key: str, left_out: LeftOut) -> list[_File]:
    texts: list[_File] = []
    left = max_bytes
    for path in files(source, out, left_out):
        try:
            pieces = _limited(units(path, key, left_out.add), left)
            size = sum(len(piece.encode()) for piece in pieces if piece is not None)
        except NotText as error:
            left_out.add(path, str(error))
            continue
        except OSError as error:
            left_out.add(path, f"it can't be read ({error.strerror})")
            continue
        texts.append(_File(path, size, key))
        if left is not None and (left := left - size) <= 0:
            break
    return texts


def _limited(text: Iterator[str | None], limit: int | None) -> Iterator[str | None]:
    for unit in text:
        if unit is None or limit is None:
            yield unit
            continue
        size = len(unit.encode())
        if size < limit:
            limit -= size
            yield unit
            continue
        yield unit.encode()[:limit].decode(errors="ignore")
        yield None
        return


def _sample(texts: Sequence[_File], size: int) -> Iterator[str]:
    """Yield pieces spread evenly over the corpus, SAMPLE_BYTES of it in all."""
    share = min(1.0, SAMPLE_BYTES / size)
    seen = taken = 0
    for text in texts:
        for piece in text.units():
            if piece is None:
                continue
            seen += len(piece)
            if taken + len(piece) / 2 <= seen * share:
                taken += len(piece)
                yield piece


def _train(text: Iterator[str], vocab_size: int) -> "Tokenizer":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.encode_special_tokens = True  # text that spells the end-of-text token doesn't end a document
    return tokenizer


def _encode(tokens: _Tokens, texts: Iterable[_File]) -> Iterator[np.ndarray]:
    """Yield the tokens of the corpus in order, that of the end after each document."""
    stream: Iterator[str | None] = chain.from_iterable(text.units() for text in texts)
    if tokens.whole:
        stream = _joined(stream)
    while chunk := list(islice(stream, PIECES_AT_ONCE)):
        pieces = [piece for piece in chunk if piece is not None]
        encoded = iter(tokens.tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
        ids = [[tokens.end] if piece is None else next(encoded).ids for piece in chunk]
        yield np.concatenate([np.array(part, np.uint32) for part in ids])


def _joined(text: Iterable[str | None]) -> Iterator[str | None]:
    pieces: list[str] = []
    for unit in text:
        if unit is not None:
            pieces.append(unit)
            continue
        yield "".join(pieces)
        yield None
        pieces.clear()


def _write(folder: Path, stream: Iterable[np.ndarray], storage: np.dtype, shard_tokens: int) -> tuple[Shard, ...]:
    """Write the tokens to shards of `shard_tokens` each, the last one shorter."""
    counts: list[int] = []
    digests: list[Any] = []
    for tokens in stream:
        rest = tokens.astype(storage)
        while len(rest):
            if not counts or counts[-1] == shard_tokens:
                counts.append(0)
                digests.append(sha256())
            part, rest = np.split(rest, [shard_tokens - counts[-1]])
            with (folder / _shard_name(len(counts) - 1)).open("ab") as file:
                file.write(part.data)
            counts[-1] += len(part)
            digests[-1].update(part.data)
    return tuple(
        Shard(file=_shard_name(number), tokens=count, sha256=digest.hexdigest())
        for number, (count, digest) in enumerate(zip(counts, digests, strict=True))
    )


def _shard_name(number: int) -> str:
    return f"tokens-{number:05d}.bin"
