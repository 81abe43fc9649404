"""Each command of a README has a row that says how it is run, and ci/weekly runs it so, in order."""

import os
import time
from itertools import chain
from pathlib import Path

import pytest
from test_house import READMES

import readme_commands
from engine.errors import UsageError
from readme_commands import FAILED, PASSED, SKIPPED, TOO_LATE, Ran

ROOT = Path(__file__).parents[2]
FOREVER = float("inf")


def project(folder: Path, readme: str, table: str) -> Path:
    """A project with this README and these rows of it."""
    (folder / "README.md").write_text(readme)
    (folder / "ci").mkdir(exist_ok=True)
    (folder / readme_commands.TABLE).write_text(f"README.md:\n{table}")
    return folder


def run(folder: Path, ends: float = FOREVER) -> list[Ran]:
    return list(readme_commands.run(folder, folder / "log", {}, ends))


@pytest.fixture(scope="module")
def there() -> dict[str, list[str]]:
    """The commands of this project's READMEs."""
    return readme_commands.readmes(ROOT)


def test_each_command_of_each_readme_has_a_row_and_each_row_a_command(there: dict[str, list[str]]) -> None:
    assert {*there} == {str(file.relative_to(ROOT)) for file in READMES}
    assert all(there.values())
    assert readme_commands.faults(readme_commands.table(ROOT), there) == []


BLOCKS = [
    "\n    {}\n",
    "\n\t{}\n",
    "\n```\n{}\n```\n",
    "\n```bash\n{}\n```\n",
    "\n~~~ sh\n{}    # as usual\n~~~\n",
    "\n```text\nnone\n```\n```\n{}\n```\n",
    "\n* a list\n\n    {} \\\n",
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_new_command_of_a_readme_has_no_row(block: str) -> None:
    text = (ROOT / "reports" / "README.md").read_text() + block.format("par4d train --model planted")
    planted = {"reports/README.md": readme_commands.commands(text)}
    (fault,) = readme_commands.faults({name: readme_commands.table(ROOT)[name] for name in planted}, planted)
    assert fault.startswith("reports/README.md ")
    assert "`par4d train --model planted" in fault


def test_a_row_whose_command_is_gone_or_elsewhere_is_a_fault(there: dict[str, list[str]]) -> None:
    rows = readme_commands.table(ROOT)
    for name, (first, *others) in there.items():
        assert any(first in one for one in readme_commands.faults(rows, there | {name: others}))
        assert readme_commands.faults(rows, there | {name: [*others, first]})
    assert readme_commands.faults(rows, {name: there[name] for name in there if name != "README.md"})


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("{command: ls, how: dry, minutes: 1}", "why"),
        ("{command: ls, how: not run}", "why"),
        ("{command: ls, how: sized down, why: large, minutes: 1}", "run"),
        ("{command: ls, how: as it stands, run: ls -l, minutes: 1}", "run"),
        ("{command: ls, how: as it stands}", "minutes"),
        ("{command: ls, how: as it stands, minutes: 1, codes: [0, 2]}", "says"),
        ("{command: ls, how: somehow, minutes: 1}", "how"),
        ("{command: ls, how: as it stands, minutes: .inf}", "minutes"),
        ("ls", "README.md"),
        ("{", "YAML"),
    ],
)
def test_a_row_that_is_not_whole_is_refused_by_name(row: str, named: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=named) as refused:
        readme_commands.table(project(tmp_path, "    ls\n", f"- {row}\n"))
    assert str(refused.value).count("\n") == 0


SHELL = [
    ("    ls  # a file's\n        and more\n", ["ls", "and more"]),
    (
        """    echo 'a # b' a#b "# c"  \\\n        --option    # that\n    # nothing\n""",
        ["""echo 'a # b' a#b "# c" --option"""],
    ),
    ("    for one in 1 2; do   # each\n        echo $one\n    done\n\n", ["for one in 1 2; do\necho $one\ndone"]),
    ('    echo "two\n    lines"\n', ['echo "two\nlines"']),
    ("\nWords\n    go on.\n", []),
    ("\n```python\nprint(1)\n```\n", []),
]


@pytest.mark.parametrize(
    ("text", "commands"), [*SHELL, ("".join(text for text, _ in SHELL), list(chain(*(read for _, read in SHELL))))]
)
def test_commands_are_read_as_a_shell_reads_them(text: str, commands: list[str]) -> None:
    assert readme_commands.commands(f"\n{text}") == commands


