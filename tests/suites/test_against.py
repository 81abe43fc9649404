"""A night against a commit: what it makes of its jobs, and one for real in which every step got slower."""

import math
import random
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from git_folder import committed
from prove_against import PLANTED, TRAINER, night
from running import ROOT, project

from engine.errors import UsageError
from engine.training.equality import UNEQUAL
from night import against
from night.against import (
    BOUNDS,
    FIGURE,
    FIRST_LOOK,
    JOBS,
    LIMIT,
    Looks,
    Point,
    as_junit,
    as_text,
    checked_out,
    error_of,
    full_name,
    how_long,
    points,
    run_rounds,
)
from night.procedure import BY_LIMIT
from night.session import NightlyTest, NightRun
from reports.nights.report import NOTHING_KEPT, WORSE
from reports.read.history import NightJob
from suites.base.running import NO_TURNS
from systems.references import Key, name_of

COMMIT = "0123456789abcdef"
FOUND = [
    Point("slow", (1.03, 1.028, 1.034)),
    Point("equal", (1.0, 1.001, 0.999)),
    Point("noisy", (0.9, 1.2, 1.0)),
    Point("one", (1.2,)),
    Point("broken", (1.0, 1.001, 0.999), failed=True, reason="1 of 4: <no>"),
    Point("absent", reason="nothing is kept"),
]


def test_a_point_is_slower_if_all_of_its_interval_is_beyond_the_limit_and_of_one_job_nothing_is_known():
    expected = ["fail", "pass", "undecided", "undecided", "fail", "undecided"]
    assert [point.outcome for point in FOUND] == expected
    assert Point("at the limit", (LIMIT, LIMIT, LIMIT)).outcome != "fail"
    just = (1.03, 1.025, 1.035)
    assert Point("one", just).outcome == "fail"
    assert Point("one of four", just, looks=4).outcome == "undecided", "together they are wrong as seldom as one"
    assert Point("too early", just, is_judged=False).outcome == "undecided"
    assert Point("loud", just, error=0.05).outcome == "undecided", "they agree by chance"


def test_the_error_of_a_job_is_that_of_its_rounds():
    loud = replace(job("a", ratio=1.03), figures={FIGURE: (1.03, "x"), BOUNDS[0]: (1.0, "x"), BOUNDS[1]: (1.04, "x")})
    assert error_of([loud]) == pytest.approx(math.log(1.04) / (2 * 1.96))
    assert error_of([loud, job("a", ratio=1.0)]) == error_of([loud])
    assert error_of([job("a", ratio=1.0)]) == 0.0
    (one,) = points(Looks((("Against", "point=a"),), 2), [loud, loud]).values()
    assert one.error == error_of([loud])


def test_the_table_and_the_junit_file_tell_each_point():
    lines = as_text(COMMIT, FOUND).splitlines()
    words = [line.split("  ")[0] for line in lines[1:7]]
    assert words == ["slower", "no slower", "undecided", "undecided", "failed", "undecided"]
    assert "1.031" in lines[1]
    assert "not known" in lines[4]
    assert lines[5].endswith("1 of 4: <no>")
    assert COMMIT[:12] in lines[-1]
    assert as_text(COMMIT, FOUND, ["What both had."]).splitlines()[-1] == "What both had."
    junit = as_junit("local", FOUND)
    assert 'tests="6"' in junit
    assert 'failures="2"' in junit
    assert 'skipped="3"' in junit
    assert "&lt;no&gt;" in junit


def test_the_looks_of_all_tests_share_the_chance_to_be_wrong():
    tests = (("Against", "point=a"), ("Against", "point=b"))
    assert (Looks(tests, 8).first, Looks(tests, 8).count) == (FIRST_LOOK, 2 * (8 - FIRST_LOOK + 1))
    assert (Looks(tests, 2).first, Looks(tests, 2).count) == (2, 2), "fewer jobs are judged once"
    few, enough = (
        points(Looks(tests, 8), [job("a", ratio=1.03)] * jobs)[tests[0]] for jobs in (FIRST_LOOK - 1, FIRST_LOOK)
    )
    assert (few.outcome, enough.outcome) == ("undecided", "fail")
    assert enough.looks == Looks(tests, 8).count


