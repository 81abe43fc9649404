"""The command line: each option sets its own field, and what can't work is one sentence and exit code 2."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from cyclopts import Argument
from cyclopts.annotations import resolve_optional
from waiting import LONG_S

from engine.batch import Batch
from engine.cli.main import commands, main
from engine.contest.rounds import Rounds
from engine.grid import Grid
from engine.overlap.flags import ALL, Overlap, Pace
from engine.peers.comparison import Sampling
from engine.training.config import RunConfig, TrainConfig
from engine.training_record import OptimConfig

SMALL = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic"]
STAGES = ["check", *SMALL, "--ranks", "2", "--grid", "1x1x1x1", "--pipe", "2"]
OF_TRAIN = """
    model architecture layers hidden heads kv-heads ffn vocab seq base image patch classes norm no-bias tied dropout
    grid batch-size micro-batch iterations warmup precision reduce-dtype checkpoint-activations checkpoint-every
    checkpoint-blocks offload tensor-mode gather-inputs-again data verify seed optimizer
    device timeout meeting-timeout devices-per-node device-memory peak-flops empirical-peak-flops energy measure-peak
    link-bytes-per-s intra-node-bytes-per-s breakdown tune-matmul label out overlap prefetch-depth reduce-window
    bucket-bytes cache-bytes
    timeline learning-rate beta1 beta2 weight-decay clip lr-warmup-steps lr-decay-steps
    profile profile-iterations profile-ranks evaluate-every evaluation-data
    save save-every export resume other-data pipe schedule pipeline-limit weight-limit chunks stages
    messages system
"""
OF_NO_ABLATION = """
    iterations peak-flops empirical-peak-flops measure-peak energy timeline save save-every export resume other-data
    evaluate-every evaluation-data profile profile-iterations profile-ranks
"""
OF_TURNS = "variant rounds steps-per-round end-within"
OF_BENCH_OVERLAP = [*(set(OF_TRAIN.split()) - set(OF_NO_ABLATION.split())), *OF_TURNS.split()]
OF_BENCH_PIPELINE = [
    *(set(OF_BENCH_OVERLAP) - {"variant"}),
    *("schedules", "timeline", "slow-stage", "slow-by", "delays"),
]
OF_BENCH_GRIDS = [*(set(OF_BENCH_OVERLAP) - {"variant"}), "candidate", "first"]
OF_BENCH_OPTIMISATIONS = [*(set(OF_BENCH_OVERLAP) - {"variant"}), "baseline", "apart", "at-once"]
OF_PREPARE = "source out vocab-size tokenizer end-of-text max-bytes text-key json"
OF_SAMPLE = "resume images micro-batch sampler sampler-steps seed grid precision device"
OF_BENCH_MATMUL = """
    model architecture layers hidden heads kv-heads ffn vocab seq
    base image patch classes norm no-bias tied dropout grid micro-batch
    micro-batches precision reduce-dtype checkpoint-activations checkpoint-every checkpoint-blocks offload optimizer
    tensor-mode gather-inputs-again twice device timeout meeting-timeout label out
"""
OF_BENCH_LAYERS = "grid tensor-mode batch hidden seq precision device timeout meeting-timeout label out"
OF_PLAN = """
    model architecture layers hidden heads kv-heads ffn vocab seq
    base image patch classes norm no-bias tied dropout system gpus pipe batch-tokens
    batch-size micro-batch precision reduce-dtype checkpoint-activations keep-activations checkpoint-every
    checkpoint-blocks offload tensor-mode gather-inputs-again optimizer overlap
    prefetch-depth reduce-window bucket-bytes cache-bytes device-memory token-budget agnostic equations exact top
    explain json out validate measured refit
"""
OF_BENCH_PEERS = """
    schedule pipeline-limit weight-limit chunks stages
    optimizer
    peer grid layout against overlap checkpoint-activations checkpoint-every checkpoint-blocks batch-size
    micro-batch peer-micro-batch tensor-mode gather-inputs-again
    loss-scale autocast precision reduce-dtype device device-memory node-memory devices-per-node despite-estimate
    tune-matmul label out jobs rounds warmup steps-per-round threads timeout meeting-timeout apart at-once peak-flops
    empirical-peak-flops measure-peak breakdown model architecture layers hidden heads kv-heads ffn vocab seq
    base image patch classes norm no-bias tied dropout
