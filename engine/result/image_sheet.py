"""Images that a trained network made stand on one sheet."""

import base64
from typing import Annotated

from pydantic import AfterValidator, Field

from engine.result.names import SamplerName
from engine.schema import Record

_BEGINS = b"\x89PNG\r\n\x1a\n"


def _png(text: str) -> str:
    if not base64.b64decode(text, validate=True).startswith(_BEGINS):
        raise ValueError("a sheet of images is a PNG")
    return text


class ImageSheet(Record):
    """It has so many images of side x side pixels. trained_steps: after how many optimizer steps the network made them.
    steps: those of the sampler. time_s: for all of them. png: the sheet itself, in base64.
    """

    trained_steps: int
    sampler: SamplerName
    steps: int
    images: int = Field(gt=0)
    side: int = Field(gt=0)
    time_s: float
    png: Annotated[str, AfterValidator(_png)]
