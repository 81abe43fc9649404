"""No room but the grid's knows the axes by name, so that a new one has to be written down there alone."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import LONG_S

from engine.grid import Axis

PROJECT = Path(__file__).parents[2]
ALLOWED = {
    "engine/grid.py": "what an axis is, and its roles",
    "engine/layers/embedding.py": "Algorithm 1",
    "engine/layers/loss.py": "Algorithm 1",
    "engine/layers/norm.py": "Algorithm 1",
    "engine/planning/equations.py": "Algorithm 1's equations",
    "engine/planning/grids.py": "which grids are planned with: those that the equations know",
    "engine/planning/fewest.py": "the same",
    "engine/peers/known/": "which grid a known system is",
    "engine/peers/compare.py": "the same",
}
NAMES = {axis.value for axis in Axis}
MADE = ("Grid", "Grid.parse", "Coords", "grid.rank")


def named(source: str) -> Iterator[str]:
    """Where a program names an axis: grid.z, Axis.DATA, Grid(z=2), Grid(1, 2), replace(grid, z=2), ("x", "y", "z")."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=of, attr=name) if name.lower() in NAMES:
                found = name in ("z", "Z") or _of_a_grid(of)
            case ast.Call(keywords=keywords) if NAMES & {keyword.arg for keyword in keywords}:
                found = _of_a_grid(node) or any(map(_of_a_grid, node.args))
            case ast.Call(func=ast.Name("Grid" | "Coords"), args=[_, _, *_]):
                found = True
            case ast.Dict(keys=several) | ast.Tuple(elts=several) | ast.List(elts=several) | ast.Set(elts=several):
                found = len(NAMES & {one.value for one in several if isinstance(one, ast.Constant)}) > 2
            case _:
                continue
        if found:
            yield ast.unparse(node)


def _of_a_grid(node: ast.AST) -> bool:
    """Whether it is a grid or coordinates, by how it is written."""
    if isinstance(node, ast.Call):
        return ast.unparse(node.func) in MADE
    return ast.unparse(node).rpartition(".")[2].endswith(("grid", "coords", "Axis"))


def test_no_other_room_names_an_axis() -> None:
    rooms = ("engine", "suites", "systems", "reports", "ci")
    texts = {path: path.read_text() for room in rooms for path in (PROJECT / room).rglob("*.py")}
    read = {
        path: text for path, text in texts.items() if any(word in text for word in ("rid", "Axis", "coords", '"z"'))
    }
    found = {path.relative_to(PROJECT).as_posix(): hits for path, text in read.items() if (hits := list(named(text)))}
    assert {name: hits for name, hits in found.items() if not name.startswith(tuple(ALLOWED))} == {}
    unused = {allowed for allowed in ALLOWED if not any(name.startswith(allowed) for name in found)}
    assert unused == set(), "a room that names no axis any more is no exception"


@pytest.mark.parametrize(
    "line",
    [
        "grid.x * 2",
        "self._comm.grid.data > 1",
        "plan.coords.y",
        "(Axis.Z, Axis.DATA)",
        "Grid(x=2)",
        "Grid(2, 1, 2)",
        "Grid.parse(text).data",
        "grid.rank(x=1)",
        "replace(grid, data=2)",
        "layout.z",
        "{'x': 1, 'y': 2, 'z': 3}",
    ],
)
def test_a_name_is_found_wherever_it_stands(line: str) -> None:
    assert list(named(line))
    assert not list(named('"""Over z and data."""; layout.data; overlap.data; line.x; replace(line, x=1); grid[axis]'))


def test_an_axis_that_is_added_to_the_grid_alone_trains_the_same_numbers() -> None:
    words = [sys.executable, str(Path(__file__).with_name("planted_axes.py"))]
    path = os.pathsep.join((str(PROJECT), str(Path(__file__).parent)))
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, timeout=LONG_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