"""
TIMEOUTS = ["timeout", "meeting-timeout"]
UNSET_BY_OPTIONS = {"eps", "final_fraction"}
ODD_WORDS = {
    "--checkpoint-every": "5",
    "--grid": "3x1x2x5",
    "--label": "key=a=b",
    "--overlap": "oar,cache=3",
    "--profile-iterations": "4..6",
    "--profile-ranks": "2,4",
    "--tune-matmul": "force",
}
READ_AS = {"--label": "(('key', 'a=b'),)", "--profile-iterations": "(4, 5, 6)", "--profile-ranks": "(2, 4)"}


def _options(*command: str) -> list[Argument]:
    """List what a command takes, without the dataclasses that hold it."""
    app = commands("par4d")
    _, apps, _ = app.parse_commands(command)
    with app.app_stack(apps):
        found = [option for option in apps[-1].assemble_argument_collection() if option.parse and not option.children]
        return [option for option in found if option.show]


def _parsed(*argv: str) -> dict[str, Any]:
    """The parameters that the command would be called with."""
    _, bound, _ = commands("par4d").parse_args(argv)
    return dict(bound.arguments)


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of nested dataclasses with their paths; a Grid and the flags of an Overlap are one value."""
    if is_dataclass(value) and not isinstance(value, Grid | Overlap):
        for field in fields(value):
            yield from _leaves(f"{name}.{field.name}", getattr(value, field.name))
    else:
        yield name, value


TRAINING = [option for option in _options("train") if option.name != "--json"]
"""Options of what is trained, not of how that is told."""


def _word(option: Argument) -> list[str]:
    """A value that is nobody's default; none for a flag."""
    if option.name in ODD_WORDS:
        return [ODD_WORDS[option.name]]
    hint = resolve_optional(option.hint)
    if get_origin(hint) is Literal:
        return [get_args(hint)[-1]]
    return {bool: [], int: ["977"], float: ["97.75"], str: ["odd"], Path: ["odd/place"]}[hint]


@pytest.mark.parametrize("option", TRAINING, ids=lambda option: option.name)
def test_an_option_sets_its_field_and_no_other(option: Argument) -> None:
    required = ["--batch-size", "5", "--data", "here"]
    usual = dict(_leaves("", _parsed("train", *required)["config"])) | dict(_leaves("", Pace()))
    words = [f"{option.name}={word}" for word in _word(option)] or [option.name]
    asked = _parsed("train", *required, *words)
    given = dict(_leaves("", asked["config"])) | dict(_leaves("", asked.get("pace", Pace())))
    changed = {key for key in usual if given[key] != usual[key]}
    (path,) = changed
    assert path.endswith(f".{option.field_info.name}")
    assert str(given[path]) == READ_AS.get(option.name, (_word(option) or ["True"])[0])


