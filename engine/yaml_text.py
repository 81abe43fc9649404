"""YAML, read by libyaml where PyYAML was built with it: the same data in a tenth of the time."""

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from engine.errors import UsageError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Loader(_Base):
    """Loader that refuses a key that is given twice in one place, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        seen = set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise ConstructorError(problem=f"two keys {key.value!r} in one place", problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse(text: str) -> Any:
    """Read the text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=Loader)


def read(path: Path) -> Any:
    """Read a file. Raises UsageError for one that can't be read or isn't YAML."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from None
