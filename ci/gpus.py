"""Prints whose GPUs this machine has, `cuda`, `rocm` or `none`, and which system it is, or `unknown`.

ci/setup and ci/peers ask before PyTorch is chosen, with PyYAML and pydantic alone: systems' files are read as all else
reads them. A login node has no GPU of its own, but its name tells. Of a file that can't be used a sentence tells; the
exit code is 2 where it is this machine's.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import systems  # noqa: E402, after its place is known
from systems.files import SystemFileError  # noqa: E402


def gpus_of(system: systems.System) -> str | None:
    """Return whose GPUs a system has, by the features of its partitions or else by the maker's name; None if none."""
    features = {feature for partition in system.partitions for feature in partition.features}
    if system.device.kind != "cuda":
        return None
    return "rocm" if "rocm" in features or ("AMD" in system.device.name and "cuda" not in features) else "cuda"


def systems_here(folder: Path = ROOT / "systems") -> Iterator[tuple[str, str]]:
    """Yield the maker of GPUs and the name of each system with GPUs that this machine is.

    A file that can't be used is reported on standard error. Raises SystemFileError where its `here` says that it is
    this machine's.
    """
    for file in systems.files(folder):
        try:
            system = systems.read(file)
        except SystemFileError as error:
            if systems.is_bad_here(file):
                raise
            sys.stderr.write(f"{error}\n")
            continue
        if system.is_here() and (whose := gpus_of(system)):
            yield whose, system.name


def gpus(devices: Path = Path("/dev")) -> str:
    """Return the maker of the GPUs that the kernel's drivers offer to this machine's processes."""
    if (devices / "kfd").exists():
        return "rocm"
    return "cuda" if (devices / "nvidiactl").exists() else "none"


def main() -> int:
    try:
        found = [*systems_here()] or [(gpus(), "unknown")]
    except SystemFileError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if len({whose for whose, _ in found}) > 1:
        sys.stderr.write(f"This machine is {' and '.join(name for _, name in found)} by `here` of systems' files.\n")
        return 2
    sys.stdout.write(" ".join(found[0]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
