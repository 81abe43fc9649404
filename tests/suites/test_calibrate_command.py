"""`par4d calibrate`: what it keeps of real runs, and how it ends where it can't measure."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from running import Run, reframe
from waiting import LONG_S

import systems
from engine.errors import RunError, UsageError
from engine.result.provenance import processor_name
from engine.simulator.machine import MachineModel
from reports.par4d import main
from suites import calibrate
from suites.base.series import CALIBRATION, points
from systems import Cores, Measured, Performance, Source, store

SUITES = [word for suite in calibrate.SUITES for word in ("-c", f"suites/{suite}.py")]
SHORT = ["-S", "time_budget_s=1e-3", "-S", "message_bytes=65536", "-S", "iterations=3", "-S", "array_bytes=8000000"]
SHORT += ["-S", "Bandwidth.keep=no"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Short runs of what the command runs on this machine, of one of the four axes."""
    folder = tmp_path_factory.mktemp("calibrate")
    some = ["-n", "Bandwidth|Peak|Memory|kernels|1x1x1x2"]
    return reframe(folder, *SUITES, "--system", "local", "-t", CALIBRATION, *some, *SHORT, "-r")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the store and of the command."""
    monkeypatch.setattr(store, "FOLDER", tmp_path / "measured")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_was_measured_becomes_the_machine_of_a_plan(
    run: Run, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run.code == 0, run.out
    assert main(["calibrate", "--system", "local", "--results", str(run.folder)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[-1] == str(folder / "measured" / "local.yaml")
    found = systems.measured("local")
    assert found is not None
    assert "gpt-local-2 on 1x1x1x2" in said
    assert main(["calibrate", "--system", "local", "--results", str(run.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["performance"]["fitted_to"] == ["gpt-local-2 on 1x1x1x2"]
    assert found.source.device == processor_name()
    assert found.performance is not None
    assert set(found.performance.fitted_to) == {"gpt-local-2 on 1x1x1x2"}
    machine = MachineModel.of(systems.load("local"), "fp32", found)
    (gemm,) = (case["record"] for case in run.cases() if case["record"]["kind"] == "gemm")
    assert machine.empirical_peak == pytest.approx(gemm["best_flops_per_s"], rel=1e-4)
    assert dict(machine.by_size) == pytest.approx(
        {point["size"]: point["flops_per_s"] for point in gemm["gemm"] if point["flops_per_s"]}, rel=1e-4
    )
    (tiny,) = (case["record"] for case in run.cases() if case["record"].get("labels", {}).get("series") == "kernels")
    assert 0 < machine.kernel_s < tiny["summary"]["median_time_s"] / 50, "its step has hundreds of them"
    words = ["--system", "local", "--model", "gpt-local-2", "--gpus", "2", "--batch-size", "8", "--top", "1"]
    assert main(["plan", *words]) == 0
    assert f"Calibration measured on {found.date}: {processor_name()}." in capsys.readouterr().out


def test_ranks_that_share_cores_are_counted_and_the_newest_that_fit_are_taken(run: Run, folder: Path) -> None:
    """Other results of nightly runs lie beside them; the machine has fewer cores than ranks."""
    shutil.copytree(run.folder / "output", folder / "some")
    (gemm,) = (folder / "some").rglob("Peak*/result.json")
    other = json.loads(gemm.read_text())
    modes = [{"size": 64, "mode": mode, "flops_per_s": rate} for mode, rate in (("NN", 2e9), ("NT", 3e9), ("TN", 1e9))]
    gemm.write_text(json.dumps(other | {"gemm_modes": modes}))
    for changes in ({"ranks": 1}, {"provenance": other["provenance"] | {"devices": ["another"]}}):
        beside = folder / "some" / "cpu" / str(len(changes)) / str(*changes) / "result.json"
        beside.parent.mkdir(parents=True)
        fast = {"gemm": [point | {"flops_per_s": 1e18} for point in other["gemm"]], "best_flops_per_s": 1e18}
        beside.write_text(json.dumps(other | fast | changes))
    for file in (folder / "some").rglob("Calibration*/result.json"):
        told = json.loads(file.read_text())
        told["breakdown"]["machine"] |= {"ranks": 8, "threads_per_rank": 2, "cores": 4.0}
        file.write_text(json.dumps(told))
    found = calibrate.calibration(systems.load("local"), folder / "some").performance
    assert found is not None
    assert found.peak_flops["fp32"].value < 1e15
    assert found.shared == Cores(ranks=8, cores=2)
    one, eight = (MachineModel.of(systems.load("local"), "fp32", _with(found), ranks) for ranks in (1, 8))
    assert (one.ranks_per_core, eight.ranks_per_core) == (1, 4)
    assert one.empirical_peak == pytest.approx(4 * eight.empirical_peak)
    assert one.modes == pytest.approx({"NN": 1, "NT": 1.5, "TN": 0.5})
    assert one.kernel_s == pytest.approx(eight.kernel_s / 4)


def _with(performance: Performance) -> Measured:
    source = Source(command="bench collectives", device="a device", hosts=1, ranks=2)
    intra = {"1x2": 1e9}
    return Measured(
        date="2026-01-02", source=source, message_bytes=1, devices_per_node=2, intra=intra, performance=performance
    )


def test_what_is_missing_of_a_run_is_told_and_nothing_kept(run: Run, folder: Path) -> None:
    shutil.copytree(run.folder / "output", folder / "some")
    for file in (folder / "some").rglob("MemoryBandwidth*/result.json"):
        file.unlink()
    with pytest.raises(UsageError, match=r"bench memory:.* --system local"):
        calibrate.calibrated("local", timeout_s=LONG_S, results=folder / "some")
    with pytest.raises(UsageError, match="--system vcluster"):
        calibrate.calibrated("vcluster", timeout_s=LONG_S, results=run.folder)
    assert not store.FOLDER.exists()


def test_a_machine_that_jobs_cannot_be_submitted_to_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "--system", "frontier"]) == 2
    assert "calibrated on frontier" in capsys.readouterr().err
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["calibrate", "--system", "vcluster"]) == 2
    said = capsys.readouterr().err
    assert "vcluster" in said
    assert "sbatch" in said
    assert main(["calibrate", "--timeout", "0"]) == 2


def test_tests_that_take_too_long_or_fail_end_the_command_and_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"0\.2 s"):
        calibrate.calibrated("local", timeout_s=0.2)
    monkeypatch.setattr(calibrate, "CALIBRATION", "no-test-has-this-tag")
    with pytest.raises(RunError, match="A test failed"):
        calibrate.calibrated("local", timeout_s=LONG_S)
    assert not store.FOLDER.exists()


@pytest.mark.parametrize("name", systems.names())
def test_every_system_is_calibrated_by_each_axis_alone_and_by_a_tiny_network(name: str) -> None:
    found = points(CALIBRATION, name)
    assert len({(point.devices, point.series.precision) for point in found}) == 1
    axes = [point.grid for point in found if point.series.name == "axes"]
    assert sorted(max(map(int, grid.split("x"))) for grid in axes) == [found[0].devices] * 4
    assert [point.model for point in found if point.series.name == "kernels"] == ["gpt-test"]


def test_the_committed_calibration_names_its_machine_and_date() -> None:
    data = yaml.safe_load((Path(systems.__file__).parent / "measured" / "vcluster.yaml").read_text())
    assert data["source"]["processor"].startswith(data["source"]["device"])
    assert set(data["performance"]["fitted_to"]) == {
        f"{point.model} on {point.grid}"
        for point in points(CALIBRATION, "vcluster")
        if point.series.name in ("axes", "products")
    }
