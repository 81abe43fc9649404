"""An adapter makes a library's network one of the engine's. No torch, and not the library either.

A library's configuration becomes an Architecture, and Stored says where the library keeps its parameters. What an
adapter doesn't know, an option, a module, a tensor, is refused by name: nothing is run wrong.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.models.adapters.options import Options
from engine.models.adapters.stored import Stored
from engine.models.architecture import Architecture

Read = Callable[[Options, str, int | None, float | None], Architecture]
"""It takes (options, name, sequence, dropout) and gives the network; sequence and dropout are as configured where
they are None.
"""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter knows these of a library. package, network: the class that is adapted. model_type: what a config.json
    calls it.

    attention: its class, whose place the engine's own takes. modules: classes of all others beside torch's own. files:
    what those of its weights are called, but for .safetensors. prefix: of names, which files of a network without its
    head leave out. in_files: names that tensors have in files alone, and their names in the network. parts_in_files:
    the same of parts of names, which are replaced one after another. constants: ends of the names of stored tensors
    that are no weights, such as masks. scheduler: files that say how images become noise, by their place from the
    folder; the first that is there is an option of that name.
    """

    package: str
    network: str
    model_type: str
    attention: str
    modules: frozenset[str]
    read: Read
    stored: Callable[[Architecture], Stored]
    files: str = "model"
    prefix: str = ""
    in_files: Mapping[str, str] = field(default_factory=dict)
    parts_in_files: Mapping[str, str] = field(default_factory=dict)
    constants: tuple[str, ...] = ()
    scheduler: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name the network as sentences do."""
        return f"{self.package}' {self.network}" if self.package.endswith("s") else f"{self.package}'s {self.network}"
