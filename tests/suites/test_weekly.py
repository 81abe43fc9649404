"""ci/weekly: when a part is fine, how a week is taken up again, and that nothing outlives it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import test_libraries
from git_folder import committed
from waiting import LONG_S, heard

import readme_commands
from weekly import FINE, MARK, UNKNOWN, WRONG

ROOT = Path(__file__).parents[2]


def week(folder: Path, peers: str, *words: str, part: str = "a", **more: str) -> "subprocess.Popen[str]":
    """A part of the week of a project that has this ci/peers."""
    script = folder / "ci" / "peers"
    script.parent.mkdir(exist_ok=True)
    script.write_text(f"#!/bin/sh\n{peers}\n")
    script.chmod(0o755)
    own = shutil.copy(ROOT / "ci" / "weekly.py", script.parent)
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'ci'}"} | more
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plugins load longest
    command = [sys.executable, "-P", own, "--part", part, *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def project(folder: Path, test: str) -> None:
    """A project with two files of tests, of which the first leaves some to the week."""
    for name, words in (("test_a.py", f"# pytest.{MARK}\n{test}"), ("test_b.py", "def test(): assert 0")):
        file = folder / "tests" / "a" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(words)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -q\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_jobs_of_an_ended_week_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    project(tmp_path, "")
    with week(tmp_path, "exec 3>pipe\nprintf . >&3\nexec sleep 36000") as running:
        assert heard(reader) == b".", "it has begun"
        running.send_signal(number)
        assert running.wait(LONG_S) == UNKNOWN
        assert heard(reader) == b"", "nobody holds the pipe"
    os.close(reader)


WEEKS = [
    ("exit 0", "def test(): pass", FINE, {"passed": 1}),
    ("exit 0", "def test(): pass\ndef test_2(): assert 1.0 == 1.03", WRONG, {"passed": 1, "failed": 1}),
    ("exit 0", "def test():\n    print('\\x1b[31m red \\x00')\n    assert 0", WRONG, {"failed": 1}),
    ("exit 1", "import pytest\ndef test(): pytest.skip('not installed')", UNKNOWN, {"skipped": 1}),
    ("exit 0", "import nothing_of_that_name", UNKNOWN, {"error": 1}),
    ("exit 0", "", UNKNOWN, {}),
    ("exit 0", "import time\ndef test(): time.sleep(36000)", UNKNOWN, {}),
]


@pytest.mark.parametrize(
    ("peers", "test", "code", "counts"), WEEKS, ids=["fine", "unequal", "colored", "missing", "broken", "empty", "slow"]
)
def test_a_part_is_fine_only_if_all_of_it_was_tested(
    tmp_path: Path, peers: str, test: str, code: int, counts: dict[str, int]
) -> None:
    project(tmp_path, test)
    with week(tmp_path, peers, "--minutes", "0.05" if "sleep" in test else "60") as running:
        _, err = running.communicate(timeout=LONG_S)
    assert running.returncode == code, err
    kept = json.loads((tmp_path / "results" / "weekly" / "a.json").read_text())
    assert (kept["part"], kept["code"], kept["tests"]) == ("a", code, counts)
    (case,) = ElementTree.parse(tmp_path / "results" / "weekly.xml").iter("testcase")
    assert [element.tag for element in case] == {FINE: [], WRONG: ["failure"], UNKNOWN: ["error"]}[code]


def test_a_part_in_a_clone_has_the_clones_code_and_the_versions_that_it_is_for(tmp_path: Path) -> None:
    names = ("PYTHONPATH", "PAR4D_TORCH", "PAR4D_VERSIONS")
    for script in ("setup", "test"):
        file = tmp_path / "ci" / script
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"#!/bin/sh\necho {' '.join(f'${{{name}-unset}},' for name in names)}\n")
        file.chmod(0o755)
    committed(tmp_path)
    with week(tmp_path, "exit 1", part="lowest", PAR4D_TORCH="torch==0", PAR4D_VERSIONS="newest") as running:
        running.communicate(timeout=LONG_S)
    assert running.returncode == FINE
    log = (tmp_path / "results" / "weekly" / "lowest.log").read_text()
    assert log.splitlines() == [", , lowest,"] * 2


ROWS = [
    ("command: cat a, how: as it stands, minutes: 1", FINE, {"passed": 2}),
    ("command: cat a, how: as it stands, minutes: 1, codes: [3], says: x", WRONG, {"passed": 1, "failed": 1}),
    ("command: cat a, how: as it stands, minutes: 1, needs: [no-such-thing]", UNKNOWN, {"passed": 1, "skipped": 1}),
]


@pytest.mark.parametrize(("second", "code", "counts"), ROWS, ids=["fine", "wrong", "missing"])
def test_the_commands_of_readmes_run_in_a_clone(tmp_path: Path, second: str, code: int, counts: dict[str, int]) -> None:
    (tmp_path / "ci").mkdir()
    (tmp_path / "README.md").write_text('    test "$RFM_CONFIG_FILES" = "" >a\n    cat a    # of before\n')
    rows = f"""- {{command: 'test "$RFM_CONFIG_FILES" = "" >a', how: as it stands, minutes: 1}}\n- {{{second}}}\n"""
    (tmp_path / readme_commands.TABLE).write_text(f"README.md:\n{rows}")
    committed(tmp_path)
    with week(tmp_path, "exit 1", part="readmes", RFM_CONFIG_FILES="/of/this/tree") as running:
        _, err = running.communicate(timeout=LONG_S)
    assert running.returncode == code, err
    kept = json.loads((tmp_path / "results" / "weekly" / "readmes.json").read_text())
    assert (kept["code"], kept["tests"]) == (code, counts)
    assert not (tmp_path / "a").exists()


def test_a_week_is_taken_up_again_where_its_commit_is_the_same(tmp_path: Path) -> None:
    def run(*words: str) -> int:
        with week(tmp_path, "exit 0", *words) as running:
            running.communicate(timeout=LONG_S)
        return (tmp_path / "ran").read_text().count("x")

    project(tmp_path, "def test():\n    with open('ran', 'a') as file: file.write('x')")
    (tmp_path / ".gitignore").write_text("results\nran\nci\n__pycache__\n.pytest_cache\n")
    committed(tmp_path)
    assert [run(), run("--resume"), run(), run("--resume")] == [1, 1, 2, 2]
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q -s\n")
    assert [run("--resume"), run("--resume")] == [3, 4], "nobody knows which changes there were"
    committed(tmp_path)
    assert [run("--resume"), run("--resume")] == [5, 5]


def test_the_week_tests_every_library_that_has_pins() -> None:
    """And by the same file as ci/test, which leaves the marker out."""
    assert MARK in Path(test_libraries.__file__).read_text()
    pins = {file.stem for file in (ROOT / "engine" / "peers" / "external").glob("*.txt")}
    every = {str(one.id): bool(one.marks) for one in test_libraries.contests()}
    assert {name for name in pins if any(one.startswith(name) for one in every)} == pins
    each_change = [one for one, weekly in every.items() if not weekly]
    assert {name for name in pins if any(one.startswith(name) for one in each_change)} == {"megatron-core", "deepspeed"}
