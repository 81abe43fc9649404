"""The energy of a job: each counter once, the sum over its machines, and runs that train without knowing it."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from counter_files import rapl, zone
from engine_command import SMALL, finish, start, train
from real_ranks import run_processes
from test_checkpoint import _config as config
from test_energy import seconds

from engine.comm.funnel import Comm
from engine.energy.counter import Counter, Found
from engine.energy.meter import Meter
from engine.grid import Grid
from engine.measure.machine import SYSFS
from engine.result.schema import read
from engine.result.schema.step import Component, ComponentEnergy, Energy
from engine.training import energy


def part(told: Energy | None, component: Component) -> ComponentEnergy:
    assert told is not None
    return next(part for part in told.components if part.component == component)


def metered(comm: Comm, roots: list[Path], machines: list[str]) -> str:
    """The energy of four iterations of 100 tokens in which rank 0 lets every root's counters go on: by 30 J and 50 J of
    packages, 7 J of memory. roots, machines: of each rank.
    """
    os.environ[SYSFS] = str(roots[comm.rank])
    energy.kernel_name = lambda: machines[comm.rank]  # type: ignore[assignment]
    job = energy.JobMeter(comm, "auto", seconds())
    comm.barrier()
    job.meter.start()
    comm.barrier()
    if comm.rank == 0:
        for root in set(roots):
            rapl(root, packages=(1030.0, 2050.0), memory=(307.0, 400.0))
    comm.barrier()
    job.meter.stop()
    return job.result(4, 100).model_dump_json()


def test_ranks_that_share_a_machine_count_it_once(tmp_path: Path) -> None:
    rapl(tmp_path)
    told = run_processes(Grid(z=2), metered, [tmp_path] * 2, ["one"] * 2)
    for found in map(Energy.model_validate_json, told):
        processor = part(found, "processor")
        assert (processor.counters, processor.machines, processor.unmeasured) == (2, 1, None)
        assert processor.joules == pytest.approx(80.0)
        assert processor.joules_per_iteration == pytest.approx(20.0)
        assert processor.tokens_per_joule == pytest.approx(400 / 80.0)
        assert part(found, "memory").joules == pytest.approx(7.0)
        assert part(found, "node").joules is None


def test_machines_are_added_up(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    for root in roots:
        rapl(root)
    told = run_processes(Grid(data=2), metered, roots, ["one", "two"])
    processor = part(Energy.model_validate_json(told[1]), "processor")
    assert (processor.counters, processor.machines) == (4, 2)
    assert processor.joules == pytest.approx(160.0)


def test_a_machine_that_does_not_know_leaves_no_half_sum(tmp_path: Path) -> None:
    roots = [tmp_path / "one", tmp_path / "two"]
    rapl(roots[0])
    zone(roots[1], "intel-rapl:0:1", "dram", 300.0)
    told = Energy.model_validate_json(run_processes(Grid(data=2), metered, roots, ["one", "two"])[0])
    processor = part(told, "processor")
    assert processor.joules is None
    assert processor.unmeasured is not None
    assert processor.unmeasured.startswith("RAPL counts no energy of processors here")
    assert processor.unmeasured.endswith("(1 of 2 that were to read it say so)")


def counted(comm: Comm, folder: Path) -> float | None:
    """What a counter says that counts 7 J an optimizer step, and 1000 J a checkpoint."""
    from trainers import trainer_of

    from engine.training.iterations import Measurements, run_iterations

    saving = replace(config(folder, comm.grid), warmup=2, iterations=6, save=folder, save_every=2)
    assert comm.recorder is not None
    trainer = trainer_of(saving, comm)
    saved = lambda: len(list(folder.glob("step-*")))  # noqa: E731
    joules = Counter("node", "a test", "the test", lambda: 7.0 * trainer.done + 1000.0 * saved(), 0.001)
    meter = Meter(Found((joules,)), seconds())
    run_iterations(trainer, saving, Measurements(), meter)
    assert saved() == 3
    return meter.readings()["node"].joules


def test_the_warm_up_and_checkpoints_do_not_count(tmp_path: Path) -> None:
    assert run_processes(Grid(), counted, tmp_path) == [pytest.approx(4 * 7.0)]


def test_without_a_counter_a_run_says_not_measured_and_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SYSFS, str(tmp_path))
    codes, said = train(1, *SMALL, "--iterations", "3", "--out", str(tmp_path / "result.json"))
    assert codes == [0]
    assert "Energy" not in said[0]
    found = read(tmp_path / "result.json").energy
    for component in ("processor", "memory", "node"):
        assert part(found, component).joules is None
        assert part(found, component).tokens_per_joule is None
        assert str(tmp_path) in (part(found, component).unmeasured or "")


def test_energy_that_is_turned_off_is_not_measured(tmp_path: Path) -> None:
    codes, _ = train(1, *SMALL, "--iterations", "3", "--energy", "off", "--out", str(tmp_path / "result.json"))
    assert codes == [0]
    found = read(tmp_path / "result.json").energy
    assert found is not None
    assert (found.components, found.unmeasured) == ((), "it was turned off by --energy off")


def without_rights() -> list[str]:
    """A command that starts another one for which a file's mode counts, also where root runs the tests."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root can read everything, and there is no setpriv to give that up")
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


def test_a_counter_of_root_is_told_in_one_sentence_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rapl(tmp_path, memory=())
    for file in tmp_path.rglob("energy_uj"):
        file.chmod(0)
    monkeypatch.setenv(SYSFS, str(tmp_path))
    out = str(tmp_path / "result.json")
    options = (*SMALL, "--grid", "1x1x2x1", "--iterations", "3", "--out", out)
    codes, said = finish(start(2, "train", *options, under=without_rights()))
    assert codes == [0, 0]
    told = [line for text in said for line in text.splitlines() if "nergy" in line]
    file = tmp_path / "class/powercap/intel-rapl:0/energy_uj"
    assert told == [
        f"Energy of the processors is not measured: {file} may only be read by root: let others read it (chmod a+r)."
    ]
    processor = part(read(tmp_path / "result.json").energy, "processor")
    assert processor.joules is None
    assert str(file) in (processor.unmeasured or "")
