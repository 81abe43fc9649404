"""The `reframe` command: the action it adds, and what it refuses."""

import os
import re
import textwrap
from pathlib import Path

import pytest
from running import project, reframe, succeed

from engine.errors import UsageError
from suites import launcher

OLD = """
    import reframe as rfm

    @rfm.simple_test
    class Old(rfm.RunOnlyRegressionTest):
        valid_systems, valid_prog_environs, executable = ["*"], ["*"], "true"
        @run_before("run")
        def name_variables(self):
            self.variables = {"A": "1"}
        @sanity_function
        def is_fine(self):
            return True
"""


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a user who has set nothing; what the launcher sets is undone."""
    for name in (*launcher.CONFIGURATION, "RFM_SYSTEM"):
        monkeypatch.setenv(name, "")


def test_on_this_machine_the_action_is_to_run_with_our_settings() -> None:
    assert launcher.complete(["-c", "x.py", "--system", "local"]) == ["-c", "x.py", "--system", "local", "--run"]
    assert os.environ["RFM_CONFIG_FILES"] == str(launcher.SETTINGS)


@pytest.mark.parametrize("system", [["--system", "frontier"], ["--system=frontier"], ["--system=frontier:gpu"]])
def test_on_another_machine_it_says_so_in_one_sentence_and_runs_dry(
    system: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert launcher.complete(["-c", "x.py", *system])[-1] == "--dry-run"
    said = capsys.readouterr().err
    assert "is not frontier" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "action", ["-r", "--run", "-l", "-lC", "-L", "-rv", "-vr", "--dry", "--list-tags", "--show-config=x", "-V"]
)
def test_an_action_that_is_given_is_respected(action: str) -> None:
    arguments = ["-c", "x.py", "--system", "frontier", action]
    assert launcher.complete(arguments) == arguments


@pytest.mark.parametrize(
    "option", [["-v"], ["-q"], ["-R"], ["--nocolor"], ["-n", "larger"], ["--prefix=/r"], ["-S", "x=1"]]
)
def test_other_options_are_no_action(option: list[str]) -> None:
    assert launcher.complete(["--system", "local", *option])[-1] == "--run"


def test_a_configuration_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFM_CONFIG_FILES", "/site/settings.py")
    assert launcher.complete(["--system", "theirs"]) == ["--system", "theirs", "--run"]
    assert os.environ["RFM_CONFIG_FILES"] == "/site/settings.py"


def test_an_unknown_system_is_told_the_nearest_names(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean frontier"):
        launcher.complete(["--system", "frontir"])
    run = reframe(tmp_path, "-c", "suites/peak.py", "--system", "frontir")
    assert run.code == 2
    assert re.fullmatch(r".*'frontir': .*frontier\?\n", run.err)


def test_a_bad_system_file_is_told_in_one_sentence_whatever_system_is_asked_for(tmp_path: Path) -> None:
    copy = project(tmp_path)
    (copy / "systems" / "broken.yaml").write_text("title: a machine")
    run = reframe(tmp_path / "a", "-c", "suites/peak.py", "--system", "local", root=copy)
    assert run.code == 2
    assert run.err.count("\n") == 1
    assert re.search(f"{copy}/systems/broken.yaml .*at device", run.err)


def test_every_action_of_reframe_is_known(tmp_path: Path) -> None:
    usage = reframe(tmp_path, "--help").out
    (group,) = re.findall(r"\((--ci-generate [^)]*)\)", usage)
    actions = re.findall(r"(?:^|\|)\s*(-\S+)", group)
    assert {"-r", "--dry-run", "--show-config"} <= set(actions)
    assert len(actions) == group.count("|") + 1
    for action in actions:
        assert launcher.complete([action]) == [action]


@pytest.mark.parametrize("action", [["-r"], ["--dry-run"], ["-l"], ["-r", "-qq"]])
def test_a_selection_that_matches_no_test_is_an_error(tmp_path: Path, action: list[str]) -> None:
    run = reframe(tmp_path, "-c", "suites/peak.py", "--system", "local", "-n", "nosuchtest", *action)
    assert run.code == 1
    assert "no test matches" in run.out + run.err


def test_a_log_that_can_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "reframe.log").symlink_to("/dev/full")
    run = reframe(tmp_path, "-c", "suites/weak_scaling.py", "--system", "frontier", "-t", "nightly", "-l")
    said = run.out + run.err
    assert "night-32-gpt-5b" in said
    assert said.count(f"{tmp_path / 'reframe.log'} can't be written") == 1
    assert "Traceback" not in said


def test_listing_lists_and_runs_nothing(tmp_path: Path) -> None:
    run = reframe(tmp_path, "-c", "suites/weak_scaling.py", "--system", "frontier", "-t", "nightly", "-l")
    assert run.code == 0
    assert "night-32-gpt-5b" in run.out
    assert "night-unet-32-unet-250m" in run.out
    assert "Found 2 check(s)" in run.out
    assert re.search(r"2 tests,.*\b0\.5 node-hours:.*\b4 nodes,.*\b7\b", run.out)
    figures = re.findall(
        r"^par4d (Table \w+).*: 1 test, .* ([\d.]+) node-hours with --repeat 3$", run.out, re.MULTILINE
    )
    assert figures == [("Table III", "0.8"), ("Table II", "0.6")]
    assert not (tmp_path / "stage").exists()


def test_a_suite_that_uses_what_reframe_gives_up_is_warned_of_its_line(tmp_path: Path) -> None:
    suite = tmp_path / "old.py"
    suite.write_text(textwrap.dedent(OLD))
    run = succeed(tmp_path, "-c", str(suite), "--system", "local", "--dry-run")
    assert f"{suite}:9: WARNING" in run.out + run.err
