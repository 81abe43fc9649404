"""Ranks that meet are of one job and of one run, or they end with a sentence that names both sides."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_command import SMALL, finish, free_port, start
from real_ranks import CONTEXT
from torch import distributed as dist
from waiting import LONG_S

from engine.cli.main import commands
from engine.comm import identity
from engine.comm.identity import COMMAND, MAY_DIFFER, Identity, difference, options, source_digest
from engine.comm.launch import JOB_IDS, Launch
from engine.comm.meeting import init_process_group
from engine.errors import EngineError

TINY = ["--layers=1", "--hidden=32", "--heads=4", "--vocab=64", "--seq=8", "--batch-size=8"]
TRAIN = ("train", "--model", "gpt-test", "--grid", "1x1x1x2", "--seed", "1")


def _none() -> None:
    pass


def _seed_2() -> None:
    COMMAND.set((*TRAIN[:-1], "2"))


def _another_place_for_results() -> None:
    COMMAND.set((*TRAIN, "--out", "elsewhere.json", "--device=cpu"))


def _older_torch() -> None:
    version = identity.version
    identity.version = lambda name: "2.9.1" if name == "torch" else version(name)


def _older_engine() -> None:
    identity.source_digest = lambda: "0" * 64


def _another_job() -> None:
    os.environ["SLURM_JOB_ID"] = "2"


def _no_number() -> None:
    del os.environ["SLURM_JOB_ID"]


def _meet(rank: int, port: int, told: Connection, over: Any, change: Callable[[], None], local_rank: int) -> None:
    """Send the sum that came of the meeting, or what was wrong."""
    os.environ.update(dict.fromkeys(JOB_IDS, ""), SLURM_JOB_ID="1")
    COMMAND.set(TRAIN)
    change()
    try:
        launch = Launch(rank, 2, local_rank, "test", "127.0.0.1", port)
        init_process_group(launch, torch.device("cpu"), timedelta(seconds=LONG_S), meeting_s=LONG_S)
        own = torch.full((1,), rank + 1.0)
        dist.all_reduce(own)
        told.send((rank, own.item()))
        over.wait(LONG_S)
        dist.destroy_process_group()
    except EngineError as error:
        told.send((rank, f"{type(error).__name__}: {error}"))


def meeting(*ranks: tuple[int, Callable[[], None]], local_rank: int = 0, first: int = 9) -> list[tuple[int, Any]]:
    """Return what these ranks send, in order of arrival. first: how many start before one has to have ended."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    port, over = free_port(), CONTEXT.Event()
    processes = [
        CONTEXT.Process(target=_meet, args=(rank, port, writer, over, change, local_rank), daemon=True)
        for rank, change in ranks
    ]
    told = []
    try:
        for number, process in enumerate(processes):
            if number == first:
                assert reader.poll(LONG_S)
                told.append(reader.recv())
            process.start()
        writer.close()
        while len(told) < len(processes):
            assert reader.poll(LONG_S)
            told.append(reader.recv())
        return told
    finally:
        over.set()
        for process in processes:
            process.join(5)
            process.kill()


@pytest.mark.parametrize("change", [_none, _another_place_for_results, _no_number])
def test_ranks_of_one_run_meet(change: Callable[[], None]) -> None:
    assert sorted(meeting((0, _none), (1, change))) == [(0, 3.0), (1, 3.0)]


DIFFERENCES: Mapping[Callable[[], None], str] = {
    _seed_2: "--seed 2, but rank 0 --seed 1:",
    _older_torch: f"torch 2.9.1, but rank 0 torch {identity.version('torch')}:",
    _older_engine: f"source is {'0' * 12}, but rank 0 one of {source_digest()[:12]}",
}


@pytest.mark.parametrize("change", DIFFERENCES)
def test_ranks_of_two_runs_end_with_one_sentence_that_names_both(change: Callable[[], None]) -> None:
    (_, first), (_, second) = meeting((0, _none), (1, change))
    assert first == second
    assert DIFFERENCES[change] in first
    assert "MASTER_PORT" in first


def test_a_rank_that_is_not_its_nodes_first_reads_no_code() -> None:
    assert sorted(meeting((0, _none), (1, _older_engine), local_rank=1)) == [(0, 3.0), (1, 3.0)]


def test_a_rank_of_another_job_ends_and_the_job_waits_for_its_own() -> None:
    told = meeting((0, _none), (1, _another_job), (1, _none), first=2)
    strays = [words for _, words in told if isinstance(words, str)]
    assert len(strays) == 1
    assert "SLURM_JOB_ID 2, " in strays[0]
    assert sorted((rank, words) for rank, words in told if not isinstance(words, str)) == [(0, 3.0), (1, 3.0)]


def test_a_rank_that_is_there_already_is_refused() -> None:
    told = meeting((0, _none), (1, _none), (1, _none))
    (second,) = [words for _, words in told if isinstance(words, str)]
    assert "is there already" in second
    assert sorted((rank, words) for rank, words in told if not isinstance(words, str)) == [(0, 3.0), (1, 3.0)]


@pytest.mark.parametrize("command", [["train"], ["bench", "gemm"], ["bench", "peers", "--peer", "ddp"]])
def test_every_command_that_meets_compares_its_options(command: list[str], tmp_path: Path) -> None:
    words = {
        "train": ["--grid", "1x1x1x2", *SMALL, "--iterations", "3", "--warmup", "1"],
        "gemm": ["--sizes", "64", "--dtype", "fp32"],
        "peers": [*TINY, "--rounds", "3"],
    }[command[1] if command[0] == "bench" else command[0]]
    out = tmp_path / "result.json"
    codes, said = finish(start(2, *command, *words, "--device", "cpu", "--out", str(out), before=_seen_otherwise))
    assert codes == [2, 2], said
    assert all("Rank 1 has" in text for text in said), said
    assert json.loads(out.read_text())["status"] == "failed"


def _seen_otherwise() -> None:
    if os.environ["RANK"] == "1":
        own = identity.options
        identity.options = lambda words: {**own(words), "--seed": ["7"]}


def test_words_are_sorted_by_option_and_what_may_differ_is_left_out() -> None:
    found = options(
        ["bench", "overlap", "--seed=3", "--variant", "a=1", "--variant", "b", "--json", "--out", "x", "--clip", "0"]
    )
    assert found == {"": ["bench", "overlap"], "--seed": ["3"], "--variant": ["a=1", "b"], "--clip": ["0"]}
    assert options(["--tied"]) == {"--tied": []}


def test_all_that_may_differ_are_options_of_some_command() -> None:
    known: set[str] = set()
    apps = [commands("engine")]
    while apps:
        app = apps.pop()
        apps += [app[name] for name in app if name not in (*app.help_flags, *app.version_flags)]
        if app.default_command is not None:
            known |= {name for argument in app.assemble_argument_collection() for name in argument.names}
    assert known >= MAY_DIFFER


def test_an_identity_survives_its_text() -> None:
    own = Identity.own({"SLURM_JOB_ID": "3"}, reads_code=True)
    assert difference(Identity.from_text(own.to_text()), own) is None
    assert own.code == source_digest()
