"""The scripts in ci/: they parse, and say kindly what is missing."""

import os
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [
    "ci/setup",
    "ci/python",
    "ci/demo",
    "ci/test",
    "ci/cluster",
    "ci/gpu",
    "ci/peers",
    "ci/env.sh",
    "ci/bin/reframe",
    ".ci/run",
]


def bash(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project that was never set up."""
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_parses_and_is_executable_unless_it_is_sourced(script: str) -> None:
    assert bash(f"bash -n {script}", ROOT).returncode == 0
    assert os.access(ROOT / script, os.X_OK) == (script != "ci/env.sh")


def test_without_a_new_enough_python_setup_says_what_to_install(clone: Path) -> None:
    done = bash("ci/setup", clone, PAR4D_PYTHON="/bin/false")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "Par4D needs Python 3.11 or newer, which is not on PATH: install it, or set PAR4D_PYTHON to it."
    )


def test_setup_leaves_the_environment_of_another_copy_alone(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "par4d-installed").write_text("/somewhere/else\n")
    (clone / ".venv").symlink_to(other)
    done = bash("ci/setup", clone)
    assert done.returncode == 1
    assert "is a link to the environment of another copy, which would be lost: remove the link." in done.stderr
    assert (other / "par4d-installed").exists()


def test_sourcing_a_broken_environment_fails_and_leaves_the_shell_alive(clone: Path) -> None:
    done = bash(". ci/env.sh; echo status $?, alive", clone, PAR4D_PYTHON="/bin/false")
    assert done.stdout.strip() == "status 1, alive"
    assert "is not ready" in done.stderr


def test_in_a_sourced_environment_reframe_is_the_one_that_knows_the_systems(clone: Path) -> None:
    """Whatever `reframe` the virtual environment has, here one that is ready made."""
    (clone / "ci" / "setup").write_text("")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "activate").write_text(f"PATH={clone}/.venv/bin:$PATH")
    (clone / ".venv" / "bin" / "reframe").write_text("#!/bin/sh")
    (clone / ".venv" / "bin" / "reframe").chmod(0o755)
    done = bash(". ci/env.sh && command -v reframe", clone)
    assert done.stdout.strip() == str(clone / "ci" / "bin" / "reframe")


TOOL = """#!/bin/sh
case "$*" in *pytest*)
    printf '%s\\n' "$SAID"
    case "$SAID" in *failed*) exit 1 ;; esac
esac
"""
SKIPPED = """
SKIPPED [12] tests/reports/test_report_browser.py:60: no Chromium is installed
SKIPPED [2] tests/suites/test_cluster.py:126: a virtual cluster takes root on Linux
SKIPPED [1] tests/suites/test_cluster.py:126: a virtual cluster takes root on Linux
"""


def plant_tools(clone: Path, tool: str, peers: str = "#!/bin/sh\n") -> None:
    """What ci/test calls, as scripts."""
    (clone / "ci" / "setup").write_text("")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "activate").write_text(f"PATH={clone}/.venv/bin:$PATH")
    for name in ("ruff", "mypy", "python", "reframe"):
        (clone / ".venv" / "bin" / name).write_text(tool)
        (clone / ".venv" / "bin" / name).chmod(0o755)
    (clone / "ci" / "bin" / "reframe").unlink()
    (clone / "ci" / "peers").write_text(peers)


@pytest.mark.parametrize(
    ("said", "verdict", "last"),
    [
        ("9 passed", "all passed", None),
        (f"{SKIPPED}9 passed, 15 skipped", "all that could be checked passed", "takes root on Linux"),
        (f"{SKIPPED}1 failed", "failed: tests, peers", "takes root on Linux"),
    ],
    ids=["all", "skipped", "failed"],
)
def test_what_could_not_be_checked_is_said_at_the_end(clone: Path, said: str, verdict: str, last: str | None) -> None:
    plant_tools(clone, TOOL)
    done = bash("ci/test", clone, SAID=said, CI="")
    assert done.returncode == (1 if "failed" in verdict else 0), done.stderr
    end = done.stdout.split("===")[-1].splitlines()
    assert end[0].endswith(verdict)
    if last is None:
        assert end[1:] == []
    else:
        assert end[2] == "What could not be checked on this machine:"
        assert end[3] == "    tests/reports/test_report_browser.py: 12 skipped, no Chromium is installed"
        assert end[-1].endswith(last)


GUESTS_SKIP = """#!/bin/sh
case "$*" in
    *"--ignore tests/engine/test_libraries.py"*) echo 9 passed ;;
    *"-m not weekly tests/engine/test_libraries.py"*)
        echo "SKIPPED [5] tests/engine/test_libraries.py:79: $(cat failed)" ;;
esac
"""
NO_NETWORK = """#!/bin/sh
sleep 1
echo "$*: no network" | tee failed
exit 1
"""


def test_peers_that_could_not_be_installed_are_said_with_the_reason(clone: Path) -> None:
    """Their tests begin after the installation has ended, and skip."""
    plant_tools(clone, GUESTS_SKIP, NO_NETWORK)
    done = bash("ci/test", clone, CI="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        "What could not be checked on this machine:",
        "    tests/engine/test_libraries.py: 5 skipped, megatron-core deepspeed: no network",
    ]


def test_no_other_package_installs_a_script_of_ours() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    theirs = {
        point.name
        for package in distributions()
        if package.name != project["name"]
        for point in package.entry_points
        if point.group == "console_scripts"
    }
    assert "reframe" in theirs
    assert not theirs & set(project.get("scripts", {}))
