"""Folder of a network as transformers and diffusers save it: config.json, safetensors, and files beside them.

Neither torch nor these libraries are loaded.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from engine.data.dataset import Images
from engine.data.tokenizer import TOKENIZER
from engine.errors import UsageError
from engine.models.adapters.adapter import ADAPTERS, Adapter
from engine.models.adapters.options import Options
from engine.models.adapters.safetensors import BYTES, INDEX, StoredTensor, read_folder, read_json
from engine.models.adapters.stored import Stored
from engine.models.architecture import Architecture

KEYS = ("model_type", "_class_name")
"""Keys by which a config.json says which network it is: transformers' and diffusers'."""
IN_FILES = {model_type: adapter for model_type, adapter in ADAPTERS.items() if adapter.package != "litgpt"}

COPIED = ("*.json", "tokenizer*", "vocab*", "merges.txt", "*.model", "*.jinja", "*.md", "LICENSE*")
"""Files that an export copies as they are."""
OF_TOKENIZERS = ("tokenizer*", "vocab*", "merges.txt", "*.model", "added_tokens.json", "special_tokens_map.json")
"""Of these, those that say what a text's tokens are."""
PREPROCESSOR = "preprocessor_config.json"
READ = ("config.json", "scheduler_config.json", PREPROCESSOR, TOKENIZER, f"*{INDEX}")
"""Of these, those that are read and checked."""
MIDDLE = 0.5
"""A colour from 0 to 1 is trained on as (colour - MIDDLE) / MIDDLE."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """Folder that has passed every check."""

    folder: Path
    architecture: Architecture
    stored: Stored
    tensors: Mapping[str, StoredTensor]
    """Tensors that are trained, by the library's names."""
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
    """Read what network a folder has, and its adapter, by its config.json alone. Raises UsageError, naming it, for
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
    _check_preprocessor(folder, network)
    return adapter, network


def has_weights(folder: Path) -> bool:
    """Return whether a folder has weights of its network, with or without their index, or they are all to come."""
    adapter = _adapter(read_json(folder / "config.json"), folder)
    return any(folder.glob(f"{adapter.files}*.safetensors"))


def open_pretrained(folder: Path, *, sequence: int | None = None, dropout: float | None = None) -> Pretrained:
    """Open a folder with its weights. Raises UsageError as read_network, and for what is missing or of another shape.

    sequence, dropout: other than configured.
    """
    adapter, architecture = read_network(folder, sequence=sequence, dropout=dropout)
    for file in list_copied(folder):
        if file.suffix == ".json":
            read_json(file)  # an export would copy what nobody could read
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
        if name not in known and name.endswith(tuple(adapter.constants) or ("/",)):
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
    key = next((key for key in KEYS if key in config), KEYS[0])
    kind = config.get(key)
    if not isinstance(kind, str) or kind not in IN_FILES:
        raise UsageError(f"No adapter knows the {key} {kind!r} of {folder}: known are {', '.join(IN_FILES)}.")
    return IN_FILES[kind]


def list_copied(folder: Path) -> Iterator[Path]:
    """List the files that an export copies, each once."""
    for file in sorted(folder.iterdir()):
        if file.is_file() and any(file.match(pattern) for pattern in COPIED):
            yield file


def list_unread(folder: Path) -> list[str]:
    """Name the files that an export copies and nothing here reads."""
    return [
        file.name for file in list_copied(folder) if not any(file.match(pattern) for pattern in (*READ, *OF_TOKENIZERS))
    ]


def _check_preprocessor(folder: Path, architecture: Architecture) -> None:
    """Raise UsageError for a network that has learnt from other colours, or other sizes, than those that it is given
    here.
    """
    file, data = folder / PREPROCESSOR, architecture.task.data
    if not isinstance(data, Images) or not file.is_file():
        return
    given = read_json(file)
    size = given.get("size", data.side)
    sides = list(size.values()) if isinstance(size, dict) else [size]
    here: dict[str, tuple[object, bool]] = {
        "do_rescale": (True, given.get("do_rescale", True) is True),
        "rescale_factor": (1 / 255, _are_near(given.get("rescale_factor", 1 / 255), 1 / 255)),
        "do_normalize": (True, given.get("do_normalize", True) is True),
        "image_mean": (MIDDLE, _are_near(given.get("image_mean", MIDDLE), MIDDLE)),
        "image_std": (MIDDLE, _are_near(given.get("image_std", MIDDLE), MIDDLE)),
        "size": (data.side, bool(sides) and all(side == data.side for side in sides)),
    }
    for name, (known, fits) in here.items():
        if not fits:
            raise UsageError(
                f"{file} has {name}={given[name]!r}, but images are given to the network here with {known!r}: it would "
                "learn anew what it knows."
            )


def _are_near(value: object, known: float) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(
        isinstance(number, int | float) and math.isclose(number, known, rel_tol=1e-6) for number in values
    )
