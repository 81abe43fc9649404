"""Prints the oldest versions that pyproject.toml allows, as constraints of pip. With `torch`, prints the version of
PyTorch that this Python has, or what is wrong with it.

No package is needed, so that ci/setup can ask before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any, cast

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
BOUNDED = re.compile(r"([\w-]+)>=([\d.]+)")


def project() -> Mapping[str, Any]:
    """Return the project's table of pyproject.toml."""
    return cast("Mapping[str, Any]", tomllib.loads(PROJECT.read_text())["project"])


def bounds() -> dict[str, str]:
    """Return the oldest version of each package that Par4D, its extras and its tests take."""
    needed = chain(project()["dependencies"], *project()["optional-dependencies"].values())
    return {found[1]: found[2] for one in needed if (found := BOUNDED.fullmatch(one))}


def torch_lacking() -> str | None:
    """Say which PyTorch this Python has where it has none, or one that is too old."""
    oldest = bounds()["torch"]
    try:
        found = version("torch")
    except PackageNotFoundError:
        return f"no PyTorch, and Par4D needs {oldest} or newer"
    if _numbers(found) >= _numbers(oldest):
        return None
    return f"PyTorch {found}, and Par4D needs {oldest} or newer"


def _numbers(version: str) -> tuple[int, ...]:
    """Return major and minor number: clusters have versions such as 2.9.0a0+50eac811a6."""
    return tuple(map(int, version.split(".")[:2]))


def main() -> int:
    if sys.argv[1:] == ["torch"]:
        why = torch_lacking()
        sys.stdout.write(f"{why or version('torch')}\n")
        return int(why is not None)
    sys.stdout.writelines(f"{name}=={oldest}\n" for name, oldest in bounds().items())
    return 0


if __name__ == "__main__":
    sys.exit(main())
