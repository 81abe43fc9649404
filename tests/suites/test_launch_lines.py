"""Lines that launchers and containers get, of one partition each, and jobs that stage (tests/systems/machines)."""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest
from machines import NIGHT, dry_run, scripts
from running import ROOT
from waiting import LONG_S

import systems
from suites.base.launch import ARCHIVE, NotStaged, staging_command

SINGLE = ("-c", "suites/peak.py", "-n", "^MemoryBandwidth")
"""One rank."""
BESIDE = ("-c", "suites/validation.py", "-n", "^Validation$")
"""A training on a corpus, which a job beside ReFrame prepares."""


def words(partition: str, *selected: str, command: str = "train", system: str = "mixed") -> list[str]:
    """Return the words of the launch line of a partition's job, as a shell would split them."""
    lines = scripts(system, *(selected or NIGHT), command=command)[partition]
    (line,) = [line for line in lines if f" -m engine {command} " in line]
    return shlex.split(line)


def before(found: list[str], *last: str) -> list[str]:
    """Return the words up to these ones."""
    ends = next(place for place in range(len(found)) if found[place : place + len(last)] == [*last])
    return found[:ends]


@pytest.mark.parametrize(
    ("partition", "sixteen", "one"),
    [
        ("pals", "mpiexec -n 16 --ppn 4", "mpiexec -n 1 --ppn 1"),
        ("openmpi", "mpirun -np 16 --map-by ppr:4:node", "mpirun -np 1 --map-by ppr:1:node"),
        ("intel", "mpirun -np 16 -ppn 4", "mpirun -np 1 -ppn 1"),
        (
            "jsrun",
            "jsrun --nrs=16 --rs_per_host=4 --tasks_per_rs=1 --gpu_per_rs=1 --cpu_per_rs=8",
            "jsrun --nrs=1 --rs_per_host=1 --tasks_per_rs=1 --gpu_per_rs=1 --cpu_per_rs=8",
        ),
        (
            "own",
            "mpiexec -n 16 --map-by ppr:4:node:PE=8 -x ${PATH} {b}",
            "mpiexec -n 1 --map-by ppr:1:node:PE=8 -x ${PATH} {b}",
        ),
    ],
)
def test_a_launcher_is_told_the_ranks_of_a_node_unless_the_file_places_them(
    partition: str, sixteen: str, one: str
) -> None:
    """Four of sixteen ranks, and one of one."""
    assert " ".join(before(words(partition), "-m", "engine")[:-1]) == sixteen
    assert " ".join(before(words(partition, *SINGLE, command="bench memory"), "-m", "engine")[:-1]) == one


@pytest.mark.parametrize(
    ("partition", "asked"),
    [
        ("pals", ["-l select=4:mpiprocs=4:ncpus=32:ngpus=4", "-A abc123", "-v A={a}"]),
        ("openmpi", ["-l nodes=4:ppn=32:ngpus=4", "-A abc123", "-v A={a}"]),
    ],
)
def test_pbs_and_torque_are_asked_for_processors_and_gpus_and_braces_stay(partition: str, asked: list[str]) -> None:
    lines = [line.removeprefix("#PBS ") for line in scripts("mixed", *NIGHT)[partition] if line.startswith("#PBS ")]
    assert lines[-3:] == asked


def test_braces_beside_a_placeholder_stay() -> None:
    assert '#SBATCH --gres=gpu:4 --comment={"image": 1}' in scripts("mixed", *NIGHT)["sarus"]


INSIDE = ["env", f"PYTHONPATH={ROOT}:/more"]


def test_apptainer_stands_between_launcher_and_python_and_mounts_checkout_and_job() -> None:
    found = words("apptainer")
    bound = found[found.index("--bind") + 1]
    checkout, stage, more = bound.split(",")
    assert (checkout, more) == (str(ROOT), "/more")
    assert before(found, "-m", "engine") == [
        *("srun", "--ntasks-per-node=4", "apptainer", "exec", "--nv", "--bind", bound, "--pwd", stage, "--cleanenv"),
        *("/images/my torch.sif", *INSIDE, "python3"),
    ]
    assert stage.endswith(f"/stage/mixed/apptainer/engine/{Path(stage).name}")


