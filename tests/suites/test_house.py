"""The house stays in order: short files, no circles, docstrings that begin with a noun or verb, and READMEs."""

import ast
import re
import subprocess
from pathlib import Path

import grimp
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from waiting import LONG_S

ROOT = Path(__file__).parents[2]
ROOMS = ("engine", "suites", "systems", "reports", "ci", "tests")
LONGEST, LONGEST_TEST = 400, 600
WORDS, WORDS_OF_A_ROOM = 900, 1500
LARGEST_BYTES = 10**6
PRONOUN = r"(It|They|These|This|That|Those|Who|What|Which|Of|So)\b"
READMES = [ROOT / "README.md", *(ROOT / room / "README.md" for room in ROOMS if room != "tests")]


def test_no_file_is_longer_than_a_reader_takes_in() -> None:
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    assert lines
    most = {name: LONGEST_TEST if name.startswith("tests/") else LONGEST for name in lines}
    assert {name: count for name, count in lines.items() if count > most[name]} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even where only a type checker follows them."""
    graph = grimp.build_graph("engine", "reports", "suites", "systems", cache_dir=None)
    modules = sorted(graph.modules)
    number = {module: place for place, module in enumerate(modules)}
    arrows = [(number[one], number[other]) for one in modules for other in graph.find_modules_directly_imported_by(one)]
    assert len(arrows) > len(modules)
    matrix = coo_array((np.ones(len(arrows)), tuple(zip(*arrows, strict=True))), shape=(len(modules), len(modules)))
    _, components = connected_components(matrix, connection="strong")
    circles = [np.flatnonzero(components == one) for one in np.flatnonzero(np.bincount(components) > 1)]
    found = [{modules[place] for place in circle} for circle in circles]
    assert found == []


def test_no_docstring_of_the_product_begins_with_a_pronoun() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {node.name}"
        for room in ROOMS
        if room != "tests"
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and re.match(PRONOUN, ast.get_docstring(node) or "")
    }
    assert found == set()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no clone of the repository")
def test_no_file_is_larger_than_a_clone_should_carry() -> None:
    """Such as a checkpoint."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S, check=True
    )
    sizes = {name: (ROOT / name).stat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    assert sizes
    assert {name: size for name, size in sizes.items() if size > LARGEST_BYTES} == {}


def test_each_readme_is_read_in_minutes() -> None:
    words = {path.parent: len(path.read_text().split()) for path in READMES}
    assert words.pop(ROOT) <= WORDS
    assert {room: count for room, count in words.items() if count > WORDS_OF_A_ROOM} == {}


def test_links_of_every_readme_lead_somewhere() -> None:
    for readme in READMES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", readme.read_text()):
            path = (readme.parent / target).resolve() if target else readme
            assert path.exists(), f"{readme.relative_to(ROOT)} links {target}"
            assert not anchor or anchor in _anchors(path), f"{readme.relative_to(ROOT)} links {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """As GitHub and GitLab make them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
