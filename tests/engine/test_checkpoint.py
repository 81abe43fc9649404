"""Checkpoints: saved on one grid and resumed on another, whole or not there, and refused when they don't fit."""

import errno
import io
import json
import math
import os
import re
import resource
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from real_ranks import run_processes
from torch import Tensor
from trainers import trainer_of
from training import grid_id

from engine.batch import Batch
from engine.checkpoint import contents, store, torch_files
from engine.checkpoint import manifest as manifest_module
from engine.checkpoint.manifest import OWN, Manifest, Saved, find, read_manifest
from engine.checkpoint.owner import FILE
from engine.comm.funnel import Comm
from engine.energy.counter import Found
from engine.energy.meter import Meter
from engine.errors import RunError, UsageError
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.choice import ModelChoice
from engine.parallel.serial_state import full_state_dict
from engine.training.checks import checked
from engine.training.config import TrainConfig
from engine.training.iterations import Measurements, run_iterations
from engine.training.trainer import Trainer
from engine.training_record import OptimConfig

MODEL = ModelChoice(layers=2, hidden=48, heads=24, vocab=96, seq=8, tied=True, dropout=0.1)
LLAMA = ModelChoice(architecture="llama", layers=2, hidden=48, heads=12, kv_heads=6, ffn=48, vocab=96, seq=8)
SAVED_ON = Grid(2, 2, 2, 1)
STEPS = 6


def _config(folder: Path, grid: Grid, **changes: object) -> TrainConfig:
    whole = TrainConfig(
        model=MODEL,
        grid=grid,
        batch=Batch(8),
        data="synthetic",
        out=folder / "result.json",
        iterations=STEPS,
        warmup=0,
        precision="fp64",
        optim=OptimConfig(learning_rate=1e-2, warmup_steps=4, decay_steps=10),
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def _losses(comm: Comm, config: TrainConfig) -> list[float]:
    """Train as the command does, inside a process group that is there already."""
    measurements = Measurements()
    run_iterations(trainer_of(config, comm), config, measurements, Meter(Found()))
    return [i.loss for i in measurements.iterations]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """Checkpoints of steps 2, 4 and 6 of a run on eight ranks, and its losses."""
    folder = tmp_path_factory.mktemp("checkpoints")
    losses = run_processes(SAVED_ON, _losses, _config(folder, SAVED_ON, save=folder, save_every=2))[0]
    return folder, losses


@pytest.mark.parametrize(
    "grid",
    [Grid(), Grid(1, 1, 1, 4), Grid(1, 1, 8, 1), Grid(3, 2, 1, 1), Grid(2, 2, 2, 1), Grid(z=2, pipe=2)],
    ids=grid_id,
)
def test_a_checkpoint_resumes_on_any_grid_with_the_same_next_losses(
    saved: tuple[Path, list[float]], grid: Grid
) -> None:
    folder, losses = saved
    config = _config(folder, grid, resume=folder / "step-2", iterations=4)
    resumed = run_processes(grid, _losses, config)[0]
    assert resumed == pytest.approx(losses[2:], rel=1e-10)


UNET = {"model": ModelChoice(model="unet-tiny"), "batch": Batch(4, 1)}
"""Model whose weights have four dims."""
UNEVEN = {"model": ModelChoice(layers=2, hidden=40, heads=5, vocab=97, seq=8), "batch": Batch(15)}
"""Model of which few grids divide anything."""


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        (Grid(2, 2, 1, 1), Grid(z=2, pipe=2), UNET),
        (Grid(z=2, pipe=2, data=2), Grid(), {}),
        (Grid(pipe=2, data=2, pipe_outermost=True), Grid(), {}),
        (SAVED_ON, Grid(3, 1, 1, 1), {"model": LLAMA}),
        (SAVED_ON, Grid(1, 2, 4, 1), {"model": LLAMA}),
        (Grid(2, 1, 3, 1), Grid(1, 1, 5, 1), UNEVEN),
        (Grid(1, 1, 5, 1), Grid(3, 2, 1, 1), UNEVEN),
    ],
    ids=["u-net", "stages", "stages outside data", "llama-x", "llama-yz", "uneven", "uneven-back"],
)
def test_other_networks_and_stages_resume_on_another_grid(
    before: Grid, after: Grid, options: dict[str, Any], tmp_path: Path
) -> None:
    first = _config(tmp_path, before, save=tmp_path, save_every=1, iterations=3, **options)
    losses = run_processes(before, _losses, first)[0]
    resumed = _config(tmp_path, after, resume=tmp_path / "step-1", iterations=2, **options)
    assert run_processes(after, _losses, resumed)[0] == pytest.approx(losses[1:], rel=1e-10)


