"""A folder of checkpoints belongs to one run: others are refused while it lives, and take its place when it doesn't."""

import json
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine_command import SMALL, await_iteration, finish, start
from waiting import LONG_S, until

from engine.checkpoint import owner
from engine.checkpoint.manifest import find
from engine.checkpoint.owner import FILE, Owner, own
from engine.errors import RunError, UsageError

SAVING = ["--grid", "1x1x1x1", "--iterations", "100000", "--save-every", "1"]


def theirs(folder: Path, **changed: object) -> Owner:
    """A folder that a run elsewhere owns, as far as can be told from here."""
    folder.mkdir(exist_ok=True)
    known = {"token": "abcd", "user": "somebody", "host": "elsewhere", "machine": "x", "pid": 7, "started": "9"}
    made = Owner.model_validate(known | {"job": "123", "since": "2026-01-02T03:04:05+00:00"} | changed)
    (folder / FILE).write_text(made.model_dump_json())
    return made


def held_by(folder: Path) -> Owner:
    return Owner.model_validate(json.loads((folder / FILE).read_text()))


def test_a_folder_is_free_again_once_it_is_released(tmp_path: Path) -> None:
    first = own(tmp_path, "77")
    assert held_by(tmp_path) == first.owner
    assert (first.owner.job, first.owner.pid) == ("77", os.getpid())
    first.release()
    assert list(tmp_path.iterdir()) == []
    first.release()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--save"):
        own(tmp_path / "file" / "below")


def test_a_run_that_counts_elsewhere_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LEASE_S", float(LONG_S))
    there, ended = theirs(tmp_path), threading.Event()

    def count() -> None:
        while not ended.wait(0.05):
            theirs(tmp_path, count=held_by(tmp_path).count + 1)

    counting = threading.Thread(target=count)
    counting.start()
    try:
        with pytest.raises(UsageError, match=r"somebody's.*123.*2026.*7 on elsewhere"):
            own(tmp_path)
    finally:
        ended.set()
        counting.join()
    assert held_by(tmp_path).token == there.token


GONE: dict[str, Callable[[Path], object]] = {
    "stands still": theirs,
    "is damaged": lambda folder: (folder / FILE).write_text("{"),
    "is empty": lambda folder: (folder / FILE).touch(),
    "is another kind": lambda folder: (folder / FILE).write_text('{"a": 1}'),
}


@pytest.mark.parametrize("how", GONE)
def test_what_does_not_count_for_long_is_over(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "LEASE_S", 0.2)
    GONE[how](tmp_path)
    (tmp_path / ".step-3.abcd.part").mkdir()
    (tmp_path / "step-2").mkdir()
    mine = own(tmp_path)
    assert held_by(tmp_path) == mine.owner
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "step-2"}, "what was left unfinished is gone"
    mine.release()


ENDED = {
    "the machine was started again": {"machine": "another boot"},
    "its number is another process's": {"pid": os.getppid(), "started": "another time"},
    "no process has its number": {"pid": 2**22 + 1},
}


@pytest.mark.parametrize("how", ENDED)
def test_a_process_of_this_machine_that_has_ended_keeps_nobody_waiting(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "LEASE_S", float(LONG_S))
    here = {"host": os.uname().nodename, "machine": owner._machine()}
    other = theirs(tmp_path, **(here | ENDED[how]))
    assert other.has_ended
    own(tmp_path).release()
    in_another_container = {"machine": f"{owner._boot()} pid:[1]", "pid": 2**22 + 1}
    assert not theirs(tmp_path, **(here | in_another_container)).has_ended, "its number means nothing here"


def test_an_owner_counts_and_tells_when_its_folder_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner, "BEAT_S", 0.01)
    mine = own(tmp_path)
    until(lambda: held_by(tmp_path).count > 2)
    mine.check()
    taken = theirs(tmp_path)
    until(lambda: not mine._thread.is_alive())
    with pytest.raises(RunError, match="somebody's run"):
        mine.check()
    mine.release()
    assert held_by(tmp_path) == taken, "another run's file is left alone"
    (tmp_path / FILE).unlink()
    with pytest.raises(RunError, match="was removed"):
        mine.check()


def test_of_many_that_find_a_folder_without_an_owner_one_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for owners, and each takes the others for processes that live."""
    monkeypatch.setattr(owner, "LEASE_S", 0.3)
    monkeypatch.setattr(owner, "BEAT_S", 0.05)
    monkeypatch.setattr(owner, "POLL_S", 0.001)
    monkeypatch.setattr(Owner, "has_ended", False)
    theirs(tmp_path)

    def attempt(_: int) -> owner.Owned | None:
        try:
            return own(tmp_path)
        except UsageError:
            return None

    with ThreadPoolExecutor(8) as pool:
        found = [one for one in pool.map(attempt, range(8)) if one is not None]
    still = []
    for one in found:
        try:
            one.check()
            still.append(one)
        except RunError:
            continue
    assert len(still) == 1
    assert held_by(tmp_path).token == still[0].owner.token
    for one in found:
        one.release()


def test_a_second_run_is_refused_while_the_first_lives_and_goes_on_once_it_was_killed(tmp_path: Path) -> None:
    """On two ranks, of which both say so."""
    folder = tmp_path / "checkpoints"
    words = [*SAVING, "--save", str(folder)]
    first = start(1, "train", *SMALL, *words, "--out", str(tmp_path / "first.json"))
    await_iteration(first[0])
    until(lambda: folder.exists() and list(folder.glob("step-*")))
    of_two = ["--grid", "1x1x1x2", *words[2:]]
    codes, said = finish(start(2, "train", *SMALL, *of_two, "--out", str(tmp_path / "second.json")))
    assert codes == [2, 2], said
    assert all(str(folder) in text and "--save" in text for text in said)
    until(lambda: int(find(folder).name.removeprefix("step-")) > 1)
    first[0].send_signal(signal.SIGKILL)
    finish(first)
    left = folder / ".step-9.abcd.part"
    left.mkdir()
    again = start(1, "train", *SMALL, *words, "--out", str(tmp_path / "third.json"))
    await_iteration(again[0])
    assert not left.exists()
    again[0].send_signal(signal.SIGKILL)
    finish(again)