def test_every_field_has_an_option_of_its_own() -> None:
    reached = {option.field_info.name for option in TRAINING}
    there = {path.rpartition(".")[2] for path, _ in _leaves("", TrainConfig(batch=Batch(1), data=""))}
    there |= {field.name for field in fields(Pace)}
    assert there - reached == UNSET_BY_OPTIONS
    assert len(TRAINING) == len(there) - len(UNSET_BY_OPTIONS)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["train"], [*OF_TRAIN.split(), "json"]),
        (["check"], [*OF_TRAIN.split(), "ranks", "brief", "json"]),
        (["plan"], OF_PLAN.split()),
        (["data", "prepare"], OF_PREPARE.split()),
        (["data", "prepare-images"], ["source", "out", "size", "unlabelled", "json"]),
        (["sample"], [*OF_SAMPLE.split(), *TIMEOUTS, "label", "json", "out"]),
        (["bench", "gemm"], ["dtype", "sizes", "device", "time-budget", *TIMEOUTS, "label", "json", "out"]),
        (["bench", "memory"], ["array-size", "repeats", "device", "time-budget", *TIMEOUTS, "label", "json", "out"]),
        (["bench", "latency"], ["samples", "device", *TIMEOUTS, "label", "json", "out"]),
        (["bench", "startup"], ["grid", "model", "json"]),
        (["bench", "matmul"], [*OF_BENCH_MATMUL.split(), "json"]),
        (["bench", "layers"], [*OF_BENCH_LAYERS.split(), "json"]),
        (["bench", "overlap"], [*OF_BENCH_OVERLAP, "json"]),
        (["bench", "pipeline"], [*OF_BENCH_PIPELINE, "json"]),
        (["bench", "grids"], [*OF_BENCH_GRIDS, "json"]),
        (["bench", "optimisations"], [*OF_BENCH_OPTIMISATIONS, "json"]),
        (["bench", "peers"], [*OF_BENCH_PEERS.split(), "json"]),
    ],
)
def test_a_command_has_these_options_and_its_help_tells_each(
    command: list[str], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(name for option in _options(*command) for name in option.names) == sorted(f"--{n}" for n in names)
    assert main([*command, "--help"]) == 0
    rows = [line.strip("│ *").split() for line in capsys.readouterr().out.splitlines()]
    told = {word: row[1:] for row in rows for word in takewhile(lambda word: word.startswith("--"), row)}
    assert {f"--{name}" for name in names} <= told.keys()
    assert all(len(words) > 1 for words in told.values()), "each says what it is for"


def test_defaults_of_the_command_line_are_those_of_the_dataclasses() -> None:
    asked = _parsed("train", "--batch-size", "5", "--data", "here")
    assert asked["config"] == TrainConfig(batch=Batch(5), data="here")
    one = _parsed("train", "--batch-size", "5", "--data", "here", "--clip", "2", "--prefetch-depth", "9")
    assert one["config"].optim == OptimConfig(clip=2.0)
    assert one["pace"] == Pace(prefetch_depth=9)
    assert _parsed("bench", "peers", "--threads", "2")["sampling"] == Sampling(threads=2)
    ablation = _parsed("bench", "overlap", "--batch-size", "5", "--data", "here", "--rounds", "2", "--variant", "oar")
    assert ablation["run"] == RunConfig(batch=Batch(5), data="here")
    assert (ablation["rounds"], ablation["variant"]) == (Rounds(rounds=2), (Overlap(oar=True),))


def test_the_pace_of_an_overlap_is_set_on_top_of_its_flags() -> None:
    assert Overlap.parse("oar,cache=4").at(Pace(reduce_window=9)) == Overlap(oar=True, cache=4, reduce_window=9)
    assert ALL.at(Pace()) == ALL


def test_the_last_of_an_option_counts_and_repeatable_ones_add_up() -> None:
    last = _parsed("train", *SMALL, "--seed", "1", "--seed", "2", "--grid", "2x1x1x1", "--grid", "auto")["config"]
    assert (last.seed, last.grid) == (2, None)
    labelled = _parsed("train", *SMALL, "--label", "a=1", "--label", "b=2")["config"]
    assert labelled.labels == (("a", "1"), ("b", "2"))
    peers = _parsed("bench", "peers", "--peer", "ddp", "--peer", "fsdp2", "--grid", "1x1x1x2", "--grid", "1x1x2x1")
    assert peers["peer"] == ("ddp", "fsdp2")
    assert peers["grid"] == (Grid(data=2), Grid(z=2))


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (
            ["check", *SMALL, "--ranks", "2", "--iteratons", "3"],
            "Unknown option: --iteratons. Did you mean --iterations?",
        ),
        (["check", *SMALL, "--ranks", "2", "--no-tied"], "Unknown option: --no-tied."),
        (["check", *SMALL, "--ranks", "2", "--config.seed", "2"], "Unknown option: --config.seed."),
        (["check", *SMALL, "--ranks", "2", "word"], "The word 'word' belongs to no option. See python -m engine check"),
        (["check", *SMALL, "--ranks", "2", "--tied", "false"], "The word 'false' belongs to no option."),
        (["check", *SMALL, "--ranks", "2", "--grid"], "The option --grid needs a value."),
        (["check", *SMALL], "The command needs --ranks."),
        (["check", "--ranks", "2"], "The command needs --batch-size"),
        (["check", *SMALL, "--ranks", "2.5"], "--ranks is a whole number, but '2.5' was given."),
        (["check", *SMALL, "--ranks", "2", "--micro-batch", "none"], "--micro-batch is a whole number"),
        (["check", *SMALL, "--ranks", "2", "--clip", "-1e3"], "--clip is a number from 0 up, but -1000.0 was given."),
        (["check", *SMALL, "--ranks", "2", "--clip", "much"], 'unable to convert "much" into float'),
        (["check", *SMALL, "--ranks", "2", "--timeout", "nan"], "--timeout is a positive number, but nan was given."),
        (
            ["check", *SMALL, "--ranks", "2", "--precision", "fp8"],
            "--precision is one of fp32, fp64, bf16, fp16, but 'fp8' was given.",
        ),
        ([*STAGES, "--pipe", "3"], "Grid 1x1x1x1p3 has 3 ranks, but 2 were started: start 3, or give another --pipe."),
        ([*STAGES, "--pipe", "0"], "--pipe is a number of stages from 1 up, but 0 was given."),
        (
            [*STAGES, "--grid", "1x1x1x1p2", "--pipe", "4"],
            "has 2 stages, but --pipe 4 was given: leave one of both out.",
        ),
        (
            [*STAGES, "--stages", "1,2"],
            "--stages '1,2' doesn't cut 2 blocks into 2 stages: give 2 numbers from 1, whose",
        ),
        (
            [*STAGES, "--layers", "1"],
            "1 block, which can't be cut into 2 stages: each takes a block, so give a smaller --p",
        ),
        (
            [*STAGES, "--weight-limit", "1"],
            "--schedule auto chooses --weight-limit itself: leave that out, or name anoth",
        ),
        ([*STAGES, "--schedule", "zb"], "--schedule is one of auto, one-by-one, gpipe, 1f1b,"),
        (
            [*STAGES, "--schedule", "1f1b", "--chunks", "2"],
            "takes no --chunks: leave it out, or choose --schedule interl",
        ),
        (
            ["check", *SMALL, "--ranks", "1", "--pipeline-limit", "1"],
            "--schedule auto chooses --pipeline-limit itself: ",
        ),
        (
            ["check", *SMALL, "--ranks", "1", "--schedule", "interleaved"],
            "needs 2 stages or more: give --pipe N, or ano",
        ),
        (["chek"], 'Did you mean "check"?'),
        (["bench", "peeers"], 'Did you mean "peers"?'),
        (["bench", "startup", "--grid", "auto"], "four positive numbers XxYxZxDATA"),
    ],
)
def test_words_that_make_no_command_are_told_in_one_line(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


def test_a_result_that_cannot_be_written_is_told_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"{'long' * 62}.json"  # with what it is called until it is whole, longer than names may be
    assert main(["bench", "latency", "--samples", "50", "--device", "cpu", "--out", str(out)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{out} ")
    assert error.endswith(" name too long.\n")
    assert error.count("\n") == 1


def test_without_a_command_the_help_is_shown_and_nothing_has_worked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "startup" in capsys.readouterr().out
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(command in shown for command in ("train", "check", "data", "bench"))


def test_help_fits_the_terminal_and_a_pipe_gets_no_escape_codes() -> None:
    environment = os.environ | {"COLUMNS": "80", "TERM": "xterm-256color"}
    command = [sys.executable, "-m", "engine", "train", "--help"]
    shown = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=LONG_S)
    assert "\x1b" not in shown.stdout + shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80


def test_help_fills_lines_of_prose_and_keeps_those_of_examples(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["plan", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    prose = takewhile(lambda line: not line.startswith("╭"), lines)
    assert max(map(len, prose)) > 120, "longer than a line of the source"
    assert "--batch-tokens 16.8M --explain 1" in lines


def test_check_refuses_without_loading_what_only_computing_needs() -> None:
    slow = "{'torch', 'numpy', 'pydantic', 'rich'}"
    code = (
        f"import sys; from engine.cli.main import main; code = main(sys.argv[1:]); assert not {slow} & {{*sys.modules}}"
    )
    command = [sys.executable, "-c", f"{code}; sys.exit(code)", "check", *SMALL, "--ranks", "8", "--grid", "3x2x2x1"]
    ended = subprocess.run(command, timeout=LONG_S, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "3x2x2x1" in ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--model", "llama-test"],
        ["--architecture", "llama", *"--layers 2 --hidden 32 --heads 4 --kv-heads 2 --ffn 64".split()],  # noqa: SIM905
    ],
)
def test_llama_is_chosen_by_name_or_by_shape(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words, "--batch-size", "4", "--data", "synthetic", "--ranks", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"].startswith("llama")


def test_check_of_a_network_of_images_counts_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--model", "unet-tiny", "--batch-size", "4", "--data", "synthetic", "--ranks", "2"]) == 0
    assert "images of a rank " in capsys.readouterr().out


def test_a_person_reads_a_table_and_a_program_the_same_as_json(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    commands = {
        "check": (["check", *SMALL, "--ranks", "2"], "parameters of a rank"),
        "dry": (["bench", "dry", "--model", "gpt-test", "--grid", "2x1x1x1", "--batch-size", "4"], "all_reduce x"),
        "gemm": (["bench", "gemm", "--sizes", "32,64", "--dtype", "fp32"], "64 x 64"),
        "memory": (["bench", "memory", "--array-size", "1e5", "--repeats", "3"], "triad"),
        "latency": (["bench", "latency", "--samples", "20"], "dispatch"),
        "startup": (["bench", "startup", "--grid", "2x2x2x1", "--model", "gpt-test"], "G elements/s"),
        "train": (["train", *SMALL, "--iterations", "3"], "at first"),
    }
    for name, (words, told) in commands.items():
        file = tmp_path / f"{name}.json"
        out = [] if name in ("check", "dry", "startup") else ["--device", "cpu", "--out", str(file)]
        assert main([*words, *out]) == 0
        assert told in capsys.readouterr().out, name
        assert main([*words, *out, "--json"]) == 0
        printed = json.loads(capsys.readouterr().out)
        if out:
            assert printed == json.loads(file.read_text())


def test_the_version_is_told_with_the_commit(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    told = capfd.readouterr().out
    assert told.startswith(f"par4d {metadata.version('par4d')}")
    assert "commit" in told
