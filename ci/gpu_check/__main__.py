"""`ci/gpu`, and each of its parts in a process of its own: `python -m gpu_check inside PART DEVICE FILE`."""

import importlib.util
import sys

import bounds

NEEDED = ("torch", "numpy", "pydantic", "cyclopts", "yaml")


def main() -> int:
    """Run the command, or the part that it names; returns the exit code."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        sys.stderr.write(
            f"gpu: {sys.executable} has no {', '.join(missing)}: name the wheels, and those that they depend on, on "
            "the command line, as in `ci/gpu wheels/*.whl`, or set PAR4D_PYTHON to a Python that has them.\n"
        )
        return 2
    if why := bounds.torch_lacking():
        sys.stderr.write(f"gpu: {sys.executable} has {why}: set PAR4D_PYTHON to a Python with one.\n")
        return 2
    try:
        from gpu_check import command, inside
    except ModuleNotFoundError as error:  # what one of them depends on
        sys.stderr.write(f"gpu: {error}: name its wheel on the command line too.\n")
        return 2
    return inside.main(*sys.argv[2:]) if sys.argv[1:2] == ["inside"] else command.main()


if __name__ == "__main__":  # a rank that is started anew imports this file
    sys.exit(main())
