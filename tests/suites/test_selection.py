"""The selection of a command: partitions that can run it, options that exist, and at least one test that ran."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reframe as rfm
import yaml
from reframe.core.builtins import fixture, parameter, variable
from reframe.utility import typecheck as typ
from running import Run, options, project, ranks, reframe, succeed

import systems
from engine.errors import UsageError
from suites.base import refusals
from suites.calibrate import check_trainings

WEAK = ["-c", "suites/weak_scaling.py"]
GPUS = "features: [gpu, cuda, nccl]"
MACHINES = {
    "desk": f"""
nodes: {{value: 1, source: own}}
node: {{devices: {{value: 2, source: own}}}}
partitions:
  - {{name: gpu, scheduler: local, launcher: torchrun-one-node, {GPUS}, time_limit: 10m}}
""",
    "queue": f"""
node: {{devices: {{value: 8, source: own}}}}
partitions:
  - {{name: debug, scheduler: slurm, launcher: srun, {GPUS}, time_limit: 30m,
     longest_jobs: {{value: {{2: 2h, 8: 20m}}, source: own}}}}
""",
    "uni": f"""
node: {{devices: {{value: 2, source: own}}}}
partitions:
  - {{name: long, scheduler: slurm, launcher: srun, access: [--partition=long], {GPUS}, time_limit: 1h}}
  - {{name: short, scheduler: slurm, launcher: srun, access: [--partition=short], {GPUS}, time_limit: 6m,
     longest_jobs: {{value: {{3: 6m}}, source: own}}}}
  - {{name: cpu, scheduler: slurm, launcher: srun, access: [--partition=cpu], features: [cpu, gloo], time_limit: 30m}}
  - {{name: here, scheduler: local, launcher: torchrun-one-node, {GPUS}, time_limit: 10m}}
""",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with machines of other kinds than ours."""
    copy = project(tmp_path_factory.mktemp("planted"))
    for name, rest in MACHINES.items():
        head = f"title: planted\nhere: {{hostnames: ['^{name}-login$']}}\ndevice: {{name: NVIDIA A100 80GB PCIe}}"
        (copy / "systems" / f"{name}.yaml").write_text(head + rest)
    return copy


@pytest.fixture
def run(root: Path, tmp_path: Path) -> Callable[..., Run]:
    return lambda *words, **environment: reframe(tmp_path / "run", *words, root=root, **environment)


def scripts(done: Run) -> list[str]:
    return [file.read_text() for file in done.folder.glob("stage/**/rfm_job.sh")]


def described(done: Run) -> list[dict[str, Any]]:
    assert done.code == 0, done.out
    tests: list[dict[str, Any]] = json.loads(done.out[done.out.index("[\n") :])
    return tests


def test_no_job_of_any_suite_has_more_ranks_than_the_workstation_has_gpus(run: Callable[..., Run]) -> None:
    done = run("-c", "suites", "-R", "--system", "desk", "-x", "KernelTuning|TunedStep|Baseline", "--dry-run")
    assert done.code == 0, done.out
    found = scripts(done)
    assert {ranks(script) for script in found} == {1, 2}
    assert re.search("2 GPUs,.* 8192 ranks", done.out)
    for command in ("bench collectives", "bench p2p"):
        assert {ranks(script) for script in done.jobs(command)} == {2}, "fewer nodes than usual"
    assert not [script for script in done.trainings if "variant=serial" in script], "nothing is left to compare it with"


def test_where_all_is_skipped_the_command_fails_and_says_why(run: Callable[..., Run]) -> None:
    large = run(*WEAK, "--system", "queue", "-n", "point=axonn-sc24-8192", "--dry-run")
    assert large.code == 1
    assert "1024 nodes" in large.out
    late = run(*WEAK, "--system", "queue", "-n", "point=par4d-64", "--dry-run")
    assert late.code == 1
    assert "asks for 30m" in late.out
    assert "8 nodes after 20m" in late.out
    assert not scripts(large) + scripts(late)
    both = run(*WEAK, "--system", "queue", "-n", "point=(night|par4d-64)", "--dry-run")
    assert both.code == 0, both.out
    assert [ranks(script) for script in both.trainings] == [16]


def test_a_time_limit_by_hand_is_the_users_own_affair_but_not_the_nodes(run: Callable[..., Run]) -> None:
    long = run(*WEAK, "--system", "queue", "-n", "point=(par4d-64|axonn-sc24-8192)", "-S", "time_limit=3h", "--dry-run")
    assert long.code == 0, long.out
    assert [ranks(script) for script in long.trainings] == [64]
    assert "1024 nodes" in long.out


def test_tests_of_gpus_get_no_partition_of_processors(run: Callable[..., Run]) -> None:
    done = run(*WEAK, "--system", "uni", "-n", "point=night-", "--dry-run")
    assert done.code == 0, done.out
    assert [options(script, "--partition") for script in done.trainings] == [["long"]], "the others are too small"
    only = run(*WEAK, "--system", "uni:cpu", "-l")
    assert only.code == 1
    assert re.search("uni:cpu .*cpu, gloo", only.out)


def test_each_partition_gets_what_it_has_room_for_and_counts_by_itself(run: Callable[..., Run]) -> None:
    words = ["-c", "suites/bandwidth.py", "--describe", "--system"]
    nodes = {"long": 4, "short": 3, "here": 1}
    (test,) = described(run(*words, "uni"))
    assert {case["partition"]: case["nodes"] for case in test["cases"]} == nodes
    assert test["node_hours"] == pytest.approx(sum(nodes.values()) * 3 / 60)
    (test,) = described(run(*words, "uni:short"))
    assert (test["nodes"], test["node_hours"]) == (3, pytest.approx(3 * 3 / 60))


