"""Grid arithmetic, and that no other room names an axis."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from virtual_ranks import factorisations
from waiting import LONG_S

from engine.errors import UsageError
from engine.grid import HOLDING, REPLICATING, SHARDING, SPLITTING_FEATURES, SPLITTING_ROWS, Axis, Coords, Grid


def test_x_is_innermost_and_data_outermost() -> None:
    grid = Grid(x=2, y=3, z=5, data=7)
    assert grid.size == 210
    assert grid.rank(x=1) == 1
    assert grid.rank(y=1) == 2
    assert grid.rank(z=1) == 6
    assert grid.rank(data=1) == 30
    assert grid.coords(1 + 2 * 2 + 6 * 4 + 30 * 6) == Coords(1, 2, 4, 6)


def test_stages_stand_between_z_and_data_or_outside_both() -> None:
    usual, outermost = Grid(2, 1, 3, 5, pipe=7), Grid(2, 1, 3, 5, pipe=7, pipe_outermost=True)
    assert [usual.stride(axis) for axis in (Axis.PIPE, Axis.DATA)] == [6, 42]
    assert [outermost.stride(axis) for axis in (Axis.DATA, Axis.PIPE)] == [6, 30]
    assert outermost.coords(1 + 6 * 4 + 30 * 6) == Coords(x=1, data=4, pipe=6)
    assert Grid(2, pipe=3, pipe_outermost=True) == Grid(2, pipe=3), "one group has one order"


BOTH_ORDERS = [Grid(2, 1, 2, 3, pipe=2, pipe_outermost=outermost) for outermost in (False, True)]


@pytest.mark.parametrize("grid", [*factorisations((8,)), Grid(3, 2, 1, 2), *BOTH_ORDERS], ids=str)
def test_coords_and_rank_are_each_others_inverse_and_members_differ_on_one_axis(grid: Grid) -> None:
    for rank in range(grid.size):
        at = grid.coords(rank)
        assert grid.rank(**{axis: at[axis] for axis in Axis}) == rank
        for axis in Axis:
            members = grid.members(axis, rank)
            assert members[at[axis]] == rank
            assert [grid.coords(m)[axis] for m in members] == list(range(grid[axis]))
            others = [a for a in Axis if a is not axis]
            assert {tuple(grid.coords(m)[a] for a in others) for m in members} == {tuple(at[a] for a in others)}


def test_algorithm_1_splits_features_over_x_and_y_rows_over_z_and_data_and_shards_over_z() -> None:
    assert SPLITTING_FEATURES == (Axis.X, Axis.Y)
    assert (*SPLITTING_ROWS, SHARDING) == (Axis.Z, Axis.DATA, Axis.Z)
    assert (HOLDING, REPLICATING) == ((Axis.X, Axis.Y, Axis.Z), (Axis.DATA,))
    grid = Grid(2, 3, 5, 7)
    assert (grid.plane, grid.shards, grid.batch_split, grid.model_replicas) == (6, 5, 35, 7)
    assert Grid.replicated(7) == Grid(1, 1, 1, 7)


def test_positions_along_some_axes_count_ranks_in_their_order_whatever_the_others() -> None:
    grid = Grid(2, 1, 3, 2)
    positions = [grid.position(grid.coords(rank), SPLITTING_ROWS) for rank in range(grid.size)]
    assert positions == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_parse_reads_what_str_writes() -> None:
    assert Grid.parse("2x1x2x4") == Grid(2, 1, 2, 4)
    for text in ("8x1x16x256", "8x1x16x256p4", "8x1x16x256P4"):
        assert str(Grid.parse(text)) == text


@pytest.mark.parametrize("text", ["2x1x2", "2x1x2x0", "2x1x2x-1", "axbxcxd", "", "2x1x2x4x1", "2 x1x2x4", "02x1x1x1"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="such as 2x1x2x4"):
        Grid.parse(text)


def test_a_rank_or_coordinate_off_the_grid_is_refused() -> None:
    with pytest.raises(UsageError, match="ranks 0 to 3"):
        Grid(2, 2).coords(4)
    with pytest.raises(UsageError, match="from 0 to 1"):
        Grid(2, 2).rank(x=2)
    with pytest.raises(UsageError, match="at least one"):
        Grid(0)


PROJECT = Path(__file__).parents[2]
ALLOWED: dict[str, str] = {
    "engine/grid.py": "what an axis is, and its roles",
    "engine/tensor_mode.py": "which of them split what of a network",
    "engine/planning/equations.py": "Algorithm 1's equations",
    "engine/planning/grids.py": "which grids are planned with: those that the equations know",
    "engine/planning/plan.py": "the same",
    "engine/peers/compare.py": "the same",
}
NAMES = {axis.value for axis in Axis}
MADE = ("Grid", "Grid.parse", "Coords", "grid.rank")


def named(source: str) -> Iterator[str]:
    """Yield where a program names an axis: grid.z, Axis.DATA, Grid(z=2), Grid(1, 2), replace(grid, z=2), ("x", "y",
    "z").
    """
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


NO_AXIS: str = '"""Over z and data."""; layout.data; overlap.data; line.x; replace(line, x=1); grid[axis]'


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
    assert not list(named(NO_AXIS))


def test_an_axis_that_is_added_to_the_grid_alone_trains_the_same_numbers() -> None:
    words = [sys.executable, str(Path(__file__).with_name("planted_axes.py"))]
    path = os.pathsep.join((str(PROJECT), str(Path(__file__).parent)))
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": path}, timeout=LONG_S, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