def test_a_test_that_left_nothing_is_undecided_one_that_is_skipped_here_is_not_judged_and_a_failure_is_told():
    looks = Looks(tuple(("Against", f"point={name}") for name in ("good", "lost", "skipped", "bad")), 2)
    good, skipped = job("good", ratio=1.002), job("skipped", reason="it was skipped")
    bad = [job("bad", ratio=1.0), job("bad", failed=True, reason=f"sides {UNEQUAL}")]
    found = list(points(looks, [good, good, skipped, *bad]).values())
    assert [(one.name, one.outcome) for one in found] == [("good", "pass"), ("lost", "undecided"), ("bad", "fail")]
    assert [one.reason for one in found[:2]] == ["", NOTHING_KEPT]
    assert found[2].reason.startswith("1 of 2 ")
    assert found[2].reason.endswith(UNEQUAL)


LOST = "it was ended before its time"


@pytest.mark.parametrize(
    ("reasons", "failed"),
    [
        (["", LOST, "", ""], False),
        (["", LOST, "", LOST, ""], False),
        (["", LOST, LOST, ""], True),
        (["", f"sides {UNEQUAL}", "", ""], True),
        (["", f"sides {NO_TURNS}", "", ""], True),
    ],
)
def test_a_job_may_be_lost_once_and_then_once_again_another(reasons: list[str], failed: bool):
    looks = Looks((("Against", "point=a"),), 3)
    jobs = [job("a", failed=bool(why), reason=why) if why else job("a", ratio=1.0) for why in reasons]
    (one,) = points(looks, jobs).values()
    assert one.failed == failed
    assert one.reason
    assert len(one.ratios) == reasons.count("")


@dataclass
class Played(NightRun):
    """Night whose jobs are data."""

    played: Mapping[str, Sequence[float | str]] = field(default_factory=dict)
    """by test: ratios of its jobs in their order, or why one failed"""
    rounds: list[str] = field(default_factory=list)
    """tests of each session so far, by their letters"""
    sessions: int = 99
    """that there is time for"""
    stored: list[NightJob] = field(default_factory=list)

    def run(self, tests: Sequence[NightlyTest]) -> bool:
        if len(self.rounds) == self.sessions:
            return False
        self.rounds.append("".join(test.name[-1] for test in tests))
        for test in tests:
            letter = test.name[-1]
            what = self.played[letter][sum(one.key.point == f"point={letter}" for one in self.stored)]
            lost = isinstance(what, str)
            self.stored.append(job(letter, failed=True, reason=what) if lost else job(letter, ratio=what))
        return True


def play(monkeypatch: pytest.MonkeyPatch, jobs: int = JOBS, sessions: int = 99, **played: Sequence[float | str]):
    """Play a night's rounds; returns whether there was time, the sessions and the outcomes."""
    chosen = [NightlyTest(f"Against %point={name}", name, 0.01, BY_LIMIT, 8, 5.0) for name in played]
    night = Played("n", "local", Path(), math.inf, played=played, sessions=sessions)
    monkeypatch.setattr(against, "jobs_of", lambda night: night.stored)
    looks = Looks(tuple(name_of(test.name) for test in chosen), jobs)
    in_time = run_rounds(night, chosen, looks, 4.0)
    return in_time, night.rounds, [point.outcome for point in points(looks, night.stored).values()]


NEAR = (0.001, -0.001, 0.002, -0.002, 0.0, 0.001, -0.001, 0.0)
FAR = (0.05, -0.04, 0.06, -0.05, 0.03, -0.06, 0.04, -0.03)


def test_rounds_go_on_with_what_is_undecided_alone_and_end_early(monkeypatch: pytest.MonkeyPatch):
    slow, equal, noisy = ([by + noise for noise in noises] for by, noises in ((1.03, NEAR), (1.0, NEAR), (1.03, FAR)))
    assert play(monkeypatch, a=slow, b=equal) == (True, ["ab"] * FIRST_LOOK, ["fail", "pass"])
    in_time, rounds, outcomes = play(monkeypatch, a=slow, b=noisy)
    assert (in_time, rounds) == (True, ["ab"] * FIRST_LOOK + ["b"] * (JOBS - FIRST_LOOK))
    assert outcomes == ["fail", "undecided"]
    in_time, rounds, outcomes = play(monkeypatch, sessions=FIRST_LOOK - 1, a=slow)
    assert (in_time, len(rounds), outcomes) == (False, FIRST_LOOK - 1, ["undecided"])


