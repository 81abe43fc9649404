"""Machines of other sites, by their public documentation (tests/systems/machines): what their job scripts say."""

import re
import shlex
from pathlib import Path

import pytest
from machines import MACHINES, NIGHT, dry_run, scripts
from running import option

import systems
from suites.base.engine_test import CANARY_PROGRAM

LUMI_CORES = "fe000000000000,fe00000000000000,fe0000,fe000000,fe,fe00,fe00000000,fe0000000000"

SCRIPTS = {
    "isambardai:workq": (
        [
            "--ntasks=16",
            "--ntasks-per-node=4",
            "--cpus-per-task=72",
            "--nodes=4",
            "--partition=workq",
            "--gpus-per-node=4",
        ],
        ["module load brics/nccl"],
        "srun --cpus-per-task=72",
    ),
    "juwelsbooster:booster": (
        [
            *("--ntasks=16", "--ntasks-per-node=4", "--cpus-per-task=12", "--nodes=4", "--partition=booster"),
            *("--account=abc123", "--export=NONE", "--gres=gpu:4"),
        ],
        [
            "module load Stages/2025 GCC OpenMPI PyTorch",
            'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)i',
            *("export NCCL_SOCKET_IFNAME=ib0", "export GLOO_SOCKET_IFNAME=ib0"),
        ],
        "srun --cpus-per-task=12 --export=ALL --cpu-bind=none",
    ),
    "lassen:pbatch": (
        ["-nnodes 4", "-W 3", "-q pbatch", "-G abc123"],
        [],
        "jsrun --nrs=16 --rs_per_host=4 --tasks_per_rs=1 --gpu_per_rs=1 --cpu_per_rs=10 --bind=packed:10",
    ),
    "lumi:standard-g": (
        [
            *("--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=7", "--nodes=2", "--partition=standard-g"),
            *("--account=abc123", "--exclusive", "--mem=0", "--gpus-per-node=8"),
        ],
        [
            *("module load LUMI partition/G", "module load rocm"),
            *("export NCCL_SOCKET_IFNAME=hsn0,hsn1,hsn2,hsn3", "export MPICH_GPU_SUPPORT_ENABLED=1"),
        ],
        f"srun --cpus-per-task=7 --kill-on-bad-exit=1 --cpu-bind=mask_cpu:{LUMI_CORES}",
    ),
    "lumi:dev-g": (
        [
            *("--ntasks=16", "--ntasks-per-node=8", "--cpus-per-task=7", "--nodes=2", "--partition=dev-g"),
            *("--account=abc123", "--gpus-per-node=8"),
        ],
        [],
        "srun --cpus-per-task=7 --kill-on-bad-exit=1",
    ),
    "marenostrum5:acc": (
        [
            *("--ntasks=16", "--ntasks-per-node=4", "--cpus-per-task=20", "--nodes=4", "--account=abc123"),
            *("--qos=acc_ehpc", "--gres=gpu:4"),
        ],
        [],
        "srun --cpus-per-task=20",
    ),
    "polaris:prod": (
        [
            *("-l walltime=0:4:0", "-l select=4:mpiprocs=4:ncpus=32:system=polaris", "-l filesystems=home:eagle"),
            *("-l place=scatter", "-q prod", "-A abc123"),
        ],
        [
            *("module use /soft/modulefiles", "module load conda"),
            'export MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")',
            'export MASTER_ADDR="${MASTER_ADDR:-$(head -n 1 "$PBS_NODEFILE")}"',
        ],
        "mpiexec -n 16 --ppn 4 --depth=8 --cpu-bind depth",
    ),
    "snellius:gpu": (
        [
            *("--ntasks=16", "--ntasks-per-node=4", "--cpus-per-task=18", "--nodes=4", "-p gpu_a100", "--export=None"),
            *("--account=abc123", "--gpus-per-node=4"),
        ],
        ["export SLURM_EXPORT_ENV=ALL", "module load 2023 PyTorch"],
        "mpirun -np 16 --map-by ppr:4:node:PE=18",
    ),
    "uni:gpu": (
        [
            *("--ntasks=16", "--ntasks-per-node=2", "--nodes=8", "--partition=gpu", "--account=abc123", "--mem=0"),
            "--gres=gpu:a100:2",
        ],
        [],
        "srun",
    ),
    "vista:gh": (["--ntasks=16", "--ntasks-per-node=1", "--nodes=16", "-p gh", "-A abc123"], [], "ibrun"),
}
"""What a script asks its scheduler for, which commands come before its ranks, and what starts these."""
WITHOUT_BF16 = {"lassen"}
"""On these machines the trainings of a night are skipped, and its links are measured."""
LINKS = ("-c", "suites/bandwidth.py", "-S", "canary=yes")
OF_ANY_JOB = re.compile(r"(--job-name|--output|--error|--time|-[JNoe] )")


@pytest.mark.parametrize("partition", SCRIPTS)
def test_a_machine_s_job_asks_for_prepares_and_starts_what_its_documentation_says(partition: str) -> None:
    system, _, part = partition.partition(":")
    asked, prepared, start = SCRIPTS[partition]
    of_links = system in WITHOUT_BF16
    command = "bench collectives" if of_links else "train"
    lines = scripts(system, *(LINKS if of_links else NIGHT), command=command)[part]
    *before, engine, canary = lines[1:]
    directives = [line.split(maxsplit=1)[1] for line in before if line.startswith(("#SBATCH ", "#PBS ", "#BSUB "))]
    assert [line for line in directives if not OF_ANY_JOB.match(line)] == asked
    enters = [shlex.split(line)[1] for line in before if line.startswith("cd ")]
    assert [Path(folder).parts[-5:-1] for folder in enters] == [("stage", system, part, "engine")] * (
        system == "polaris"
    )
    assert [line for line in before if not line.startswith(("#", "cd "))] == prepared
    assert all(line.startswith("#") for line in before[: len(directives)]), "a scheduler reads no further"
    assert engine.startswith(f"{start} {engine.split(' -m engine')[0].split()[-1]} -m engine {command} ")
    assert canary.startswith(f"timeout 300 {start} "), "the canary runs on the same ranks"
    assert shlex.quote(str(CANARY_PROGRAM)) in canary
    if not of_links:
        assert option(engine, "--devices-per-node") == str(systems.read(MACHINES / f"{system}.yaml").node.devices.value)  # type: ignore[union-attr]


def test_two_cards_under_a_desk_are_two_ranks_of_torchrun() -> None:
    (lines,) = scripts("workstation", "-c", "suites/peers.py", "-n", "peer=fsdp2%", command="bench peers").values()
    _, engine = lines
    assert "-m torch.distributed.run --standalone --nproc-per-node=2 --no-python " in engine
    assert option(engine, "--device") == "cuda"


def test_ranks_of_several_nodes_are_never_started_on_one(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "workstation", *NIGHT)
    assert not done.trainings


def test_a_machine_with_flux_runs_nothing_and_says_what_to_do(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "tuolumne", *NIGHT)
    assert done.code == 1
    said = done.out + done.err
    assert all(part in said for part in (str(MACHINES / "tuolumne.yaml"), "flux run", "plan with tuolumne"))
    assert "Traceback" not in said


def test_a_machine_of_other_devices_is_refused_by_its_kind() -> None:
    with pytest.raises(systems.SystemFileError, match=r"aurora\.yaml .* device\.kind: .*'cpu' or 'cuda'.* 'xpu'"):
        systems.read(MACHINES / "refused" / "aurora.yaml")
