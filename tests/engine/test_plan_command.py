"""`plan`: the table, the document, why a grid costs what it does, and what can't be planned in one sentence."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from textwrap import dedent
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
from engine.planning import equations, explain
from engine.planning.document import GridPlan
from engine.planning.equations import MESSAGES
from engine.processes import kill_group
from engine.training_record import Training

ROOT = Path(__file__).parents[2]
EQUATIONS = [equation.__name__ for equation in equations.EQUATIONS]
OF_FRONTIER = ["plan", "--system", "frontier", "--equations"]
SMALL = "--model gpt-5b --gpus 8 --batch-size 8"


@pytest.fixture(scope="module")
def largest() -> GridPlan:
    """Document of 32,768 devices, as the command prints it."""
    return _document("--model gpt-320b --gpus 32768 --batch-tokens 16.8M --top 1000")


def _document(*options: str) -> GridPlan:
    with redirect_stdout(StringIO()) as out:
        assert main([*OF_FRONTIER, *" ".join(options).split(), "--json"]) == 0
    return GridPlan.model_validate_json(out.getvalue())


def _told(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([*OF_FRONTIER, *" ".join(options).split()]) == 0
    return capsys.readouterr().out


def _line(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def _numbers(text: str, start: str) -> list[str]:
    return re.findall(r"\d[\d.]*\b", _line(text, start))


def _facts(error: str) -> list[str]:
    """Find the facts of a system's file that an error names."""
    return re.findall(r"\b(?:node|device)\.[\w.]*\w", error)


