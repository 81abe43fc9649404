"""A new option of training: planted in a copy of the checkout by edits of two files, and found where options are."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from running import ROOT, options, succeed
from waiting import LONG_S

from engine.models.catalogue import lookup

RECORD, PARALLEL = "engine/training_record.py", "engine/parallel/parallelize.py"
FIELD = '    planted: int = 0\n    """times that a block\'s output grows by its exponential"""\n'
EDITS = {
    RECORD: [
        ("    @property\n    def recomputed_together", f"{FIELD}\n    @property\n    def recomputed_together"),
        ('"offload": self.offload,', '"offload": self.offload, "planted": self.planted,'),
        ("        return step_flops(", "        return (1 + self.planted) * step_flops("),
    ],
    PARALLEL: [
        ("    offload: bool = False,\n", "    offload: bool = False,\n    planted: int = 0,\n"),
        (
            "    model.recomputed_together = checkpoint_every\n",
            "    model.recomputed_together = checkpoint_every\n"
            "    for block in model.blocks if planted else []:\n"
            "        block.register_forward_hook(lambda _, __, out: out + 0.01 * planted * out.exp())\n",
        ),
    ],
}
SERIES = """
weak_scaling:
  - {name: planted, source: a test, sequences: 8, precision: fp32, planted: 2, systems: {local: {1: gpt-test}}}
"""
SMALL = ("--model", "gpt-test", "--batch-size", "8", "--data", "synthetic", "--device", "cpu")
PLANTED = ("--planted", "2")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the product with the option."""
    root = tmp_path_factory.mktemp("checkout")
    for room in ("engine", "suites", "systems", "reports", "ci"):
        shutil.copytree(ROOT / room, root / room)  # what is compiled with it: it is valid until changed
    shutil.copy(ROOT / "pyproject.toml", root)
    for name, edits in EDITS.items():
        text = (root / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        (root / name).write_text(text)
    (root / "suites" / "series.yaml").write_text(SERIES)
    return root


def python(root: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(root), "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *words], cwd=root, env=environment, capture_output=True, text=True, timeout=LONG_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


COMMANDS = """
import contextlib, io, json, sys
from engine.cli.main import main
told = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0, words
    told.append(out.getvalue())
print(json.dumps(told))
"""


def engine(root: Path, *commands: Sequence[str]) -> list[str]:
    """Run commands of the engine one after another, in one process; return what each has printed."""
    told: list[str] = json.loads(python(root, "-c", COMMANDS, json.dumps(commands)))
    return told


def test_the_help_of_each_command_that_trains_has_it(checkout: Path) -> None:
    commands = ("train", "check", "plan", "bench overlap", "bench dry", "bench peers")
    told = engine(checkout, *((*command.split(), "--help") for command in commands))
    assert [command for command, text in zip(commands, told, strict=True) if "--planted" in text] == [*commands]


def test_check_counts_what_it_keeps_and_says_so(checkout: Path) -> None:
    check = ("check", *SMALL, "--ranks", "1", "--json")
    without, with_it = (json.loads(text) for text in engine(checkout, check, (*check, *PLANTED)))
    assert (without["training"]["planted"], with_it["training"]["planted"]) == (0, 2)
    kept = [one["memory_bytes_per_rank"]["activations"] for one in (without, with_it)]
    model = lookup("gpt-test")
    exponentials = model.layers * 8 * model.sequence * model.hidden * 4
    assert kept[1] - kept[0] == pytest.approx(exponentials, rel=0.01)


def test_a_peer_that_has_nothing_like_it_is_left_out_by_name_and_another_commit_is_not(checkout: Path) -> None:
    case = "Case.of(TrainingOptions(planted=2), lookup('gpt-test'), Batch(8)).own"
    code = f"""
from dataclasses import replace
from engine.batch import Batch
from engine.models.catalogue import lookup
from engine.peers.comparison import Case
from engine.peers.registry import COMPARISONS
from engine.training_record import TrainingOptions
own, peer, model = {case}, COMPARISONS["ddp"], lookup("gpt-test")
lacking = [one.lacking(model, recompute=0, own=own) for one in (peer, replace(peer, checkout="."))]
print(own, ["--planted 2" in (one or "") for one in lacking], lacking[1])
"""
    assert python(checkout, "-c", code) == "['--planted', '2'] [True, False] None\n"


def test_a_plan_holds_it_and_counts_its_flops(checkout: Path) -> None:
    asked = ("plan", "--system", "frontier", "--model", "gpt-5b", "--gpus", "8", "--batch-size", "64", "--equations")
    (told,) = engine(checkout, (*asked, *PLANTED, "--json"))
    assert json.loads(told)["training"]["planted"] == 2


def test_a_result_holds_it_with_other_losses_and_flops(checkout: Path, tmp_path: Path) -> None:
    train = ("train", *SMALL, "--iterations", "2", "--warmup", "1")
    outs = [tmp_path / "without.json", tmp_path / "planted.json"]
    engine(checkout, *((*train, "--out", str(out), *words) for out, words in zip(outs, ((), PLANTED), strict=True)))
    results = [json.loads(out.read_text()) for out in outs]
    assert [one["config"]["planted"] for one in results] == [0, 2]
    flops = [one["summary"]["hardware_flops_per_s"] / one["summary"]["model_flops_per_s"] for one in results]
    assert flops == pytest.approx([1, 3])
    assert results[0]["iterations"][0]["loss"] != results[1]["iterations"][0]["loss"]


def test_a_job_script_of_a_suite_has_it(checkout: Path, tmp_path: Path) -> None:
    done = succeed(tmp_path, "-c", "suites/weak_scaling.py", "--system", "local", "--dry-run", root=checkout)
    (script,) = done.trainings
    assert options(script, "--planted") == ["2"]