def test_a_list_counts_each_case_by_its_partition_and_names_what_would_be_skipped(run: Callable[..., Run]) -> None:
    done = run(*WEAK, "--system", "uni", "-n", "point=par4d-64", "-l")
    assert re.search(r"1 test,.*\b32\.0 node-hours:.*\b32 nodes,.*\b60\b", done.out)
    assert "2 will be skipped" in done.out
    assert "32 nodes" in done.out[done.out.index("2 will be skipped") :]


class Kept(rfm.RunOnlyRegressionTest):
    """A fixture."""

    most_bytes = variable(int, value=1)


class Trained(rfm.RunOnlyRegressionTest):
    """A test with variables of several types."""

    point = parameter(["a", "b"])
    iterations = variable(int, value=1)
    staged = variable(typ.Bool, value=False)
    rate = variable(float, type(None), value=None)
    text = fixture(Kept, scope="session")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("iteration", "iterations"),
        ("Trained.iteration", "iterations"),
        ("Traind.iterations", "Trained"),
        ("Trained.txt.most_bytes", "text"),
        ("Trained.text.most_byte", "most_bytes"),
        ("Kept.most_byte", "most_bytes"),
        ("num_task", "num_tasks"),
        ("zzzzz", "iterations, most_bytes, rate, staged"),
        ("point", "is a parameter"),
    ],
)
def test_an_unknown_variable_is_told_with_the_nearest(name: str, told: str) -> None:
    classes = [Trained, Kept]
    assert not any(refusals.has(one, name) for one in classes)
    said = refusals.unknown(name, "2", classes)
    assert told in said.removeprefix(f"-S {name}=2: ")
    assert said.startswith(f"-S {name}=2: ")


@pytest.mark.parametrize(
    ("name", "value", "fine"),
    [
        ("iterations", "3", True),
        ("iterations", "abc", False),
        ("Trained.iterations", "1.5", False),
        ("Trained.text.most_bytes", "4", True),
        ("Trained.text.most_bytes", "few", False),
        ("staged", "yes", True),
        ("Trained.staged", "yes", True),
        ("Trained.staged", "perhaps", False),
        ("staged", "perhaps", False),
        ("rate", "1e-3", True),
        ("rate", "@none", True),
        ("rate", "fast", False),
        ("time_limit", "1h30m", True),
        ("time_limit", "soon", False),
        ("other", "x", True),
    ],
)
def test_a_value_of_another_type_is_told(name: str, value: str, fine: bool) -> None:
    said = refusals.wrong_value(Trained, name, value)
    assert said == "" if fine else said.startswith(f"-S {name}={value}: Trained ")
    assert fine or value in said.partition(": ")[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-S", "iteration=2", "-l"], "iterations"),
        (["-S", "iterations", "-r"], "'iterations'"),
        (["-P", "iteration=1,2", "-l"], "iterations"),
        (["-P", "iterations=1,x", "-r"], "iterations=x"),
        (["-n", "(", "-l"], "'("),
        (["-c", "suites/weak.py", "-l"], "suites/weak.py"),
        (["--system", "local:gpu", "-r"], "cpu"),
    ],
)
def test_what_is_mistyped_ends_every_action_in_a_sentence(tmp_path: Path, words: list[str], told: str) -> None:
    done = reframe(tmp_path, *WEAK, "--system", "local", *words)
    assert done.code != 0
    (said,) = [line for line in done.out.splitlines() if "ERROR" in line] or done.err.splitlines()
    assert told in said
    assert "Traceback" not in done.out + done.err
    assert not scripts(done)


def test_a_variable_that_some_loaded_test_or_fixture_has_is_fine(tmp_path: Path) -> None:
    forms = ["most_bytes=4", "Corpus.most_bytes=4", "WeakScaling.text.most_bytes=4", "WeakScaling.staged=yes"]
    words = [word for form in forms for word in ("-S", form)]
    succeed(tmp_path, *WEAK, "-c", "suites/peak.py", "-S", "array_bytes=8", "--system", "local", *words, "-l")


def test_a_generated_pipeline_runs_what_this_command_would(run: Callable[..., Run], tmp_path: Path) -> None:
    file = tmp_path / "child.yml"
    given = ["-S", "data=/a b;c", "-S", "Validation.iterations=3", "-J=--qos=x"]
    words = ["-c", "suites/validation.py", "-n", "^Validation", *given, "--ci-generate", str(file)]
    done = run(*words, "--system", "uni:long")
    assert done.code == 0, done.out
    jobs = {name: job["script"] for name, job in yaml.safe_load(file.read_text()).items() if "script" in job}
    assert jobs.keys() == {"Validation"}, "a fixture has no command of its own"
    asked = shlex.split(jobs["Validation"][0])
    for option in ("--system=uni:long", "--setvar=data=/a b;c", "--setvar=Validation.iterations=3"):
        assert option in asked
    assert "--job-option=--qos=x" in asked
    again = run(*[word for word in asked[1:] if word != "-r" and not word.startswith(("--prefix", "--report"))], "-l")
    assert again.code == 0, again.out + again.err
    assert "Found 1 check(s)" in again.out
    refused = run(*words, "--system", "uni:long", "--repeat", "2")
    assert refused.code == 2
    assert "--repeat" in refused.err
    file.unlink()
    assert run(*words, "--system", "uni:here").code == 1
    assert not file.exists()


def test_a_machine_that_has_no_room_for_a_calibration_says_so_before_it_measures(root: Path) -> None:
    desk = systems.read(root / "systems" / "desk.yaml")
    with pytest.raises(UsageError, match=r"any .*calibrated.* 8 ranks"):
        check_trainings(desk.model_copy(update={"name": "any"}))
