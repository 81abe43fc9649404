"""Operators on the meta device are carried out fast: torch's own answer, in Python, takes most of a trace's time."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
FREE = {
    aten.detach.default, aten._unsafe_view.default, aten.empty.memory_format, aten.new_empty.default,
    aten.empty_like.default,
}  # fmt: skip
IN_PLACE = {
    aten.add_.Tensor, aten.sub_.Tensor, aten.mul_.Tensor, aten.mul_.Scalar, aten.div_.Tensor, aten.copy_.default,
    aten.zero_.default, aten.exp_.default, aten.rsqrt_.default, aten.square_.default, aten.addcmul_.default,
    aten.addmm_.default, aten._index_put_impl_.default, aten.scatter_add_.default, aten.scatter_.value_reduce,
}  # fmt: skip


def carried_out(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Carry out an operator, but make new tensors alone where it is known what comes of such arguments."""
    if func in IN_PLACE and args[0].is_meta:
        return args[0]
    if not _makes_new(func):
        return func(*args, **kwargs)
    asked = func, _seen(args), _seen(tuple(kwargs.items()))
    if known := _KNOWN.get(asked):
        made = tuple(None if one is None else _like(one) for one in known)
        return made[0] if len(made) == 1 else made
    out = func(*args, **kwargs)
    _KNOWN[asked] = _new(out if isinstance(out, tuple) else (out,), [*args, *kwargs.values()])
    return out


_Shape = tuple[torch.Size, tuple[int, ...], torch.dtype]
_Shapes = tuple[_Shape | None, ...]
_KNOWN: dict[Hashable, _Shapes] = {}
"""Shapes, strides and dtypes of what operators gave back, by operator and arguments; nothing where that isn't all. None
stands for a gradient that wasn't asked for.
"""


def _like(one: _Shape) -> Tensor:
    shape, stride, dtype = one
    return torch.empty_strided(shape, stride, dtype=dtype, device="meta")


@cache
def _makes_new(func: Any) -> bool:
    """Say whether an operator gives back tensors that share nothing with what it takes, and writes to none of that."""
    schema = func._schema
    if func in FREE or func.namespace != "aten" or any(one.alias_info for one in (*schema.arguments, *schema.returns)):
        return False
    return bool(schema.returns) and all(str(one.type) == "Tensor" for one in schema.returns)


def _seen(value: Any) -> Hashable:
    """Give all of an argument that decides about the shapes of what comes of it."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, list | tuple):
        return tuple(map(_seen, value))
    return type(value), value


def _new(out: Sequence[Tensor | None], given: Sequence[Any]) -> _Shapes:
    """Describe the tensors; nothing unless each is on the meta device and is all of a storage of its own."""
    made = [tensor for tensor in out if tensor is not None]
    taken = {tensor.untyped_storage()._cdata for tensor in on_meta(given)}
    own = {tensor.untyped_storage()._cdata for tensor in made} - taken
    found = tuple(None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype) for tensor in out)
    again = [_like(one) for one in found if one is not None]
    whole = all(held(one) == two.untyped_storage().nbytes() for one, two in zip(again, made, strict=True))
    return found if len(own) == len(made) and whole and all(tensor.is_meta for tensor in made) else ()


def on_meta(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            if value.is_meta:
                yield value
        elif isinstance(value, list | tuple):
            yield from on_meta(value)


def held(tensor: Tensor) -> int:
    """Count the bytes of a tensor; what is repeated by a stride of 0 is read once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())
