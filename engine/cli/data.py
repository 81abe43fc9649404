"""`data prepare` makes token shards of a folder of text, and `data prepare-images` an image set of one of pictures."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.cli.common import Json, write
from engine.errors import check_installed
from engine.options import Folder
from engine.output import log_to_stderr


def prepare(
    *,
    source: Annotated[Folder, Parameter(help="folder with text files, any depth")],
    out: Annotated[Folder, Parameter(help="where the corpus goes")],
    vocab_size: Annotated[int | None, Parameter(help="tokens to learn (default: 8192)")] = None,
    tokenizer: Annotated[
        Path | None, Parameter(metavar="DIR|FILE", help="a network's folder, or a tokenizer.json, to take instead")
    ] = None,
    end_of_text: Annotated[
        str | None, Parameter(metavar="TOKEN", help="its token for that, where the folder doesn't tell")
    ] = None,
    max_bytes: Annotated[int | None, Parameter(metavar="BYTES", help="use only so much text (default: all)")] = None,
    text_key: Annotated[str, Parameter(metavar="KEY", help="of JSON Lines: its value is a document")] = "text",
    json: Json = False,
) -> int:
    """Turn a folder of text into token shards.

    A file is a document, or each line of a file of JSON Lines (.jsonl). Documents follow one another in a row, with a
    token between them, so sequences and their attention go across the boundaries of documents. What is left out is
    named, and left-out.txt in the corpus lists it.
    """
    from engine.data.corpus import prepare as prepare_corpus
    from engine.data.prepared import HEADER

    log_to_stderr(0)
    header = prepare_corpus(
        source, out, vocab_size, tokenizer=tokenizer, end_of_text=end_of_text, max_bytes=max_bytes, text_key=text_key
    )
    write(f"{out}: {header.tokens:,} tokens, vocabulary {header.vocabulary}", out / HEADER, as_json=json)
    return 0


def prepare_images(
    *,
    source: Annotated[Folder, Parameter(help="folder with a subfolder of pictures a class, or CIFAR-10's *.bin")],
    out: Annotated[Folder, Parameter(help="where the image set goes")],
    size: Annotated[
        int | None, Parameter(metavar="PIXELS", help="of a side (default: 224, or 32 of CIFAR-10's)")
    ] = None,
    unlabelled: Annotated[bool, Parameter(help="the pictures are of no classes, in any folders")] = False,
    json: Json = False,
) -> int:
    """Turn a folder of pictures into an image set."""
    check_installed("PIL", "pillow", "Pictures are read by Pillow")
    from engine.data.pictures import prepare as prepare_pictures
    from engine.data.prepared import HEADER

    log_to_stderr(0)
    header = prepare_pictures(source, out, size, unlabelled=unlabelled)
    write(f"{out}: {header.images:,} images of {len(header.classes) or 'no'} classes", out / HEADER, as_json=json)
    return 0
