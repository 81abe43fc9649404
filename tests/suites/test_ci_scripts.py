"""Scripts of ci/: they parse, refuse what they don't know, and say kindly what is missing."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import distributions
from itertools import chain
from pathlib import Path

import pytest
import yaml
from running import call
from waiting import LONG_S

import bounds
import gpus
from engine.peers import registry

ROOT = Path(__file__).parents[2]
SOURCED = ["ci/env.sh", "ci/usage.sh", "ci/stage"]
FILES = [*sorted((ROOT / "ci").iterdir()), ROOT / "ci" / "bin" / "reframe", ROOT / ".ci" / "run"]
SCRIPTS = [str(file.relative_to(ROOT)) for file in FILES if file.is_file() and b"bash" in file.read_bytes()[:25]]


def bash(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return call(["bash", "-c", command], folder, **environment)


def sourced(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command after ci/env.sh in the same shell."""
    return bash(f". ci/env.sh; {command}", folder, **environment)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A project that was never set up."""
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "readers").mkdir()
    for name in READERS:
        (tmp_path / "readers" / name).symlink_to(Path(yaml.__file__).parents[1] / name)
    return tmp_path


@pytest.mark.parametrize("script", [*SCRIPTS, *SOURCED])
def test_every_script_parses_and_is_executable_unless_it_is_sourced(script: str) -> None:
    assert bash(f"bash -n {script}", ROOT).returncode == 0
    assert os.access(ROOT / script, os.X_OK) == (script not in SOURCED)


@pytest.mark.parametrize("name", ["$5", 'a"b', "a:b"])
def test_setup_refuses_a_folder_that_its_tools_would_read_otherwise(clone: Path, name: str) -> None:
    shutil.copytree(clone / "ci", clone / name / "ci")
    done = subprocess.run([clone / name / "ci" / "setup"], capture_output=True, text=True, timeout=LONG_S, check=False)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, str(clone / name) in line) == (2, True)


def test_without_a_new_enough_python_setup_says_what_to_install(clone: Path) -> None:
    done = bash("ci/setup", clone, PAR4D_PYTHON="/bin/false")
    assert done.returncode == 1
    assert re.fullmatch(r".* 3\.11 .*PATH.*\bPAR4D_PYTHON\b.*\n", done.stderr)


def test_a_python_that_is_too_old_is_named_with_its_version(clone: Path) -> None:
    old = clone / "old"
    old.write_text("#!/bin/sh\necho 3.9.2\nexit 1\n")
    old.chmod(0o755)
    for script, code in (("ci/setup", 1), ("ci/gpu", 2)):
        done = bash(script, clone, PAR4D_PYTHON=str(old))
        assert done.returncode == code
        assert re.fullmatch(f".* 3.11 .* {old} is 3.9.2: .*\n", done.stderr)


def test_setup_leaves_the_environment_of_another_copy_alone(
    clone: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "par4d-installed").write_text("/somewhere/else\n")
    (clone / ".venv").symlink_to(other)
    done = bash("ci/setup", clone)
    assert done.returncode == 1
    assert "another copy" in done.stderr
    assert (other / "par4d-installed").exists()


def test_sourcing_a_broken_environment_fails_and_leaves_the_shell_alive(clone: Path) -> None:
    done = sourced("echo status $?, alive", clone, PAR4D_PYTHON="/bin/false")
    assert done.stdout.strip() == "status 1, alive"
    assert "is not ready" in done.stderr


def test_in_a_sourced_environment_reframe_is_the_one_that_knows_the_systems(clone: Path) -> None:
    """The virtual environment has another `reframe`."""
    (clone / "ci" / "setup").write_text("")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "activate").write_text(f"PATH={clone}/.venv/bin:$PATH")
    (clone / ".venv" / "bin" / "reframe").write_text("#!/bin/sh")
    (clone / ".venv" / "bin" / "reframe").chmod(0o755)
    done = sourced("command -v reframe", clone)
    assert done.stdout.strip() == str(clone / "ci" / "bin" / "reframe")


PYTHON = f"""#!/bin/sh
case "$*" in
    *"-m venv "*)
        echo "$*" >>"$TOLD"
        for last in "$@"; do :; done
        mkdir -p "$last/bin" "$last/lib/python3.11/site-packages" && cp "$0" "$last/bin/python"
        ;;
    *"-m pip "*)
        echo "$*" >>"$TOLD"
        case "$*" in
            *"$REFUSED"*) echo "ERROR: No matching distribution found"; exit 1 ;;
            *"-- torch"*)
                version=${{*##*-- torch}}
                version=${{version#==}}
                rm -rf "$PYTHONPATH"/torch-*
                mkdir -p "$PYTHONPATH/torch-${{version:=9.9}}.dist-info"
                cd "$PYTHONPATH/torch-$version.dist-info"
                printf 'Metadata-Version: 2.1\nName: torch\nVersion: %s\n' "$version" >METADATA
                ;;
            *"-- pyyaml pydantic"*) mkdir -p "$PYTHONPATH" && ln -s "$READERS"/* "$PYTHONPATH" ;;
        esac
        ;;
    *"-m compileall "*) ;;
    *) exec {sys._base_executable} -S "$@" ;;
esac
"""
"""A Python with no packages but those on PYTHONPATH, that says what it was told to make and to install. Of that it
installs PyTorch, and what reads systems' files.
"""
READERS = ("yaml", "pydantic", "pydantic_core", "annotated_types", "typing_extensions.py", "typing_inspection")


@dataclass(frozen=True)
class Told:
    """Output of a script, and its arguments for Python."""

    done: subprocess.CompletedProcess[str]
    venv: str
    pip: list[str]


def with_python(
    clone: Path, script: str, *, torch: str | None, refused: str = "nothing", ready: bool = False, **environment: str
) -> Told:
    """A script, where a Python has this torch or none. ready: whether it has what reads systems' files."""
    python, told, packages = clone / "python", clone / "told", clone / "packages"
    python.write_text(PYTHON)
    python.chmod(0o755)
    told.touch()
    shutil.copytree(ROOT / "systems", clone / "systems", dirs_exist_ok=True)
    (clone / "engine").mkdir(exist_ok=True)
    for file in (ROOT / "engine").glob("*.py"):
        shutil.copy(file, clone / "engine")
    if ready:
        shutil.copytree(clone / "readers", packages, symlinks=True)
    if torch is not None:
        (packages / "torch").mkdir(parents=True)
        (packages / "torch" / "__init__.py").touch()
        metadata = packages / f"torch-{torch}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: torch\nVersion: {torch}\n")
    own = {"TOLD": str(told), "REFUSED": refused, "PYTHONPATH": str(packages), "PAR4D_PYTHON": str(python)}
    own["READERS"] = str(clone / "readers")
    done = bash(script, clone, **own, **environment)
    lines = told.read_text().splitlines()
    installed = [line.split(" --no-compile ")[1] for line in lines if " pip " in line]
    return Told(done, next((line for line in lines if " venv " in line), ""), installed)


PERLMUTTER, FRONTIER = {"NERSC_HOST": "perlmutter"}, {"LMOD_SYSTEM_NAME": "frontier"}
ROCM = "https://download.pytorch.org/whl/rocm6.4"
ASKED = "-- pyyaml pydantic"
plain = pytest.mark.skipif([*gpus.systems_here()] != [] or gpus.gpus() == "rocm", reason="this is no plain machine")


@pytest.mark.parametrize(
    ("where", "torch", "installed"),
    [
        pytest.param({}, None, [ASKED, "-- torch==2.13.0"], marks=plain),
        pytest.param({}, "2.4.0", [ASKED, "-- torch==2.13.0"], marks=plain),
        (PERLMUTTER, "2.9.1", []),
        (FRONTIER, "2.9.1+rocm6.4", []),
        ({**FRONTIER, "PAR4D_TORCH": f"torch==2.9.1 {ROCM}"}, None, [f"--index-url {ROCM} -- torch==2.9.1"]),
        ({**PERLMUTTER, "PAR4D_TORCH": "torch==2.13.0"}, "2.9.1", ["-- torch==2.13.0"]),
        ({**PERLMUTTER, "PAR4D_VERSIONS": "newest"}, "2.9.1", ["-- torch"]),
        ({**PERLMUTTER, "PAR4D_VERSIONS": "lowest"}, "2.9.1", [f"-- torch=={bounds.bounds()['torch']}"]),
    ],
)
def test_setup_keeps_the_torch_of_its_python_and_else_installs_what_is_right_or_asked_for(
    clone: Path, where: dict[str, str], torch: str | None, installed: list[str]
) -> None:
    told = with_python(clone, "ci/setup", torch=torch, **where)
    assert told.done.returncode == 0, told.done.stderr
    assert ("--system-site-packages" in told.venv) == (not installed)
    kept = [file.read_text().strip() for file in clone.glob(".venv/lib/python3.*/site-packages/*.pth")]
    assert kept == ([] if installed else [str(clone / "packages")])
    *first, last = told.pip
    assert last.startswith("--editable")
    assert ("--constraint" in last) == (where.get("PAR4D_VERSIONS") == "lowest")
    assert first == installed


@pytest.mark.parametrize(
    ("where", "torch", "expected"),
    [
        (FRONTIER, None, r"PAR4D_PYTHON.* PAR4D_TORCH"),
        (PERLMUTTER, None, r"no PyTorch.* 2\.9 .*module"),
        (PERLMUTTER, "2.4.0", r"2\.4\.0.* 2\.9 .*module"),
    ],
)
def test_setup_installs_no_torch_by_a_guess_on_a_supercomputer(
    clone: Path, where: dict[str, str], torch: str | None, expected: str
) -> None:
    told = with_python(clone, "ci/setup", torch=torch, **where)
    assert told.done.returncode == 2
    assert told.pip == [ASKED]
    assert not (clone / ".venv" / "par4d-installed").exists()
    assert re.search(expected, told.done.stderr.splitlines()[-1])


def test_setup_refuses_a_torch_that_was_asked_for_and_is_too_old(clone: Path) -> None:
    told = with_python(clone, "ci/setup", torch=None, PAR4D_TORCH="torch==2.4.0")
    assert told.done.returncode == 2
    assert told.pip == ["-- torch==2.4.0"]
    assert re.search(r"2\.4\.0.* 2\.9 .*PAR4D_TORCH", told.done.stderr.splitlines()[-1])


def test_an_environment_keeps_to_its_versions_until_others_are_asked_for(clone: Path) -> None:
    """A later ci/setup must not change packages under jobs that run already."""
    calls = "ci/setup; ci/setup; unset PAR4D_VERSIONS; ci/setup; PAR4D_VERSIONS=newest ci/setup"
    told = with_python(clone, calls, torch="2.9.1", PAR4D_VERSIONS="lowest")
    assert told.done.returncode == 0, told.done.stderr
    assert told.done.stderr.count("setup: making ") == 2
    torches = [words.removeprefix("-- ") for words in told.pip if words.startswith("-- ")]
    assert list(dict.fromkeys(torches)) == ["torch==2.9", "torch"]


def test_setup_knows_two_choices_of_versions(clone: Path) -> None:
    done = bash("ci/setup", clone, PAR4D_VERSIONS="oldest")
    assert done.returncode == 2
    assert re.fullmatch(r"setup: PAR4D_VERSIONS .*'oldest'.*\n", done.stderr)


def test_every_package_has_an_oldest_version() -> None:
    project = bounds.project()
    needed = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    assert [one for one in needed if ">=" not in one] == ["par4d[peers]"]
    assert len(bounds.bounds()) == len(needed) - 1


@pytest.mark.parametrize(
    ("found", "why"), [("2.9.0a0+50eac811a6.nv25.09", None), ("10.0", None), ("2.8.0+cu128", "2.8.0+cu128")]
)
def test_a_torch_is_judged_by_what_its_version_begins_with(
    found: str, why: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "version", lambda _: found)
    lacking = bounds.torch_lacking()
    assert lacking is None if why is None else why in str(lacking)


@pytest.fixture
def externals(clone: Path) -> Path:
    """One whose own environment is there."""
    (clone / "ci" / "setup").write_text("")
    shutil.copytree(ROOT / "engine" / "peers" / "external", clone / "engine" / "peers" / "external")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "python").write_text(PYTHON)
    (clone / ".venv" / "bin" / "python").chmod(0o755)
    return clone


def test_a_peer_s_torch_is_of_the_index_of_ours_on_rocm_and_pypi_s_on_cuda(externals: Path) -> None:
    rocm = with_python(externals, "ci/peers litgpt", torch="2.13.0+rocm6.4", ready=True, **FRONTIER)
    assert rocm.done.returncode == 0, rocm.done.stderr
    assert rocm.pip[:2] == [f"--index-url {ROCM} torch==2.13.0", "torch==2.13.0"]
    shutil.rmtree(externals / "systems")
    shutil.rmtree(externals / "packages")
    (externals / "told").unlink()
    cuda = with_python(externals, "ci/peers litgpt", torch="2.13.0", ready=True, **PERLMUTTER)
    assert cuda.done.returncode == 0, cuda.done.stderr
    assert cuda.pip[0] == "torch==2.13.0"
    assert "--index-url" not in "".join(cuda.pip)


@pytest.mark.parametrize(
    ("torch", "expected"),
    [("2.8.0", "litgpt .*torch==2.13.0, .*AMD"), ("2.8.0+rocm6.4", f"torch==2.13.0, .*{ROCM}: ERROR")],
)
def test_a_peer_whose_torch_can_t_be_had_for_these_gpus_is_told_as_unavailable_with_the_reason(
    externals: Path, monkeypatch: pytest.MonkeyPatch, torch: str, expected: str
) -> None:
    told = with_python(externals, "ci/peers litgpt", torch=torch, ready=True, refused="--index-url", **FRONTIER)
    assert told.done.returncode == 1
    assert not any(line.startswith("torch") for line in told.pip)
    monkeypatch.setattr(registry, "ENVIRONMENTS", externals / ".venv-peers")
    assert re.search(expected, str(registry.environment_lack("litgpt")))


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


def plant_tools(clone: Path, tool: str) -> None:
    """Write a script for each tool that ci/test calls."""
    (clone / "ci" / "setup").write_text("")
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "activate").write_text(f"PATH={clone}/.venv/bin:$PATH")
    for name in ("ruff", "mypy", "lint-imports", "python", "reframe"):
        (clone / ".venv" / "bin" / name).write_text(tool)
        (clone / ".venv" / "bin" / name).chmod(0o755)
    (clone / "ci" / "bin" / "reframe").unlink()


@pytest.mark.parametrize(
    ("said", "verdict", "last"),
    [
        ("9 passed", "all passed", None),
        (f"{SKIPPED}9 passed, 15 skipped", "all that could be checked passed", "takes root on Linux"),
        (f"{SKIPPED}1 failed", "failed: tests", "takes root on Linux"),
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
        assert "test_report_browser.py: 12 skipped" in end[3]
        assert end[-1].endswith(last)


def test_the_essential_alone_runs_few_tests_and_takes_no_other_word(clone: Path) -> None:
    plant_tools(clone, '#!/bin/sh\necho "$0 $*"\n')
    done = bash("ci/test --quick", clone, CI="")
    assert done.returncode == 0, done.stderr
    (tests,) = [line for line in done.stdout.splitlines() if "-m pytest" in line]
    wanted = [word for word in tests.split() if "::" in word]
    assert 5 <= len(wanted) <= 20
    words = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *wanted]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, timeout=LONG_S, check=False).returncode == 0
    assert bash("ci/test --quick types", clone, CI="").returncode == 2


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


COMMANDS = [file.name for file in sorted((ROOT / "ci").iterdir()) if file.is_file() and os.access(file, os.X_OK)]


def run(command: str, folder: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | environment
    return call([folder / "ci" / command, *words], folder, **environment)


def test_there_are_commands() -> None:
    assert {"setup", "demo", "demo_images", "pack", "python", "test", "gpu", "weekly"} <= {*COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_tells_what_a_command_does_and_does_nothing(command: str) -> None:
    done = run(command, ROOT, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.split()) > 15
    assert f"ci/{command}" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_argument_is_refused_in_one_line(command: str) -> None:
    done = run(command, ROOT, "--nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith((f"{command}: ", "Unknown option: --nonsense"))
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["setup", "demo", "pack", "python", "gpu", "peers", "test"])
def test_help_needs_no_environment(command: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "ci", tmp_path / "ci")
    shutil.copytree(ROOT / "engine" / "peers" / "external", tmp_path / "engine" / "peers" / "external")
    done = run(command, tmp_path, "--help", PAR4D_PYTHON="/bin/false")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / ".venv").exists()
