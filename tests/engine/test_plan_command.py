"""`plan`: the table, the document, why a grid costs what it does, and what can't be planned in one sentence."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

import systems
from engine.batch import Batch
from engine.cli.main import main
from engine.cli.plan import tokens
from engine.errors import UsageError
from engine.footprint.fit import check_grid, check_memory
from engine.footprint.memory import usable
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import ALL
from engine.planning import equations
from engine.planning.document import GridPlan
from engine.training_record import Training

EQUATIONS = [equation.__name__ for equation in equations.EQUATIONS]
OF_FRONTIER = ["plan", "--system", "frontier", "--equations"]
SMALL = "--model gpt-5b --gpus 8 --batch-size 8"


@pytest.fixture(scope="module")
def largest() -> GridPlan:
    """Of 32,768 devices, by the document that the command prints."""
    return _document("--model gpt-320b --gpus 32768 --batch-tokens 16.8M --top 1000")


def _document(words: str) -> GridPlan:
    with redirect_stdout(StringIO()) as out:
        assert main([*OF_FRONTIER, *words.split(), "--json"]) == 0
    return GridPlan.model_validate_json(out.getvalue())


def _told(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main([*OF_FRONTIER, *words.split()]) == 0
    return capsys.readouterr().out


def test_with_the_offload_more_grids_fit_and_a_person_is_told_what_the_times_lack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--model gpt-20b --gpus 16 --batch-size 64 --top 1000"
    without, plan = (_document(f"{words} {offload}") for offload in ("", "--offload"))
    assert (without.training.offload, plan.training.offload) == (False, True)
    assert plan.valid == without.valid > plan.fit > without.fit
    state = {row.grid: row.memory.parts["state"] for row in plan.rows}
    assert all(state[row.grid] < 0.3 * row.memory.parts["state"] for row in without.rows)
    sentence = "Matrices and their moments lie on the host, in fp32; the way from there and back"
    assert [sentence in _told(capsys, f"{words} {offload}") for offload in ("", "--offload")] == [False, True]


def test_every_grid_of_32768_devices_that_is_told_can_be_trained_on(largest: GridPlan) -> None:
    assert (largest.schema_, largest.version, largest.sequences, largest.tokens) == ("par4d.plan", 2, 8192, 1 << 24)
    assert largest.valid > largest.fit == len(largest.rows) > 500
    assert [row.place for row in largest.rows] == list(range(1, largest.fit + 1))
    model = lookup(largest.model)
    for row in largest.rows[::50]:
        batch, grid = Batch(largest.sequences, row.micro_batch), Grid.parse(row.grid)
        assert grid.size == 32768
        check_grid(model, grid, batch)
        check_memory(Training(model, batch, precision="bf16", checkpoint_every=1, overlap=ALL), grid, usable(64e9))


def test_the_document_adds_up_and_is_in_order(largest: GridPlan) -> None:
    for row, after in zip(largest.rows, largest.rows[1:], strict=False):
        assert sum(cost.equations_s for cost in row.costs) == pytest.approx(row.equations_s)
        assert sum(cost.as_run_s for cost in row.costs) == pytest.approx(row.as_run_s)
        assert sum(row.memory.parts.values()) == pytest.approx(row.memory.total)
        assert row.memory.of_device == pytest.approx(row.memory.total / 64e9)
        assert row.equations_s <= row.as_run_s * (1 + 1e-9)
        assert row.equations_s <= after.equations_s * (1 + 1e-8)
    assert largest.token_budget == pytest.approx(20 * largest.parameters)


def test_the_document_leaves_out_what_only_a_simulation_tells(capsys: pytest.CaptureFixture[str]) -> None:
    said: dict[str, Any] = json.loads(_told(capsys, f"{SMALL} --json"))
    assert (said["schema"], said["version"]) == ("par4d.plan", 2)
    assert not {"time_s", "hfu", "days"} & said["rows"][0].keys()
    assert GridPlan.model_validate(said).model_dump(by_alias=True, exclude_none=True, mode="json") == said


def test_the_table_has_a_line_a_grid_best_first_and_says_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    said = _told(capsys, f"{SMALL} --top 3")
    plan = _document(SMALL)
    assert f"{plan.fit} of {plan.valid} valid grids fit in 44.8 GB, 70% of a device's 64 GB" in said
    lines = [line.split() for line in said.splitlines() if re.match(r"\s*\d+  ", line)]
    assert [line[1] for line in lines] == [row.grid for row in plan.rows[:3]]
    assert [float(line[3]) for line in lines] == pytest.approx([row.equations_s for row in plan.rows[:3]], rel=1e-2)
    assert "HFU" not in said
    assert max(len(line) for line in said.splitlines()[3:]) < 80


def test_a_plan_of_version_1_is_read() -> None:
    """Its options of training stood beside the others."""
    plan = _document(f"{SMALL} --checkpoint-every 2 --offload")
    old = plan.model_dump(by_alias=True, exclude_none=True, mode="json")
    options = old.pop("training") | {"checkpoint_activations": True}
    read = GridPlan.model_validate(old | options | {"version": 1})
    assert read.training.asked() == plan.training
    assert read.activations == plan.activations == "recomputed (--checkpoint-every 2)"


def test_options_reach_the_plan() -> None:
    agnostic = _document(f"{SMALL} --agnostic --keep-activations --precision fp32 --token-budget 2T")
    assert not agnostic.placement_aware
    assert not agnostic.training.checkpoint_activations
    assert (agnostic.precision, agnostic.token_budget) == ("fp32", 2e12)
    assert {found for row in agnostic.rows for found in row.bytes_per_s.values()} == {100e9}
    run = _document(f"{SMALL} --equations --micro-batch 1 --device-memory 30e9")
    assert (run.ordered_by, run.device_memory_bytes) == ("equations", 30e9)
    assert {row.micro_batch for row in run.rows} == {1}
    assert all(row.memory.total <= 21e9 for row in run.rows)


def test_a_grid_is_explained_by_equations_bandwidths_memory_and_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model gpt-80b --gpus 512 --batch-tokens 4M --top 1000"
    plan = _document(words)
    place = next(row.place for row in plan.rows if row.grid.startswith("4x4x") and row.place < plan.fit)
    row, after = plan.rows[place - 1 : place + 1]
    said = _told(capsys, f"{words} --explain {place}")
    assert f"Number {place}, grid {row.grid}: " in said
    told = re.findall(r"(Eq\. \d): .* over (\S+) +(\S+) s", said)
    spent = {(f"Eq. {EQUATIONS.index(c.equation) + 1}", c.axis): c.equations_s for c in row.costs if c.equations_s}
    assert {(equation, axis): float(number) for equation, axis, number in told} == pytest.approx(spent, rel=1e-2)
    assert "Over x, 4 ranks find 50 GB/s: their group lies in one node." in said
    assert "Over y, 4 ranks find 25 GB/s: their group leaves its nodes, where 4 rings share 100 GB/s." in said
    assert f"A rank needs {row.memory.total / 1e9:.3g} of its device's 64 GB: " in said
    assert f"The next, grid {after.grid}, costs " in said
    assert row.reduce_dtypes == {"z": "bf16", "data": "bf16"}
    assert "Gradients are summed over z in bf16 and over data in bf16." in said
    assert "It is the last one that fits." in _told(capsys, f"{words} --explain {plan.fit}")


def test_a_pipeline_is_explained_with_the_options_that_choose_its_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan --system vcluster --model gpt-vcluster-deep --gpus 4 --batch-size 8 --micro-batch 1 --pipe 4"
    assert main([*words.split(), "--device-memory", "2e9", "--explain", "1"]) == 0
    said = capsys.readouterr().out
    assert "Number 1, grid 1x1x1x1p4: " in said
    assert "activations and their gradients sent over pipe" in said
    assert re.search(r"Over pipe, messages find \S+ GB/s between stages on two nodes\.", said)
    assert re.search(r"Its stages work by --schedule message-driven-zb --pipeline-limit \d+ --weight-limit \d+\.", said)


def test_where_many_ranks_sum_gradients_the_explanation_says_that_they_travel_in_fp32(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "--model gpt-5b --gpus 1024 --batch-size 1024 --top 1000"
    row = next(row for row in _document(words).rows if row.grid == "2x1x8x64")
    assert row.reduce_dtypes == {"z": "bf16", "data": "fp32"}
    assert _document(f"{words} --reduce-dtype bf16").rows[0].reduce_dtypes == {"z": "bf16", "data": "bf16"}
    said = _told(capsys, f"{words} --explain {row.place}")
    assert "over z in bf16 and over data in fp32, for bf16 loses too much over so many ranks." in said


def test_of_a_tie_the_rule_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"{SMALL} --keep-activations --device-memory 100e9 --explain 1"
    assert [row.grid for row in _document(words).rows[:2]] == ["2x1x1x4", "2x1x2x2"]
    assert "grid 2x1x2x2, costs the same, and comes later because its data is smaller." in _told(capsys, words)


def test_a_system_without_the_facts_is_told_which_are_lacking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = yaml.safe_load((systems.FOLDER / "frontier.yaml").read_text())
    del facts["node"]["nics"], facts["node"]["intra_node_bytes_per_s"]
    (tmp_path / "poor.yaml").write_text(yaml.safe_dump(facts))
    monkeypatch.setattr(systems, "FOLDER", tmp_path)
    words = ["plan", "--system", "poor", *SMALL.split()]
    assert main([*words, "--equations"]) == 2
    assert "measured on poor, and its file lacks node.intra_node_bytes_per_s and node.nics: " in capsys.readouterr().err
    assert main(words) == 2
    assert "in bf16 its file lacks node.intra_node_bytes_per_s and node.nics: add them" in capsys.readouterr().err
    facts["device"] = {"name": "a card that nobody knows", "kind": "cuda"}
    del facts["performance"]
    (tmp_path / "poorer.yaml").write_text(yaml.safe_dump(facts))
    assert main(["plan", "--system", "poorer", *SMALL.split()]) == 2
    said = capsys.readouterr().err
    assert "lacks device.peak_flops.bf16 and device.memory_bytes_per_s and node.intra_node_bytes_per_s and " in said
    assert "node.nics: run par4d calibrate" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--model gpt-80b --gpus 8191 --batch-size 8192", "the nearest number of devices with a valid grid: 8192."),
        ("--model gpt-80b --gpus 8191 --batch-tokens 16.8M", "on which it fits is 32 (grid 1x4x8x1), the nearest 8192"),
        (
            "--model gpt-80b --gpus 131072 --batch-tokens 16.8M",
            "frontier has 78,848 devices, 9,856 nodes of 8, but 131,072 were asked",
        ),
        ("--model gpt-80b --gpus 8 --batch-tokens 4M", "gpt-80b fits on no grid of 8 devices: a rank needs "),
        ("--model gpt-81b --gpus 8 --batch-size 8", "No model is called 'gpt-81b': did you mean gpt-80b"),
        (
            "--system fontier --model gpt-5b --gpus 8 --batch-size 8",
            "No system is called 'fontier': did you mean front",
        ),
        (f"{SMALL} --as-run", "--as-run"),
        ("--model gpt-5b --gpus 8", "Give the batch either by --batch-tokens or by --batch-size."),
        ("--model gpt-5b --gpus 8 --batch-size 8 --batch-tokens 4M", "Give the batch either by"),
        ("--model gpt-5b --gpus 8 --batch-tokens 4m", "--batch-tokens: "),
        ("--model gpt-5b --gpus 8 --batch-size 8 --top 0", "--top is a number from 1 up, but 0 was given."),
        ("--model gpt-5b --gpus 8 --batch-size 8 --micro-batch 0", "--micro-batch is a number from 1 up, but 0"),
        ("--model gpt-5b --gpus 8 --batch-size 8 --device-memory nan", "--device-memory is a positive number"),
        ("--model gpt-5b --gpus 8 --batch-size 8 --explain 11", "from 1 to --top 10, but 11 was given."),
        ("--model gpt-5b --gpus 1 --batch-size 1 --device-memory 1e15 --explain 2", "there isn't: 1 fit."),
        ("--model gpt-5b --gpus 8 --batch-size 8 --checkpoint-every 25", "gpt-5b has 24: use 24 or fewer, or auto."),
        ("--model gpt-5b --gpus 8 --batch-size 8 --checkpoint-every 2 --keep-activations", "give one of both."),
        ("--model gpt-5b --batch-size 8", "Say on how many devices, by --gpus."),
        (f"{SMALL} --pipe 0", "--pipe is a number of stages from 1 up, or auto, but 0 was given."),
        (f"{SMALL} --pipe two", "--pipe is a whole number or auto, but 'two' was given."),
        (f"{SMALL} --pipe 2", "--pipe plans what is simulated: leave --equations and --agnostic out."),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OF_FRONTIER, *words.split()]) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.parametrize(("text", "number"), [("16.8M", 16.8e6), ("4M", 4e6), ("2T", 2e12), ("1.5B", 1.5e9), ("7", 7)])
def test_tokens_are_read_with_their_scale(text: str, number: float) -> None:
    assert tokens(text) == pytest.approx(number)
    for wrong in (f"-{text}", f"{text}x", "0", ""):
        with pytest.raises(UsageError, match="Tokens are written as"):
            tokens(wrong)


def test_a_batch_of_images_is_called_so_and_has_no_budget_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--model unet-tiny --gpus 4 --batch-size 64 --equations"
    said, plan = _told(capsys, words), _document(words)
    assert "Batches of 64 images; bf16" in said
    assert (plan.samples, plan.token_budget) == ("images", None)
    assert _document(f"{words} --token-budget 2T").token_budget == 2e12
    assert _document(SMALL).samples == "sequences"