def test_singularity_shows_amd_s_gpus_and_takes_an_image_below_the_checkout() -> None:
    found = before(words("singularity", system="amd"), *INSIDE, "python3", "-m", "engine")
    assert found[1:5] == ["--ntasks-per-node=4", "singularity", "exec", "--rocm"]
    assert found[-1] == str(ROOT / "images" / "torch.sif")


def test_sarus_mounts_each_folder_and_runs_the_python_that_the_file_names() -> None:
    found = before(words("sarus"), *INSIDE, "python", "-m", "engine")
    assert found[:4] == ["srun", "--ntasks-per-node=4", "sarus", "run"]
    mounts = [word for word in found if word.startswith("--mount=")]
    (workdir,) = [word.removeprefix("--workdir=") for word in found if word.startswith("--workdir=")]
    assert mounts == [
        f"--mount=type=bind,source={folder},destination={folder}" for folder in (str(ROOT), workdir, "/more")
    ]
    assert found[-1] == "nvcr.io/nvidia/pytorch:25.06-py3"


def test_pyxis_is_options_of_srun() -> None:
    found = before(words("pyxis"), *INSIDE, "python3", "-m", "engine")
    (workdir,) = [
        word.removeprefix("--container-workdir=") for word in found if word.startswith("--container-workdir=")
    ]
    assert found == [
        *("srun", "--ntasks-per-node=4", "--container-image=nvcr.io#nvidia/pytorch:25.06-py3"),
        *(f"--container-mounts={ROOT}:{ROOT},{workdir}:{workdir},/more:/more", f"--container-workdir={workdir}"),
        "--no-container-mount-home",
    ]


@pytest.mark.parametrize("partition", ["apptainer", "singularity", "sarus", "pyxis"])
def test_the_canary_runs_in_the_same_container(partition: str) -> None:
    engine, canary = scripts("amd" if partition == "singularity" else "mixed", *NIGHT)[partition][-2:]
    start = engine.split(" -m engine ")[0]
    assert canary.startswith(f"timeout 300 {start} {ROOT}/suites/base/canary.py cuda ")


def test_data_are_prepared_in_the_container_whose_own_python_they_do_not_hide() -> None:
    system = "mixed:apptainer"
    prepared = words("apptainer", *BESIDE, command="data prepare", system=system)
    bound, workdir = (prepared[prepared.index(option) + 1] for option in ("--bind", "--pwd"))
    assert bound.split(",") == [str(ROOT), workdir, "/more", f"{sysconfig.get_path('stdlib')}:/par4d-source"]
    assert prepared[prepared.index("--source") + 1] == "/par4d-source"
    trained = words("apptainer", *BESIDE, system=system)
    assert trained[trained.index("--data") + 1] == f"{workdir}/corpus"
    assert trained[trained.index("--bind") + 1].endswith(f",{workdir}/corpus")


def test_what_runs_beside_reframe_has_no_srun_and_so_no_pyxis() -> None:
    prepared = words("pyxis", *BESIDE, command="data prepare", system="mixed:pyxis")
    assert prepared[1:5] == ["-m", "engine", "data", "prepare"]
    assert sysconfig.get_path("stdlib") in prepared


