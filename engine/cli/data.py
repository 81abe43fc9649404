"""`data prepare`: a folder of text to token shards."""

import sys
from typing import Annotated

from cyclopts import Parameter

from engine.options import Folder
from engine.progress import log_to_stderr


def prepare(
    *,
    source: Annotated[Folder, Parameter(help="folder with text files, any depth")],
    out: Annotated[Folder, Parameter(help="where the corpus goes")],
    vocab_size: Annotated[int, Parameter(help="tokens to learn")] = 8192,
    max_bytes: Annotated[int | None, Parameter(metavar="BYTES", help="use only so much text (default: all)")] = None,
) -> int:
    """Turn a folder of text into token shards."""
    from engine.data.corpus import prepare as prepare_corpus

    log_to_stderr(0)
    header = prepare_corpus(source, out, vocab_size, max_bytes=max_bytes)
    sys.stdout.write(f"{out}: {header.tokens:,} tokens, vocabulary {header.vocabulary}\n")
    return 0