def test_with_the_offload_more_grids_fit_and_a_person_is_told_what_the_times_lack(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = "--model gpt-20b --gpus 16 --batch-size 64 --top 1000"
    without, plan = (_document(job, offload) for offload in ("", "--offload"))
    assert (without.training.offload, plan.training.offload) == (False, True)
    assert plan.valid == without.valid > plan.fit > without.fit
    state = {row.grid: row.memory.parts["state"] for row in plan.rows}
    assert all(state[row.grid] < 0.3 * row.memory.parts["state"] for row in without.rows)
    texts = [_told(capsys, job, offload) for offload in ("", "--offload")]
    assert [explain.OFFLOADED in text for text in texts] == [False, True]


@pytest.mark.parametrize(("system", "precision"), [("summit", "fp16"), ("frontier", "bf16"), ("vcluster", "fp32")])
def test_the_usual_precision_is_one_that_the_device_has(
    capsys: pytest.CaptureFixture[str], system: str, precision: str
) -> None:
    assert main(["plan", "--system", system, *SMALL.split(), "--equations", "--device-memory", "1e12", "--json"]) == 0
    assert GridPlan.model_validate_json(capsys.readouterr().out).training.precision == precision


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
    said: dict[str, Any] = json.loads(_told(capsys, SMALL, "--json"))
    assert (said["schema"], said["version"]) == ("par4d.plan", 2)
    assert not {"time_s", "hfu", "days"} & said["rows"][0].keys()
    assert GridPlan.model_validate(said).model_dump(by_alias=True, exclude_none=True, mode="json") == said


def test_the_table_has_a_line_a_grid_best_first_and_says_how_many_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    said = _told(capsys, SMALL, "--top 3")
    plan = _document(SMALL)
    assert _numbers(said, f"{plan.fit} of ")[:5] == [str(plan.fit), str(plan.valid), "44.8", "70", "64"]
    lines = [line.split() for line in said.splitlines() if re.match(r"\s*\d+  ", line)]
    assert [line[1] for line in lines] == [row.grid for row in plan.rows[:3]]
    assert [float(line[3]) for line in lines] == pytest.approx([row.equations_s for row in plan.rows[:3]], rel=1e-2)
    assert "HFU" not in said
    assert max(len(line) for line in said.splitlines()[3:]) < 80


def test_a_plan_of_version_1_is_read() -> None:
    """In version 1 the options of training stood beside the others."""
    plan = _document(SMALL, "--checkpoint-every 2", "--offload")
    old = plan.model_dump(by_alias=True, exclude_none=True, mode="json")
    options = old.pop("training") | {"checkpoint_activations": True}
    read = GridPlan.model_validate(old | options | {"version": 1})
    assert read.training.asked() == plan.training
    assert read.activations == plan.activations == "recomputed (--checkpoint-every 2)"


def test_options_reach_the_plan() -> None:
    agnostic = _document(SMALL, "--agnostic", "--keep-activations", "--precision fp32", "--token-budget 2T")
    assert not agnostic.placement_aware
    assert not agnostic.training.checkpoint_activations
    assert (agnostic.precision, agnostic.token_budget) == ("fp32", 2e12)
    assert {found for row in agnostic.rows for found in row.bytes_per_s.values()} == {100e9}
    run = _document(SMALL, "--equations", "--micro-batch 1", "--device-memory 30e9")
    assert (run.ordered_by, run.device_memory_bytes) == ("equations", 30e9)
    assert {row.micro_batch for row in run.rows} == {1}
    assert all(row.memory.total <= 21e9 for row in run.rows)


def test_a_grid_is_explained_by_equations_bandwidths_memory_and_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    job = "--model gpt-80b --gpus 512 --batch-tokens 4M --top 1000"
    plan = _document(job)
    place = next(row.place for row in plan.rows if row.grid.startswith("4x4x") and row.place < plan.fit)
    row, after = plan.rows[place - 1 : place + 1]
    said = _told(capsys, job, f"--explain {place}")
    assert f"Number {place}, grid {row.grid}: " in said
    costs = re.findall(r"(Eq\. \d):.* over (\S+) +(\S+) s", said)
    spent = {(f"Eq. {EQUATIONS.index(c.equation) + 1}", c.axis): c.equations_s for c in row.costs if c.equations_s}
    times_s = {(equation, axis): float(number) for equation, axis, number in costs}
    assert times_s == pytest.approx(spent, rel=1e-2)
    assert _numbers(said, "Over x, ") == ["4", "50"]
    assert _line(said, "Over x, ").endswith(" in one node.")
    assert _numbers(said, "Over y, ") == ["4", "25", "4", "100"]
    assert "leaves its nodes" in _line(said, "Over y, ")
    assert _numbers(said, "A rank needs ")[:2] == [f"{row.memory.total / 1e9:.3g}", "64"]
    assert f"The next, grid {after.grid}, costs " in said
    assert row.reduce_dtypes == {"z": "bf16", "data": "bf16"}
    assert re.findall(r"(\w+) in (\w+)", _line(said, "Gradients ")) == [("z", "bf16"), ("data", "bf16")]
    last = _told(capsys, job, f"--explain {plan.fit}")
    assert explain.LAST[False] in last


def test_a_pipeline_is_explained_with_the_options_that_choose_its_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--system", "vcluster", "--model", "gpt-vcluster-deep", "--gpus", "4", "--batch-size", "8"]
    assert main([*words, "--micro-batch", "1", "--pipe", "4", "--device-memory", "2e9", "--explain", "1"]) == 0
    said = capsys.readouterr().out
    assert "Number 1, grid 1x1x1x1p4: " in said
    assert f"{explain.EQUATIONS[MESSAGES]} over pipe" in said
    assert re.search(r" \S+ GB/s .*two nodes", _line(said, "Over pipe, "))
    schedule = _line(said, "A training takes ")
    assert "--schedule message-driven-zb " in schedule
    assert re.search(r" --pipeline-limit \d+ --weight-limit \d+ ", schedule)


def test_where_many_ranks_sum_gradients_the_explanation_says_that_they_travel_in_fp32(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = "--model gpt-5b --gpus 1024 --batch-size 1024 --top 1000"
    row = next(row for row in _document(job).rows if row.grid == "2x1x8x64")
    assert row.reduce_dtypes == {"z": "bf16", "data": "fp32"}
    narrow = _document(job, "--reduce-dtype bf16").rows[0]
    assert narrow.reduce_dtypes == {"z": "bf16", "data": "bf16"}
    summed = _line(_told(capsys, job, f"--explain {row.place}"), "Gradients ")
    assert re.findall(r"(\w+) in (\w+)", summed) == [("z", "bf16"), ("data", "fp32")]
    assert " for bf16 loses " in summed


def test_of_a_tie_the_rule_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    options = [SMALL, "--keep-activations", "--device-memory 100e9"]
    assert [row.grid for row in _document(*options).rows[:2]] == ["2x1x1x4", "2x1x2x2"]
    after = _line(_told(capsys, *options, "--explain 1"), "The next, ")
    assert re.search("2x1x2x2,.* same,.* data ", after)


def test_a_system_without_the_facts_is_told_which_are_lacking(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = yaml.safe_load((systems.FOLDER / "frontier.yaml").read_text())
    del facts["node"]["nics"], facts["node"]["intra_node_bytes_per_s"]
    (tmp_path / "poor.yaml").write_text(yaml.safe_dump(facts))
    monkeypatch.setattr(systems, "FOLDER", tmp_path)
    small = SMALL.split()
    lacking = ["node.intra_node_bytes_per_s", "node.nics"]
    for options, about in ((["--equations"], "measured on poor"), ([], "in bf16")):
        assert main(["plan", "--system", "poor", *small, *options]) == 2
        error = capsys.readouterr().err
        assert _facts(error) == lacking
        assert about in error
    facts["device"] = {"name": "a card that nobody knows", "kind": "cuda"}
    del facts["performance"]
    (tmp_path / "poorer.yaml").write_text(yaml.safe_dump(facts))
    assert main(["plan", "--system", "poorer", *small]) == 2
    error = capsys.readouterr().err
    assert _facts(error) == ["device.peak_flops.bf16", "device.memory_bytes_per_s", *lacking]
    assert "run par4d calibrate" in error


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        ("--model gpt-80b --gpus 8191 --batch-size 8192", r"8191 devices .* valid .*: 8192\."),
        ("--model gpt-80b --gpus 24 --batch-tokens 16.8M", r" 24 .* 32 \(grid 1x4x8x1\)"),
        ("--model gpt-80b --gpus 131072 --batch-tokens 16.8M", "frontier .* 78,848 .* 9,856 .* 8, .* 131,072 "),
        ("--model gpt-80b --gpus 8 --batch-tokens 4M", r"gpt-80b .* 8 devices: .* 160\.1 GB"),
        ("--model gpt-81b --gpus 8 --batch-size 8", "'gpt-81b': .* gpt-80b"),
        ("--system fontier --model gpt-5b --gpus 8 --batch-size 8", "'fontier': .* frontier"),
        (f"{SMALL} --as-run", "--as-run"),
        ("--model gpt-5b --gpus 8", "--batch-tokens or .*--batch-size"),
        ("--model gpt-5b --gpus 8 --batch-size 8 --batch-tokens 4M", "--batch-tokens or .*--batch-size"),
        ("--model gpt-5b --gpus 8 --batch-tokens 4m", "--batch-tokens: .* '4m' "),
        ("--model gpt-5b --gpus 8 --batch-size 8 --top 0", "--top .* 1 up, .* 0 "),
        ("--model gpt-5b --gpus 8 --batch-size 8 --micro-batch 0", "--micro-batch .* 1 up, .* 0 "),
        ("--model gpt-5b --gpus 8 --batch-size 8 --device-memory nan", "--device-memory .* nan "),
        ("--model gpt-5b --gpus 8 --batch-size 8 --explain 11", "--explain .* 1 to --top 10, .* 11 "),
        ("--model gpt-5b --gpus 1 --batch-size 1 --device-memory 1e15 --explain 2", "--explain 2 .*: 1 fit"),
        ("--model gpt-5b --gpus 8 --batch-size 8 --checkpoint-every 25", "--checkpoint-every 25 .* gpt-5b has 24:"),
        (
            "--model gpt-5b --gpus 8 --batch-size 8 --checkpoint-every 2 --keep-activations",
            "--keep-activations .*-every",
        ),
        ("--model gpt-5b --batch-size 8", "devices, by --gpus"),
        (f"{SMALL} --pipe 0", "--pipe .* 1 up, or auto, .* 0 "),
        (f"{SMALL} --pipe two", "--pipe .* auto, .* 'two' "),
        (f"{SMALL} --pipe 2", "--pipe .*--equations and --agnostic"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(options: str, numbers: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*OF_FRONTIER, *options.split()]) == 2
    told = capsys.readouterr()
    assert re.search(numbers, told.err)
    assert told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.parametrize(("text", "number"), [("16.8M", 16.8e6), ("4M", 4e6), ("2T", 2e12), ("1.5B", 1.5e9), ("7", 7)])
def test_tokens_are_read_with_their_scale(text: str, number: float) -> None:
    assert tokens(text) == pytest.approx(number)
    for wrong in (f"-{text}", f"{text}x", "0", ""):
        with pytest.raises(UsageError, match=f"16.8M, 2T .*{wrong!r}"):
            tokens(wrong)


def test_a_batch_of_images_is_called_so_and_has_no_budget_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    job = "--model unet-tiny --gpus 4 --batch-size 64 --equations"
    said, plan = _told(capsys, job), _document(job)
    assert " 64 images; bf16" in said
    assert (plan.samples, plan.token_budget) == ("images", None)
    budgeted, small = _document(job, "--token-budget 2T"), _document(SMALL)
    assert budgeted.token_budget == 2e12
    assert small.samples == "sequences"


def test_an_interrupted_plan_ends_without_a_traceback_of_it_or_of_its_workers() -> None:
    words = "plan --system frontier --model gpt-80b --gpus 8192 --batch-tokens 16.8M"
    plan = subprocess.Popen(
        [sys.executable, "-m", "engine", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert plan.stdout is not None
    assert plan.stderr is not None
    try:
        assert "traced 1 of" in plan.stderr.readline()
        os.killpg(plan.pid, signal.SIGINT)
        _, error = plan.communicate(timeout=120)
    finally:
        kill_group(plan)
    told = [line for line in error.splitlines() if "traced" not in line]
    assert (plan.returncode, told) == (128 + signal.SIGINT, [])


def test_worker_processes_are_deaf_to_an_interrupt_that_their_parent_gets() -> None:
    code = """
        import signal
        from engine.processes import start_fork_server, worker_processes

        start_fork_server()
        with worker_processes(1) as executor:
            print(signal.SIGINT in executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result())
        print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))
    """
    words = [sys.executable, "-c", dedent(code)]
    told = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, check=True, capture_output=True
    )
    assert told.stdout.split() == [b"True", b"False"]