def test_the_latest_whole_checkpoint_is_taken_and_a_killed_save_is_not(
    saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    shutil.copytree(saved[0], tmp_path, dirs_exist_ok=True)
    (tmp_path / ".step-8.part").mkdir()
    (tmp_path / "step-10").mkdir()
    assert find(tmp_path) == tmp_path / "step-6"
    assert not list(saved[0].glob(".step-*"))


def test_a_checkpoint_cut_short_is_refused(saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    step = shutil.copytree(saved[0] / "step-4", tmp_path / "step-4")
    shard = sorted(step.glob("*.distcp"))[0]
    with shard.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UsageError, match=f"{shard.name} has 100 of"):
        checked(_config(tmp_path, Grid(), resume=tmp_path), 1)
    (step / "manifest.json").write_text('{"version": 1')
    with pytest.raises(UsageError, match=r"manifest\.json"):
        read_manifest(step, MODEL.resolve())


def copied(saved: tuple[Path, list[float]], folder: Path, step: int = 4) -> Path:
    return Path(shutil.copytree(saved[0] / f"step-{step}", folder / f"step-{step}"))


def _flip(step: Path, before: Path) -> None:
    file = sorted(step.glob("*.distcp"))[2]
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 16
    file.write_bytes(content)


def _swap(step: Path, before: Path) -> None:
    one, other = sorted(step.glob("*.distcp"))[2:4]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _take_an_older_one(step: Path, before: Path) -> None:
    name = sorted(step.glob("*.distcp"))[2].name
    shutil.copy(before / "step-2" / name, step / name)


def _take_an_older_table(step: Path, before: Path) -> None:
    shutil.copy(before / "step-2" / ".metadata", step)


FAULTS = [_flip, _swap, _take_an_older_one, _take_an_older_table]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_files_that_are_not_as_they_were_written_are_named(
    fault: Callable[[Path, Path], None], saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    """Also on more ranks, of which each reads some."""
    step = copied(saved, tmp_path)
    lengths = {file.name: file.stat().st_size for file in step.iterdir()}
    fault(step, saved[0])
    before = saved[0] / step.name
    changed = [file.name for file in step.iterdir() if file.read_bytes() != (before / file.name).read_bytes()]
    if fault is not _swap:
        assert {file.name: file.stat().st_size for file in step.iterdir()} == lengths, "its size does not tell"
    for grid in (Grid(), Grid(1, 1, 1, 4)):
        with pytest.raises((AssertionError, UsageError), match="|".join(map(re.escape, changed))):
            run_processes(grid, _losses, _config(tmp_path, grid, resume=step, iterations=1))


def _edited(folder: Path, /, *, sealed: bool = True, **changed: object) -> None:
    """Change entries of the manifest, and its digest with them, as who edits it by hand may do."""
    file = folder / "manifest.json"
    data = json.loads(file.read_text()) | changed
    file.write_text(json.dumps(data | {OWN: manifest_module._digest(data)} if sealed else data))


SCALE = {"value": 2.0, "good_steps": 0, "skipped": 0, "interval": 2000}


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize(
    "changed",
    [
        {"step": 5}, {"step": -4}, {"step": 2**80}, {"step": "x"}, {"step": None}, {"files": {}},
        {"files": {"../x": 3}}, {"sha256": {}}, {"batch_size": 0}, {"dtype": "fp8"}, {"seed": 0.5},
        {"strange": 1}, {"version": 0}, {"version": 3}, {"version": 3.0}, {"version": "3"}, {"version": True},
        *({"loss_scale": SCALE | {"value": value}} for value in (-1, 0, 1e-30, 1e300, "x", None, 2**80 * 2**80)),
        *({"loss_scale": SCALE | wrong} for wrong in ({"skipped": 5}, {"good_steps": -1}, {"interval": 0})),
        {"loss_scale": 3},
    ],
    ids=str,
)  # fmt: skip
def test_a_manifest_that_no_save_writes_is_refused(
    changed: dict[str, object], sealed: bool, saved: tuple[Path, list[float]], tmp_path: Path
) -> None:
    step = copied(saved, tmp_path)
    _edited(step, sealed=sealed, **changed)
    with pytest.raises(UsageError, match=r"manifest\.json"):
        read_manifest(step, MODEL.resolve())


def test_any_other_change_of_a_manifest_is_found_by_its_digest(saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    step = copied(saved, tmp_path)
    _edited(step, seed=0)
    assert read_manifest(step, MODEL.resolve()).seed == 0
    _edited(step, sealed=False, seed=1)
    with pytest.raises(UsageError, match="not as it was"):
        read_manifest(step, MODEL.resolve())


def test_a_checkpoint_of_before_digests_is_read(saved: tuple[Path, list[float]], tmp_path: Path) -> None:
    step = copied(saved, tmp_path)
    data = json.loads((step / "manifest.json").read_text())
    older = {key: value for key, value in data.items() if key not in (OWN, "sha256", "data")} | {"version": 3}
    (step / "manifest.json").write_text(json.dumps(older))
    losses = run_processes(Grid(), _losses, _config(tmp_path, Grid(), resume=step, iterations=2))[0]
    assert losses == pytest.approx(saved[1][4:], rel=1e-10)


def _with_one_value(comm: Comm, config: TrainConfig, number: float) -> str:
    """Return the error of a checkpoint in which one value of a moment has changed."""
    assert config.save is not None
    trainer = trainer_of(config, comm)
    trainer.step()
    parameter = next(iter(trainer.model.local_parameters().values()))
    next(iter(trainer.optimizer.state[parameter].values())).view(-1)[0] = number
    folder = trainer.save(config.save)
    saved = Saved(folder, read_manifest(folder, trainer.training.model))
    return _refused(lambda: store.load(saved, trainer.model, trainer.optimizer.state))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_state_that_is_not_finite_is_named(number: float, tmp_path: Path) -> None:
    told = run_processes(Grid(), _with_one_value, _config(tmp_path, Grid(), save=tmp_path, save_every=1), number)[0]
    assert re.search(r"step-1.*rank 0.*optimizer/\S+.*finite", told)


def test_a_checkpoint_of_another_model_or_run_is_refused(saved: tuple[Path, list[float]]) -> None:
    folder = saved[0]
    for changed, says in (
        ({"model": replace(MODEL, layers=3)}, "layers is 2, .* 3"),
        ({"model": LLAMA}, "llama-l2"),
        ({"seed": 1}, "--batch-size 8 --seed 0"),
        ({"resume": folder / "nowhere"}, "nowhere"),
    ):
        with pytest.raises(UsageError, match=says):
            checked(_config(folder, Grid(), **{"resume": folder} | changed), 1)
    with pytest.raises(UsageError, match="layers is 2"):
        read_manifest(folder / "step-2", replace(MODEL, layers=1).resolve())


OF_OBJECTS = ("gather_object", "all_gather_object", "scatter_object_list", "broadcast_object_list")


def _saved_in_silence(comm: Comm, config: TrainConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights before a save and after a load, gathered on rank 0, in a process where nobody can send objects."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an object was sent")

    for name in OF_OBJECTS:
        setattr(dist, name, refuse)
    with pytest.raises(AssertionError, match="an object was sent"):
        dcp.save({"a": torch.zeros(1)}, checkpoint_id=config.out.parent / "theirs")
    trainer = trainer_of(config, comm)
    trainer.step()
    trainer.save(config.save)
    before = full_state_dict(trainer.model)
    assert config.save is not None
    folder = config.save / "step-1"
    trainer.step()
    store.load(Saved(folder, read_manifest(folder, trainer.training.model)), trainer.model, trainer.optimizer.state)
    return before, full_state_dict(trainer.model)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_no_object_is_sent_to_save_or_to_load_and_the_librarys_own_reader_finds_the_serial_tensors(
    tmp_path: Path,
) -> None:
    grid = Grid(2, 1, 2, 2)
    before, after = run_processes(grid, _saved_in_silence, _config(tmp_path, grid, save=tmp_path, save_every=1))[0]
    read = {f"model/{name}": torch.full_like(tensor, torch.nan) for name, tensor in before.items()}
    dcp.load(read, checkpoint_id=tmp_path / "step-1", no_dist=True)
    for name, tensor in before.items():
        assert torch.equal(read[f"model/{name}"], tensor)
        assert torch.equal(after[name], tensor)


def _refused(act: Callable[[], object]) -> str:
    with pytest.raises(RunError) as told:
        act()
    return str(told.value)


def _faults_of_rank_1(comm: Comm, config: TrainConfig) -> list[str]:
    """Return the errors of a full disk, of a folder that isn't shared and of a file that can't be read."""
    own = config.out.parent / f"rank-{comm.rank}"
    own.mkdir()
    trainer = trainer_of(config, comm)
    trainer.step()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if comm.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    said = [_refused(lambda: trainer.save(config.save))]
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    said.append(_refused(lambda: trainer.save(own)))
    trainer.save(config.save)
    folder = own if comm.rank == 1 else config.out.parent / "saved" / "step-1"
    manifest = Manifest(step=1, seed=0, batch_size=8, dtype="fp64", model={}, files={})
    said.append(_refused(lambda: store.load(Saved(folder, manifest), trainer.model, trainer.optimizer.state)))
    return said


def test_what_one_rank_can_not_write_or_read_all_ranks_tell_in_its_words(tmp_path: Path) -> None:
    grid = Grid(1, 1, 1, 2)
    config = _config(tmp_path, grid, save=tmp_path / "saved", save_every=1)
    told = run_processes(grid, _faults_of_rank_1, config)
    full, apart, missing = told[0]
    assert re.search(r"saved/step-1.*rank 1.*File too", full)
    assert re.search(r"rank 1: \S+/rank-1/", apart)
    assert re.search(r"rank 1.*/rank-1/\.metadata", missing)
    assert [words.partition(": ")[2] for words in told[1]] == [words.partition(": ")[2] for words in told[0]]
    saved = [path.name for path in (tmp_path / "saved").iterdir() if path.name != FILE]
    assert saved == ["step-1"], "the save after the one that failed"
    assert not (tmp_path / "rank-0" / "step-1").exists()


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    """A trainer that has done a step on one rank."""
    made = trainer_of(_config(tmp_path, Grid(), save=tmp_path, save_every=1), Comm(Grid(), recorder=Recorder()))
    made.step()
    return made


def test_a_disk_that_is_full_is_told_as_such_and_nothing_is_left_on_it(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a part of a tensor is written, where torch.save's own error is of a position."""
    write = torch_files.Hashed.write

    def full(self: torch_files.Hashed, content: Any) -> int:
        if self._stream.tell() > 300:
            self._stream = _Full()
        return write(self, content)

    monkeypatch.setattr(torch_files.Hashed, "write", full)
    with pytest.raises(RunError, match=r"__0_0\.distcp .*No space left"):
        trainer.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != FILE] == []


class _Full(io.BytesIO):
    def write(self, content: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_rank_whose_file_is_not_as_the_table_of_contents_says_refuses_it(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "saved_bytes", lambda dtype, sizes: 64)
    with pytest.raises(RunError, match=r"rank 0: torch\.save"):
        trainer.save(tmp_path)
    assert not (tmp_path / "step-1").exists()


def test_a_step_can_be_saved_again_even_after_a_save_that_was_killed_between_its_renames(
    trainer: Trainer, tmp_path: Path
) -> None:
    leftover = tmp_path / ".step-1.old"
    leftover.mkdir()
    (leftover / "manifest.json").write_text("{}")
    assert find(tmp_path) == leftover
    for _ in range(2):
        trainer.save(tmp_path)
    assert [folder.name for folder in tmp_path.iterdir() if folder.name != FILE] == ["step-1"]
    assert find(tmp_path) == tmp_path / "step-1"
