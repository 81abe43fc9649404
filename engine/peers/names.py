"""What names and layouts of other libraries have in common."""

from collections.abc import Iterator

from torch import Tensor


def by_halves(rows: Tensor, head_size: int) -> Tensor:
    """Rows of heads whose rotary pairs are neighbours, as others have them: one in each half of a head."""
    return rows.unflatten(0, (-1, head_size // 2, 2)).transpose(1, 2).flatten(0, 2)


def parts_of(tokens_BS: Tensor, targets_BS: Tensor, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Micro-batches of a step, as a library's schedule takes them."""
    return zip(tokens_BS.chunk(count), targets_BS.chunk(count), strict=True)
