"""A small folder of text and what is not text, and how to read the corpus made of it."""

from pathlib import Path

import numpy as np

from engine.data.tokens import read_header

TEXTS = {
    "b.txt": "The second file, with an <|endoftext|> spelt out.\r\nAnd a windows line.\n",
    "a/deep/one.py": "def f(x):\n    return x + 1\n" * 40,
    "a/emoji.md": "naïve café, 東京, 🚀\n" * 30,
    "c.txt": "The quick brown fox jumps over the lazy dog.\n" * 60,
}
ORDER = ["b.txt", "c.txt", "a/emoji.md", "a/deep/one.py"]


def all_tokens(path: Path) -> np.ndarray:
    header = read_header(path)
    return np.concatenate([np.fromfile(path / shard.file, header.storage) for shard in header.shards])


def decoded(path: Path) -> list[str]:
    """The documents of a corpus as text again."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokens = all_tokens(path).tolist()
    end = read_header(path).end_of_text
    assert tokens[-1] == end
    documents: list[list[int]] = [[]]
    for token in tokens[:-1]:
        if token == end:
            documents.append([])
        else:
            documents[-1].append(token)
    return [tokenizer.decode(document, skip_special_tokens=False) for document in documents]