def test_a_lost_job_is_run_again_in_its_round_and_one_lost_twice_ends_its_test(monkeypatch: pytest.MonkeyPatch):
    equal = [1.0 + noise for noise in NEAR]
    _, rounds, outcomes = play(monkeypatch, a=[1.0, LOST, *equal], b=equal)
    assert rounds[:3] == ["ab", "ab", "a"]
    assert rounds[3:] == ["ab"] * (FIRST_LOOK - 2)
    assert outcomes == ["pass", "pass"]
    _, rounds, outcomes = play(monkeypatch, a=[LOST, LOST], b=equal)
    assert rounds == ["ab", "a"] + ["b"] * (FIRST_LOOK - 1)
    assert outcomes == ["fail", "pass"]
    _, rounds, outcomes = play(monkeypatch, a=[f"they {UNEQUAL}"], b=equal)
    assert rounds == ["ab"] + ["b"] * (FIRST_LOOK - 1)
    assert outcomes == ["fail", "pass"]


@pytest.mark.parametrize(
    ("percent", "wrong", "deviation", "decided"),
    [
        (0, "fail", 0.003, 55),
        (3, "pass", 0.003, 60),
        (3, "pass", 0.007, 55),
        (0, "fail", 0.03, 0),
        (3, "pass", 0.03, 0),
    ],
)
def test_planted_ratios_are_found_and_loud_ones_are_undecided(
    monkeypatch: pytest.MonkeyPatch, percent: int, wrong: str, deviation: float, decided: int
):
    """Twenty nights of three tests, whose jobs differ as on an idle machine, a shared one, and one under load."""
    drawing, found = random.Random(69), Counter[str]()
    for _ in range(20):
        played = {
            name: [math.exp(drawing.gauss(math.log(1 + percent / 100), deviation)) for _ in range(JOBS)]
            for name in "abc"
        }
        found.update(play(monkeypatch, **played)[2])
    assert not found[wrong]
    assert found["undecided"] <= 60 - decided


def test_the_time_that_a_night_takes_is_that_of_its_jobs_one_after_the_other():
    tests = [NightlyTest(name, name, 0.5, by, 8, 10.0) for name, by in (("a", BY_LIMIT), ("b", "by 3 earlier jobs"))]
    said = how_long(tests, Looks((("a", ""), ("b", "")), JOBS))
    numbers = [float(number) for number in re.findall(r"[\d.]+\d|\d", said)]
    assert numbers == [20 * JOBS, JOBS, 20 * FIRST_LOOK]
    assert "limit" in said
    assert "earlier jobs" in said
    assert "limit" not in how_long(tests[1:], Looks((("b", ""),), JOBS))


def job(point: str, *, ratio: float | None = None, failed: bool = False, reason: str = "") -> NightJob:
    key = Key("cpu", "Against", f"point={point}", "", 1, "", "")
    figures = {} if ratio is None else {"paired_ratio": (ratio, "x")}
    return NightJob(key, failed, reason, figures, {}, {}, 1.0)


def test_a_commit_is_checked_out_once_and_what_is_none_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "of"
    folder.mkdir()
    (folder / "a.txt").write_text("first")
    monkeypatch.setattr(against, "ROOT", committed(folder))
    name = full_name("HEAD")
    assert len(name) == 40
    (folder / "a.txt").write_text("later")
    for _ in range(2):
        assert (checked_out(name, tmp_path) / "a.txt").read_text() == "first"
    for word in ("no-such", "--help"):
        with pytest.raises(UsageError, match="but git says: "):
            full_name(word)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted([name, "of"]), "nothing else is left"


@pytest.mark.weekly
def test_a_slower_engine_is_found_in_one_night_of_real_jobs(tmp_path: Path):
    """Every step takes ten times as long as the commit's, of which three jobs tell."""
    root = project(tmp_path)
    for part in ("ci", "reports"):
        shutil.copytree(ROOT / part, root / part)
    shutil.copy(ROOT / ".gitignore", root)
    committed(root)
    with (root / TRAINER).open("a") as engine:
        engine.write(PLANTED.format(by=9.0))
    quick = ("-S", "Against.model=gpt-test", "-S", "Against.rounds=10", "--exclude", "local-2|local-4")
    done = night(root, ["--jobs", "3", "--", *quick])
    assert done.returncode == WORSE, done.stdout + done.stderr
    assert done.stdout.splitlines()[1].startswith("slower ")
    assert 'failures="1"' in (root / "results" / "nights" / "local" / "against.xml").read_text()