def test_a_variable_s_value_is_no_command_and_may_have_lines(tmp_path: Path) -> None:
    lines = scripts("mixed", *NIGHT)["apptainer"]
    begin = next(place for place, line in enumerate(lines) if line.startswith("export TWO"))
    script = "\n".join([*lines[begin:-2], 'printf "%s|%s" "$TWO" "$DOLLAR"'])
    done = subprocess.run(
        ["/bin/bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=True
    )
    assert done.stdout == "a\nb|$(touch hurt) {account}"
    assert not [*tmp_path.iterdir()]


def test_staging_is_refused_where_ranks_have_a_container(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "mixed:apptainer", *NIGHT, "-S", "staged=yes")
    assert done.code == 1
    assert "staged=yes" in done.out
    assert "my torch.sif" in done.out


ROOT = Path(__file__).parents[2]
(SLURM,) = systems.load("frontier").partitions
(LSF,) = systems.load("summit").partitions


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project of two files, packed after they were written."""
    folder = tmp_path / "a project"
    for name in ("engine/grid.py", "systems/measured/frontier.yaml", ARCHIVE):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        os.utime(file, (1000, 1000))
    return folder


def test_the_line_of_a_job_names_the_script_and_the_archive_wherever_they_are(root: Path) -> None:
    expected = [".", str(root / "ci" / "stage"), str(root / ARCHIVE)]
    assert shlex.split(staging_command(SLURM, dry=False, root=root)) == expected


def test_what_was_measured_since_is_in_no_job(root: Path) -> None:
    os.utime(root / "systems" / "measured" / "frontier.yaml", (2000, 2000))
    assert staging_command(SLURM, dry=False, root=root)


def test_a_change_since_packing_is_refused_by_name(root: Path) -> None:
    os.utime(root / "engine" / "grid.py", (1001, 1001))
    with pytest.raises(NotStaged, match=r"grid\.py .*ci/pack"):
        staging_command(SLURM, dry=False, root=root)


def test_without_an_archive_only_a_dry_run_is_written(root: Path) -> None:
    (root / ARCHIVE).unlink()
    with pytest.raises(NotStaged, match="run ci/pack first"):
        staging_command(SLURM, dry=False, root=root)
    assert staging_command(SLURM, dry=True, root=root)


def test_a_scheduler_that_copies_to_no_nodes_is_refused(root: Path) -> None:
    with pytest.raises(NotStaged, match="which lsf doesn't have"):
        staging_command(LSF, dry=True, root=root)


SRUN = """#!/bin/sh
while [ "$1" != sh ]; do shift; done
exec "$@"
"""
JOB = """
. ci/stage {archive}
cat "$PAR4D_STAGED"/{{.venv-peers,engine}}/name
printenv PYTHONPATH PAR4D_STAGED
echo $PYTHONSAFEPATH
"""


def staged(folder: Path, archive: Path, sbcast: str) -> subprocess.CompletedProcess[str]:
    """A job of one node, which is this machine: Slurm's commands are stood in for."""
    (folder / "tools").mkdir()
    (folder / "node").mkdir()
    for name, text in {"srun": SRUN, "sbcast": f"#!/bin/sh\n{sbcast}\n"}.items():
        (folder / "tools" / name).write_text(text)
        (folder / "tools" / name).chmod(0o755)
    job = {"PAR4D_NODE_FOLDER": str(folder / "node"), "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
    own = {"PATH": f"{folder}/tools:{os.environ['PATH']}", "PYTHONPATH": "/a/view"}
    return subprocess.run(
        ["bash", "-c", JOB.format(archive=archive)],
        cwd=ROOT,
        env=os.environ | job | own,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def test_a_staged_job_finds_the_project_before_all_else_and_peers_where_they_are(tmp_path: Path) -> None:
    for folder in (".venv-peers", "engine"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "name").write_text(f"{folder}\n")
    subprocess.run(["tar", "-cf", tmp_path / "packed", "-C", tmp_path, "engine"], check=True, timeout=LONG_S)
    done = staged(tmp_path, tmp_path / "packed", 'cp "$1" "$2"')
    own = tmp_path / "node" / "par4d-7"
    assert done.stdout.splitlines()[1:] == [".venv-peers", "engine", f"{own}:/a/view", "1"], done.stderr
    assert not own.exists()


FULL = 'ls "$(dirname "$(dirname "$2")")"; echo "No space left" >&2; exit 1'


def test_a_job_that_cant_be_staged_says_so_and_ends_and_leaves_nothing_behind(tmp_path: Path) -> None:
    done = staged(tmp_path, tmp_path / "packed", FULL)
    assert (done.returncode, done.stdout) == (1, "par4d-7\n")
    assert done.stderr.splitlines()[0] == "No space left"
    assert "leave out staged=yes." in done.stderr.splitlines()[1]
    assert list((tmp_path / "node").iterdir()) == []
