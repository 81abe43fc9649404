"""Commands leave results/ in the folder that they run in, and nothing else."""

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.cli.bench import collectives, gemm
from engine.cli.main import main
from engine.cli.peers import peers
from gpu_check.command import gpu

SHAPE = "--layers 1 --hidden 16 --heads 2 --vocab 32 --seq 8"
COMMANDS: dict[str, str] = {
    f"train {SHAPE} --batch-size 1 --data synthetic --iterations 1 --warmup 0 --energy off": "result.json",
    "bench gemm --dtype fp32 --sizes 16": "gemm.json",
    "bench memory --array-size 4096 --repeats 3": "memory.json",
    "bench latency --samples 20": "latency.json",
    f"bench flops {SHAPE}": "flops.json",
    f"bench matmul {SHAPE}": "matmul.json",
    "bench layers --hidden 32 --batch 2 --seq 4": "layers.json",
    f"bench dry {SHAPE} --grid 1x1x1x1 --batch-size 1": "",
    f"check {SHAPE} --batch-size 1 --data synthetic --ranks 1": "",
    f"plan {SHAPE} --system frontier --gpus 8 --batch-size 8 --equations": "",
    "bench startup --grid 1x1x1x2": "",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_leaves_results_and_nothing_else_where_it_runs(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main([*command.split(), *(["--device", "cpu"] if COMMANDS[command] else [])]) == 0
    left = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert left == ([f"results/{COMMANDS[command]}"] if COMMANDS[command] else [])


@pytest.mark.parametrize("command", [gemm, collectives, peers, gpu])
def test_what_needs_several_ranks_or_minutes_also_writes_below_results(command: Callable[..., int]) -> None:
    assert inspect.signature(command).parameters["out"].default.parent == Path("results")
