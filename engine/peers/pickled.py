"""Pickles of what is asked of a peer, by the names of fields, without most of those that are as by default: another
commit understands it as long as it has the others, too.
"""

import pickle
from dataclasses import MISSING, Field, fields, is_dataclass
from io import BytesIO
from typing import Any

ALWAYS = frozenset({"threads", "warmup", "precision", "reduce_dtype", "overlap", "checkpoint_every", "offload"})
"""Fields from which follows what is trained and measured: both sides take them alike, whatever their defaults are."""

ALWAYS_IN = {"loss_scale": ("precision", "fp16")}
"""Such fields of what is trained in one number format, with the field and the format: other commits, which may not know
them, needn't in others.
"""


class _ByName(pickle.Pickler):
    def reducer_override(self, one: Any) -> Any:
        if isinstance(one, type) or not is_dataclass(one):
            return NotImplemented
        return _made, (type(one), {field.name: getattr(one, field.name) for field in fields(one) if _given(one, field)})


def _given(one: Any, field: "Field[Any]") -> bool:
    default = field.default_factory() if field.default_factory is not MISSING else field.default
    other, value = ALWAYS_IN.get(field.name, ("", None))
    always = field.name in ALWAYS or (value is not None and getattr(one, other) == value)
    return field.init and (always or default is MISSING or getattr(one, field.name) != default)


def _made(kind: type, given: dict[str, Any]) -> Any:
    return kind(**given)


def dumps(what: Any) -> bytes:
    """Pickle dataclasses, and whatever else pickle knows."""
    pickled = BytesIO()
    _ByName(pickled).dump(what)
    return pickled.getvalue()
