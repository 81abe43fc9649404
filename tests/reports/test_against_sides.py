"""Facts that both commits of a night had in common, as its results tell."""

import json
import sqlite3
from pathlib import Path

from sample_contests import contests

from engine.result.schema.peers import PeersResult
from night.sides import remarks, results_of
from reports.read.history import NIGHT

BOTH = {"python": "3.11", "torch": "2.9", "nodes": "n0", "data": "0123"}
OURS, THEIRS = BOTH | {"engine": "a"}, BOTH | {"engine": "b"}


def result(
    ours: dict[str, str] = OURS, theirs: dict[str, str] = THEIRS, host: str = "n0", commit: str = "a"
) -> PeersResult:
    """A job of both commits, whose sides tell these."""
    found = contests(("plain",), environment={"hosts": (host,), "git_commit": commit, "git_dirty": False})
    (contest,) = found.comparisons
    job = contest.jobs[0]
    sides = (job.ours.model_copy(update={"versions": ours}), job.peer.model_copy(update={"versions": theirs}))
    one = contest.model_copy(update={"jobs": (job.model_copy(update={"sides": sides}),)})
    return found.model_copy(update={"comparisons": (one,)})


def test_what_both_sides_had_in_common_is_one_sentence() -> None:
    (said,) = remarks([result(), result()])
    assert said.startswith("In 2 jobs both ")
    assert remarks([]) == []


def test_each_difference_is_named_with_both_values_and_the_jobs_that_have_it() -> None:
    for name, other in (("data", "4567"), ("nodes", "n1"), ("torch", "2.8")):
        (said,) = remarks([result(), result(theirs=THEIRS | {name: other})])
        assert said.startswith("In 1 of 2 jobs ")
        assert all(word in said for word in (name, BOTH[name], other))
    (said,) = remarks([result(host="n7")])
    assert "n7" in said
    assert "n0" in said


def test_a_commit_that_tells_less_is_told() -> None:
    (said,) = remarks([result(theirs={"engine": "b"})])
    assert all(name in said for name in BOTH)
    assert "the commit" in said


def test_a_working_tree_without_changes_or_that_changed_meanwhile_is_told() -> None:
    same = remarks([result(theirs=THEIRS | {"engine": "a"})])
    assert len(same) == 2
    changed = remarks([result(), result(commit="c")])
    assert len(changed) == 2
    assert same[1] != changed[1]


def test_results_are_those_of_the_night_alone_and_broken_ones_are_left_out(tmp_path: Path) -> None:
    def session(night: str, record: object) -> str:
        case = {"result": "pass", "record": record, "display_name": "Against", "system": "local"}
        return json.dumps({"session_info": {NIGHT: night}, "runs": [{"testcases": [case]}]})

    good = result().model_dump(mode="json", by_alias=True)
    with sqlite3.connect(tmp_path / "results.db") as opened:
        opened.execute("CREATE TABLE sessions (uuid TEXT, json_blob TEXT)")
        blobs = [session("a", good), session("b", good), session("a", good | {"case": 7}), session("a", None), "{"]
        opened.executemany(
            "INSERT INTO sessions VALUES (?, ?)", [(str(place), blob) for place, blob in enumerate(blobs)]
        )
    opened.close()
    (found,) = results_of(tmp_path / "results.db", "a")
    assert found.comparisons[0].jobs[0].peer.versions == THEIRS