def test_rows_run_in_order_in_one_environment(tmp_path: Path) -> None:
    readme = "    export ONE=1 FOLDER=$PWD\n    echo $ONE >one\n    false\n    cat one two\n    ls absent\n"
    table = """
- {command: export ONE=1 FOLDER=$PWD, how: as it stands, minutes: 1}
- {command: echo $ONE >one, how: as it stands, minutes: 1}
- {command: "false", how: dry, why: a trial, minutes: 1, codes: [0, 1], says: $ false}
- {command: cat one two, how: sized down, run: 'test "$FOLDER" = "$PWD" && cat one', why: no two, minutes: 1}
- {command: ls absent, how: not run, why: there is none}
"""
    done = run(project(tmp_path, readme, table))
    assert [(ran.code, ran.outcome) for ran in done] == [(0, PASSED), (0, PASSED), (1, PASSED), (0, PASSED)]
    assert (tmp_path / "log").read_text().split("cat one\n")[-1] == "1\n"


def test_a_command_that_ends_otherwise_or_too_late_is_not_right(tmp_path: Path) -> None:
    readme = "    false\n    sleep 600\n    exit 2\n    echo no; exit 2\n    echo $BASHPID\n"
    table = """
- {command: "false", how: as it stands, minutes: 1}
- {command: sleep 600, how: as it stands, minutes: 0.002}
- {command: exit 2, how: as it stands, minutes: 1, codes: [2], says: nothing}
- {command: echo no; exit 2, how: as it stands, minutes: 1, codes: [2], says: "no"}
- {command: echo $BASHPID, how: as it stands, minutes: 1, after: "false"}
"""
    done = run(project(tmp_path, readme, table))
    assert [ran.code for ran in done] == [1, None, 2, 2, None]
    assert [ran.outcome for ran in done] == [FAILED, FAILED, FAILED, PASSED, SKIPPED]


LEFT_RUNNING = "    touch up\n    touch again\n    rm up\n    nonsense\n    sleep 600\n"
LEFT_ROWS = """
- {command: touch up, how: as it stands, minutes: 1, undo: rm up}
- {command: touch again, how: as it stands, minutes: 1, undo: mv again undone}
- {command: rm up, how: as it stands, minutes: 1, after: touch up}
- {command: nonsense, how: as it stands, minutes: 1, needs: [no-such-program]}
- {command: sleep 600, how: as it stands, minutes: 1}
"""


def test_what_a_command_has_left_running_is_ended(tmp_path: Path) -> None:
    folder = project(tmp_path, LEFT_RUNNING, LEFT_ROWS)
    assert {ran.lacks for ran in run(folder, time.monotonic())} == {TOO_LATE}
    assert not (folder / "up").exists()
    rows = readme_commands.run(folder, folder / "log", {}, FOREVER)
    up, again, down, nonsense = (next(rows) for _ in range(4))
    assert [one.outcome for one in (up, again, down, nonsense)] == [PASSED, PASSED, PASSED, SKIPPED]
    assert "no-such-program" in nonsense.lacks
    rows.close()  # as where a week breaks off
    assert (folder / "undone").exists()
    assert (folder / "log").read_text().count("$ rm up") == 1


ONLY_ROW = "- {command: touch one, how: as it stands, minutes: 1}\n"


def test_no_row_is_run_of_a_project_whose_table_is_wrong(tmp_path: Path) -> None:
    folder = project(tmp_path, "    touch one\n    touch two\n", ONLY_ROW)
    with pytest.raises(UsageError, match="touch two"):
        run(folder)
    assert not (folder / "one").exists()


@pytest.mark.parametrize(("need", "outcome"), [("root", SKIPPED if os.geteuid() else PASSED), ("sh", PASSED)])
def test_a_row_is_run_where_what_it_needs_is_there(tmp_path: Path, need: str, outcome: str) -> None:
    (ran,) = run(
        project(tmp_path, "    true\n", f'- {{command: "true", how: as it stands, minutes: 1, needs: [{need}]}}\n')
    )
    assert ran.outcome == outcome
    (late,) = run(project(tmp_path, "    true\n", '- {command: "true", how: as it stands, minutes: 1}\n'), 0.0)
    assert late.lacks == TOO_LATE
