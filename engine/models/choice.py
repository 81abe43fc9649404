"""Choice of a network on a command line, by the name of a published size or by a shape. No torch."""

from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from engine.errors import UsageError, nearest
from engine.models.architecture import Architecture
from engine.models.catalogue import FAMILIES, lookup

if TYPE_CHECKING:
    from engine.models.adapters.folder import Pretrained

OF_TEXT = {"vocabulary": 51200, "sequence": 2048}
"""Sizes of families that read text where none are given: axonn-ipdps22 VI-C, axonn-sc24 VI-A."""
FIELDS = {"vocab": "vocabulary", "seq": "sequence"}
"""Fields of options that have other names."""
LETTERS = {"layers": "l", "hidden": "h", "heads": "a", "base": "b"}
"""Letters before the sizes in the name of a shape."""
FOLDER = "hf:"
"""Beginning of --model where it names a folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Published size, or a shape. What isn't given is as the size, or the family, has it."""

    model: str | None = None
    """a published size, such as gpt-5b, or hf:DIR, a folder as transformers or diffusers saves it"""
    architecture: str | None = None
    """the family of a shape: gpt (default), llama, bert, vit or unet"""
    layers: int | None = None
    """transformer blocks; of a published size, as many or fewer"""
    hidden: int | None = None
    """features of the residual stream"""
    heads: int | None = None
    """attention heads, of queries where keys and values have fewer"""
    kv_heads: int | None = None
    """key and value heads (llama)"""
    ffn: int | None = None
    """width of the feed-forward (required of llama)"""
    vocab: int | None = None
    """tokens known (default 51200; in bench peers 8192)"""
    seq: int | None = None
    """tokens of a sequence (default 2048; in bench peers 128)"""
    base: int | None = None
    """channels, of which each level has a multiple (required of unet)"""
    image: int | None = None
    """pixels along an image's side (vit: default 224; unet: 32)"""
    patch: int | None = None
    """pixels along a patch's side (vit; default 16)"""
    classes: int | None = None
    """classes of images (vit; default 1000)"""
    norm: Literal["layernorm", "rmsnorm"] | None = None
    """normalisation (gpt; default layernorm)"""
    no_bias: bool = False
    """linear layers without biases (gpt)"""
    tied: bool = False
    """one table for token embedding and head"""
    dropout: float | None = None
    """probability of dropping an activation (not llama; default 0, of improved-* their authors' 0.3)"""

    @property
    def folder(self) -> Path | None:
        """Folder of a network, if hf:DIR names one."""
        if self.model is None or not self.model.startswith(FOLDER):
            return None
        return Path(self.model.removeprefix(FOLDER))

    def pretrained(self) -> "Pretrained | None":
        """Open the folder that hf:DIR names, if one is named. Raises UsageError for one that can't be trained."""
        if self.folder is None:
            return None
        from engine.models.adapters.folder import open_pretrained  # loads numpy

        return open_pretrained(self.folder, **self._of_folder())

    def _of_folder(self) -> dict[str, Any]:
        """Return what may be other than a folder says. Raises UsageError for anything else."""
        given = self._given()
        if self.architecture is not None or given.keys() - {"sequence", "dropout"}:
            raise UsageError(f"The network of {self.model} is as its config.json says: give only --seq and --dropout.")
        return {"sequence": given.get("sequence"), "dropout": given.get("dropout")}

    def has_weights(self) -> bool:
        """Return whether the folder that is named has weights. Raises UsageError for one that can't be trained."""
        if self.folder is None:
            return False
        from engine.models.adapters.folder import has_weights  # loads numpy

        return has_weights(self.folder)

    def resolve(self) -> Architecture:
        """Make the network, of a folder by its config.json alone where its weights are still to come. Raises UsageError
        for an unknown name, and for a shape that is not whole or can't be.
        """
        if self.folder is not None:
            from engine.models.adapters.folder import read_network

            if not self.has_weights():
                return read_network(self.folder, **self._of_folder())[1]
            pretrained = self.pretrained()
            assert pretrained is not None
            return pretrained.architecture
        if self.architecture is not None and self.architecture not in FAMILIES:
            raise UsageError(f"No architecture is called {self.architecture!r}: {nearest(self.architecture, FAMILIES)}")
        given = self._given()
        if self.model is not None:
            known = lookup(self.model)
            if self.architecture not in (None, known.family):
                raise UsageError(f"{known.name} is a {known.family}: leave --architecture {self.architecture} out.")
            if given.keys() & (widths := _required(known.family) - {"layers"}):
                raise UsageError(f"Give either --model NAME or {_options(widths)}, not both.")
            _check_fields(known.family, given)
            if "layers" in given:
                if given["layers"] > known.layers:
                    raise UsageError(f"{known.name} has {known.layers} layers: give --layers as many or fewer.")
                given["name"] = f"{known.name}-l{given['layers']}"
            return replace(known, **given)  # type: ignore[type-var]
        family = self.architecture or next(iter(FAMILIES))
        required = _required(family)
        if not required <= given.keys():
            raise UsageError(f"Name a network with --model NAME, or give {_options(required)}.")
        _check_fields(family, given)
        shape = {name: size for name, size in OF_TEXT.items() if name in _defaults(family)} | given
        name = "-".join([family, *(f"{letter}{shape[field]}" for field, letter in LETTERS.items() if field in shape)])
        return FAMILIES[family](name=name, **shape)

    def _given(self) -> dict[str, Any]:
        """Return what the user asks for, by the architectures' field names."""
        given = {
            FIELDS.get(field.name, field.name): value
            for field in fields(self)
            if field.name not in ("model", "architecture", "no_bias")
            and (value := getattr(self, field.name)) is not None
            and value is not False
        }
        return given | ({"bias": False} if self.no_bias else {})


def _defaults(family: str) -> dict[str, Any]:
    return {field.name: field.default for field in fields(FAMILIES[family])}  # type: ignore[arg-type]


def _check_fields(family: str, given: dict[str, Any]) -> None:
    if strange := sorted(given.keys() - _defaults(family).keys()):
        options = [_option(name) for name in strange]
        raise UsageError(f"A {family} has no such thing as {' and '.join(options)}: leave that out.")


def _required(family: str) -> set[str]:
    """Return the fields without which a shape is not whole."""
    return {name for name, default in _defaults(family).items() if default is MISSING} - {"name", *OF_TEXT}


def _options(names: set[str]) -> str:
    order = [field.name for field in fields(ModelChoice)]
    *first, last = [_option(name) for name in sorted(names, key=order.index)]
    return f"{', '.join(first)} and {last}" if first else last


def _option(field: str) -> str:
    named = {field: option for option, field in FIELDS.items()} | {"bias": "no-bias"}
    return f"--{named.get(field, field).replace('_', '-')}"
