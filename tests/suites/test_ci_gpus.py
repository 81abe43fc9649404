"""The machine that set-up runs on: ci/gpus.py reads systems' files as all else does, before there is a PyTorch."""

from pathlib import Path

import pytest

import gpus
import systems

LUMI = {
    "a block": """\
# of the login nodes
title: Lumi
here:
    hostnames:
      - "^uan\\\\d+$"    # YAML's own escape
device: {name: AMD Instinct MI250X}
node: {}
partitions:
- name: gpu
  scheduler: slurm
  launcher: srun
  time_limit: 30m
  features:
    - gpu
    - rocm
""",
    "one line": """\
{title: Lumi, here: {hostnames: ['^uan\\d+$'], environment: {}}, device: {name: AMD Instinct MI250X}, node: {},
 partitions: [{name: cpu, scheduler: slurm, launcher: srun, features: [cpu], time_limit: 30m},
              {name: gpu, scheduler: slurm, launcher: srun, features: [rocm], time_limit: 30m}]}
""",
    "a variable": """\
title: Lumi
here: {environment: {SITE: "lu mi"}}
device: {name: AMD Instinct MI250X}
node: {}
partitions: [{name: gpu, scheduler: slurm, launcher: srun, time_limit: 30m}]
""",
    "only planned with": """\
title: Lumi
here: {hostnames: [^uan01$]}
device: {name: AMD Instinct MI250X}
node: {}
""",
}


@pytest.fixture
def on_uan01(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "uan01")
    monkeypatch.setattr("socket.getfqdn", lambda: "uan01")
    monkeypatch.setenv("SITE", "lu mi")


@pytest.mark.usefixtures("on_uan01")
@pytest.mark.parametrize("text", LUMI.values(), ids=LUMI)
def test_any_yaml_tells_set_up_what_it_tells_reframe(text: str, tmp_path: Path) -> None:
    (tmp_path / "lumi.yaml").write_text(text)
    assert systems.read(tmp_path / "lumi.yaml").is_here()
    assert [*gpus.systems_here(tmp_path)] == [("rocm", "lumi")]


@pytest.mark.usefixtures("on_uan01")
def test_a_system_like_another_has_its_signs_and_its_gpus(tmp_path: Path) -> None:
    (tmp_path / "lumi.yaml").write_text(LUMI["a block"])
    (tmp_path / "lumi2.yaml").write_text("like: lumi\ntitle: other nodes\n")
    assert [*gpus.systems_here(tmp_path)] == [("rocm", "lumi"), ("rocm", "lumi2")]


@pytest.mark.parametrize("name", systems.names())
def test_set_up_knows_each_system_of_the_project_where_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    system = systems.load(name)
    for variable, value in system.here.environment.items():
        monkeypatch.setenv(variable, value)
    whose = {"alps": "cuda", "frontier": "rocm"}.get(name, "cuda" if system.device.kind == "cuda" else None)
    assert ((whose, name) in gpus.systems_here()) == (system.is_here() and whose is not None)


@pytest.mark.usefixtures("on_uan01")
def test_a_bad_file_of_another_machine_is_told_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lumi.yaml").write_text(LUMI["a block"])
    (tmp_path / "bad.yaml").write_text("title: [a")
    (tmp_path / "far.yaml").write_text(LUMI["one line"].replace("uan", "far").replace("slurm", "slrum"))
    assert [*gpus.systems_here(tmp_path)] == [("rocm", "lumi")]
    first, second = capsys.readouterr().err.splitlines()
    assert str(tmp_path / "bad.yaml") in first
    assert str(tmp_path / "far.yaml") in second
    assert "slrum" in second


@pytest.mark.usefixtures("on_uan01")
def test_a_bad_file_of_this_machine_ends_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lumi.yaml").write_text(LUMI["one line"].replace("slurm", "slrum"))
    monkeypatch.setattr(gpus.systems_here, "__defaults__", (tmp_path,))
    assert gpus.main() == 2
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert (str(tmp_path / "lumi.yaml") in line, "slrum" in line, said.out) == (True, True, "")


@pytest.mark.usefixtures("on_uan01")
def test_two_systems_with_gpus_of_two_makers_cant_both_be_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lumi.yaml").write_text(LUMI["a block"])
    (tmp_path / "other.yaml").write_text(LUMI["a block"].replace("rocm", "cuda"))
    monkeypatch.setattr(gpus.systems_here, "__defaults__", (tmp_path,))
    assert gpus.main() == 2
    assert "lumi and other" in capsys.readouterr().err


def test_a_driver_tells_whose_gpus_there_are(tmp_path: Path) -> None:
    assert gpus.gpus(tmp_path) == "none"
    (tmp_path / "nvidiactl").touch()
    assert gpus.gpus(tmp_path) == "cuda"
    (tmp_path / "kfd").touch()
    assert gpus.gpus(tmp_path) == "rocm"
