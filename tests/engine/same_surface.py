"""Surface that a user of this checkout meets, to be compared before and after it is rebuilt.

Options of every command, tests that `reframe -l` lists of every suite on every system, pages with their sections and
the heads of their tables, and columns of every CSV.

    python tests/engine/same_surface.py --results samples/ --out before.json
    python tests/engine/same_surface.py --results samples/ --against before.json    # exit code 1 if anything is missing
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 600
SCRIPTS = ("ci/nightly", "ci/gpu", "ci/weekly", "ci/test", "ci/cluster")
NO_TESTS = ("__init__.py", "launcher.py", "calibrate.py", "against.py")


def run(command: Sequence[str]) -> str:
    """The output of a command that may fail, in which case what it says belongs to the surface, too."""
    environment = os.environ | {
        "PATH": f"{ROOT}/ci/bin:{ROOT}/.venv/bin:{os.environ['PATH']}",
        "RFM_CONFIG_FILES": str(ROOT / "systems" / "settings.py"),
        "COLUMNS": "120",
    }
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    return ended.stdout + ended.stderr


def options(command: Sequence[str]) -> dict[str, list[str]]:
    """The options of a command and of all below it."""
    text = run([*command, "--help"])
    below = re.findall(r"^│ ([a-z][\w-]*)  ", text.partition("─ Commands ─")[2], re.MULTILINE)
    found = {" ".join(command): sorted(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", text)))}
    for name in below:
        found |= options([*command, name])
    return found


def listed(suite: Path, system: str) -> list[str]:
    """The tests of a suite, by name and parameters; without ReFrame's hashes."""
    text = run(["reframe", "-c", str(suite), "--system", system, "-l"])
    tests = re.findall(r"^\s*- (.+?)(?: /[0-9a-f]+)?(?: \[.*)?$", text, re.MULTILINE)
    return sorted(set(tests)) or [line for line in text.splitlines() if line.strip()][-1:]


class Heads(HTMLParser):
    """Titles of a page's sections, and the head of each table."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("h1", "h2", "h3", "th"):
            self.inside = tag
            self.found.append(f"{tag} ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self.inside:
            self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.found[-1] += " ".join(data.split())


def pages(results: Path) -> dict[str, list[str]]:
    """Heads of all pages, and columns of all CSVs."""
    with tempfile.TemporaryDirectory() as folder:
        run([sys.executable, "-m", "reports", "build", "--results", str(results), "--out", folder])
        found = {}
        for page in sorted(Path(folder).rglob("*.html")):
            heads = Heads()
            heads.feed(page.read_text())
            found[page.name] = heads.found
        for table in sorted(Path(folder).rglob("*.csv")):
            with table.open() as file:
                found[f"data/{table.name}"] = next(csv.reader(file), [])
        return found


def surface(results: Path | None, only: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if "options" in only:
        found |= options(["par4d"])
        for script in SCRIPTS:
            found |= options([script])
    if "tests" in only:
        systems = sorted(path.stem for path in (ROOT / "systems").glob("*.yaml"))
        for suite in sorted((ROOT / "suites").glob("*.py")):
            for system in systems if suite.name not in NO_TESTS else ():
                found[f"{suite.name} on {system}"] = listed(suite, system)
    if "pages" in only and results:
        found |= pages(results)
    return found


def differences(before: dict[str, list[str]], after: dict[str, list[str]]) -> list[str]:
    """Entries now missing (-) and new ones (+)."""

    def only(here: Iterable[str], there: Iterable[str], sign: str, name: str) -> list[str]:
        return [f"{sign} {name}: {one}" for one in dict.fromkeys(here) if one not in set(there)]

    found = []
    for name in before | after:
        old, new = before.get(name, []), after.get(name, [])
        found += only(old, new, "-", name) + only(new, old, "+", name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="a folder of results whose pages are looked at")
    parser.add_argument(
        "--only", nargs="+", default=["options", "tests", "pages"], choices=["options", "tests", "pages"]
    )
    parser.add_argument("--out", type=Path, help="write what is found here")
    parser.add_argument("--against", type=Path, help="compare with what was found before")
    given = parser.parse_args()
    found = surface(given.results, given.only)
    if given.out:
        given.out.write_text(json.dumps(found, indent=1))
    if not given.against:
        return 0
    differing = differences(json.loads(given.against.read_text()), found)
    sys.stdout.write("\n".join(differing or [f"nothing differs in {len(found)} places"]) + "\n")
    return any(line.startswith("-") for line in differing)


if __name__ == "__main__":
    sys.exit(main())
