"""A grid as results, plans and profiles write it: 2x2x2x1."""

from typing import Annotated

from pydantic import AfterValidator

from engine.errors import UsageError
from engine.grid import Grid


def _grid(text: str) -> str:
    try:
        Grid.parse(text)
    except UsageError as error:  # which pydantic would let through, without the file and the key
        raise ValueError(str(error).removesuffix(".")) from None
    return text


GridText = Annotated[str, AfterValidator(_grid)]
