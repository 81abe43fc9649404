"""What launchers and containers are told, of one partition each (tests/systems/machines/mixed.yaml)."""

import shlex
import subprocess
import sysconfig
from pathlib import Path

import pytest
from machines import NIGHT, dry_run, scripts
from running import ROOT
from waiting import LONG_S

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
