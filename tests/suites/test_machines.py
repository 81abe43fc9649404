"""Machines of other sites, by their public documentation (tests/systems/machines): what their job scripts say."""

import re
import shlex
from pathlib import Path

import pytest
import yaml
from machines import MACHINES, NIGHT, dry_run, scripts
from running import option

import systems
from suites.base.engine_test import CANARY_PROGRAM

SCRIPTS = yaml.safe_load(Path(__file__).with_name("machine_scripts.yaml").read_text())
WITHOUT_BF16 = {"lassen"}
"""On these machines the trainings of a night are skipped, and its links are measured."""
LINKS = ("-c", "suites/bandwidth.py", "-S", "canary=yes")
OF_ANY_JOB = re.compile(r"(--job-name|--output|--error|--time|-[JNoe] )")


@pytest.mark.parametrize("partition", SCRIPTS)
def test_a_machine_s_job_asks_for_prepares_and_starts_what_its_documentation_says(partition: str) -> None:
    system, _, part = partition.partition(":")
    start = SCRIPTS[partition]["starts"]
    of_links = system in WITHOUT_BF16
    command = "bench collectives" if of_links else "train"
    lines = scripts(system, *(LINKS if of_links else NIGHT), command=command)[part]
    *before, engine, canary = lines[1:]
    directives = [line.split(maxsplit=1)[1] for line in before if line.startswith(("#SBATCH ", "#PBS ", "#BSUB "))]
    assert [line for line in directives if not OF_ANY_JOB.match(line)] == SCRIPTS[partition]["asks"]
    enters = [shlex.split(line)[1] for line in before if line.startswith("cd ")]
    assert [Path(folder).parts[-5:-1] for folder in enters] == [("stage", system, part, "engine")] * (
        system == "polaris"
    )
    assert [line for line in before if not line.startswith(("#", "cd "))] == SCRIPTS[partition]["prepares"]
    assert all(line.startswith("#") for line in before[: len(directives)]), "a scheduler reads no further"
    assert engine.startswith(f"{start} {engine.split(' -m engine')[0].split()[-1]} -m engine {command} ")
    assert canary.startswith(f"timeout 300 {start} "), "the canary runs on the same ranks"
    assert shlex.quote(str(CANARY_PROGRAM)) in canary
    if not of_links:
        assert option(engine, "--devices-per-node") == str(systems.read(MACHINES / f"{system}.yaml").node.devices.value)  # type: ignore[union-attr]


def test_two_cards_under_a_desk_are_two_ranks_of_torchrun() -> None:
    (lines,) = scripts("workstation", "-c", "suites/peers.py", "-n", "peer=fsdp2%", command="bench peers").values()
    _, engine = lines
    started = engine.partition(" -m ")[2].split()
    assert started[:4] == ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
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
    with pytest.raises(systems.SystemFileError, match=r"aurora\.yaml.* device\.kind:.*'cpu' or 'cuda'.*'xpu'"):
        systems.read(MACHINES / "refused" / "aurora.yaml")
