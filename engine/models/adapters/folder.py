"""Open a network's folder as transformers and diffusers save it: config.json and safetensors. No torch, and not these
either.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine.data.tokenizer import TOKENIZER
from engine.errors import UsageError
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.beside import check_json, check_preprocessor
from engine.models.adapters.known import IN_FILES
from engine.models.adapters.options import Options
from engine.models.adapters.safetensors import BYTES, StoredTensor, read_folder, read_json
from engine.models.adapters.stored import Stored
from engine.models.architecture import Architecture

KEYS = ("model_type", "_class_name")
"""By one of these a config.json says which network it is, as transformers has it and as diffusers does."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """It is a folder that has passed every check. tensors: by the library's names; others are kept as they are."""

    folder: Path
    architecture: Architecture
    stored: Stored
    tensors: Mapping[str, StoredTensor]
    others: tuple[StoredTensor, ...]

    @property
    def tokenizer(self) -> Path | None:
        """File of the network's tokenizer; None where the folder has none of a kind that can be compared."""
        file = self.folder / TOKENIZER
        return file if file.is_file() else None

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes that the network tells apart, in their order; none where it says nothing of them."""
        named = read_json(self.folder / "config.json").get("id2label")
        try:
            return tuple(str(named[number]) for number in sorted(named, key=int)) if isinstance(named, dict) else ()
        except ValueError:
            raise UsageError(f"{self.folder / 'config.json'} has an id2label whose keys are no numbers.") from None

    def copies(self, tensor: str) -> list[StoredTensor]:
        """Find a tensor's places in the files: two where a tied tensor was written under both of its names."""
        names = [tensor, *(second for second, first in self.stored.aliases.items() if first == tensor)]
        return [self.tensors[name] for name in names if name in self.tensors]


def read_network(
    folder: Path, *, sequence: int | None = None, dropout: float | None = None
) -> tuple[Adapter, Architecture]:
    """Read what network a folder has, and who knows it, by its config.json alone. Raises UsageError, naming it, for
    whatever no adapter knows, or is out of its range.

    sequence, dropout: other than configured.
    """
    file = folder / "config.json"
    config = read_json(file)
    adapter = _adapter(config, folder)
    networks = config.get("architectures") or [adapter.network]
    if repr(networks).lower() != repr([adapter.network]).lower():  # the first Llamas are LLaMAForCausalLM
        named = networks[0] if isinstance(networks, list) else repr(networks)
        raise UsageError(f"{folder} is a {named}, but only {adapter.network} of {adapter.package} is known.")
    scheduler = next((folder / file for file in adapter.scheduler if (folder / file).is_file()), None)
    config |= {} if scheduler is None else {"scheduler": read_json(scheduler)}
    try:
        network = adapter.read(Options(str(file), config), folder.absolute().name, sequence, dropout)
    except UsageError as error:
        if str(folder) in str(error):
            raise
        raise UsageError(f"{file} describes no network that can be: {error}") from None
    except (ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise UsageError(f"{file} describes no network ({error}): copy it again.") from error
    check_preprocessor(folder, network)
    return adapter, network


def has_weights(folder: Path) -> bool:
    """Say whether a folder has weights of its network, or they are all still to come, with or without their index."""
    config = read_json(folder / "config.json")
    name = _adapter(config, folder).files
    return any(folder.glob(f"{name}*.safetensors"))


def open_pretrained(folder: Path, *, sequence: int | None = None, dropout: float | None = None) -> Pretrained:
    """Open a folder with its weights. Raises UsageError as read_network, and for what is missing or of another shape.

    sequence, dropout: other than configured.
    """
    adapter, architecture = read_network(folder, sequence=sequence, dropout=dropout)
    check_json(folder)
    stored = adapter.stored(architecture)
    tensors: dict[str, StoredTensor] = {}
    others: list[StoredTensor] = []
    known = stored.shapes.keys() | stored.aliases.keys()
    for in_file, tensor in read_folder(folder, adapter.files).items():
        name = adapter.in_files.get(in_file, in_file)
        for part, own in adapter.parts_in_files.items():
            name = name.replace(part, own)
        if name not in known and f"{adapter.prefix}{name}" in known:
            name = f"{adapter.prefix}{name}"
        if name not in known and name.endswith(adapter.constants or ("/",)):
            others.append(tensor)
        elif tensor.dtype not in BYTES:
            raise UsageError(f"{tensor.file} has {name} in {tensor.dtype}, but only {', '.join(BYTES)} can be trained.")
        else:
            tensors[name] = tensor
    stored.check({name: tensor.shape for name, tensor in tensors.items()}, str(folder))
    for name in stored.views.keys() & tensors.keys():
        tensors[name] = replace(tensors[name], shape=stored.shapes[name])
    return Pretrained(folder, architecture, stored, tensors, tuple(others))


def _adapter(config: Mapping[str, object], folder: Path) -> Adapter:
    known = {adapter.model_type: adapter for adapter in IN_FILES}
    key = next((key for key in KEYS if key in config), KEYS[0])
    kind = config.get(key)
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(f"No adapter knows the {key} {kind!r} of {folder}: known are {', '.join(known)}.")
    return known[kind]
