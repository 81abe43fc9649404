"""`data prepare` and `data prepare-images`: folders of text or of pictures to what trainings read."""

from typing import Annotated

from cyclopts import Parameter

from engine.cli.told import Json, tell
from engine.options import Folder
from engine.progress import log_to_stderr


def prepare(
    *,
    source: Annotated[Folder, Parameter(help="folder with text files, any depth")],
    out: Annotated[Folder, Parameter(help="where the corpus goes")],
    vocab_size: Annotated[int, Parameter(help="tokens to learn")] = 8192,
    max_bytes: Annotated[int | None, Parameter(metavar="BYTES", help="use only so much text (default: all)")] = None,
    json: Json = False,
) -> int:
    """Turn a folder of text into token shards."""
    from engine.data.corpus import prepare as prepare_corpus
    from engine.data.manifest import HEADER

    log_to_stderr(0)
    header = prepare_corpus(source, out, vocab_size, max_bytes=max_bytes)
    tell(f"{out}: {header.tokens:,} tokens, vocabulary {header.vocabulary}", out / HEADER, as_json=json)
    return 0


def prepare_images(
    *,
    source: Annotated[Folder, Parameter(help="folder with a folder of pictures for each class")],
    out: Annotated[Folder, Parameter(help="where the images go")],
    size: Annotated[int, Parameter(metavar="PIXELS", help="of an image, along each side")] = 224,
    tiles: Annotated[
        bool, Parameter(help="cut each picture into as many images as it has, instead of scaling its middle")
    ] = False,
    json: Json = False,
) -> int:
    """Turn pictures by class into images of one size."""
    from engine.data.manifest import HEADER
    from engine.data.pictures import prepare as prepare_pictures

    log_to_stderr(0)
    header = prepare_pictures(source, out, size, tiles=tiles)
    tell(f"{out}: {header.images:,} images of {len(header.classes)} classes", out / HEADER, as_json=json)
    return 0
