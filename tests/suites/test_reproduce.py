"""Each command that redoes a published claim runs: dry on the paper's machine, sized down on this one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, reframe, succeed

from engine.errors import UsageError
from engine.published.claims import Redo, costs, figures
from suites import redo
from suites.redo import Selection

REDONE = sorted(
    {one for figure in figures() for claim in figure.claims for one in claim.redo}, key=lambda one: one.words
)
SUITES = sorted({(one.suite, one.settings) for one in REDONE})
HERE = "local"
"""The system that any machine is."""
SHORTER = {"baselines": ("-S", "rounds=2", "-S", "steps_per_round=1", "-S", "warmup=1")}
"""Settings of suites whose tests take more than ten minutes at rest, where less tells as well whether they run."""


def sized_down(suite: str, settings: tuple[str, ...] = ()) -> Selection:
    """Select what redoes all claims of a suite on this machine, each test once."""
    (found,) = redo.together(_here(one) for one in REDONE if (one.suite, one.settings) == (suite, settings))
    return found


def _here(one: Redo) -> Selection:
    return redo.elsewhere(one, HERE, images=redo.OF_IMAGES in one.pattern.lower())


@pytest.mark.weekly
@pytest.mark.parametrize("words", [words.split() for words in costs()], ids=lambda words: "-".join(words[2:]))
def test_every_command_dry_runs_on_the_papers_machine(tmp_path: Path, words: list[str]) -> None:
    done = reframe(tmp_path, *words[1:], "--dry-run", PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out + done.err
    assert list(done.folder.glob("stage/**/rfm_job.sh"))


@pytest.mark.weekly
@pytest.mark.parametrize(("suite", "settings"), SUITES)
def test_every_selection_runs_sized_down_here(tmp_path: Path, suite: str, settings: tuple[str, ...]) -> None:
    selection = sized_down(suite, settings)
    done = reframe(tmp_path, *selection.arguments(HERE, 1), *SHORTER.get(suite, ()))
    assert list(done.folder.glob("results/reframe/run-report-*.json")), done.out + done.err
    cases = done.cases()
    assert done.code == 0 or {case["result"] for case in cases} == {"skip"}, done.out + done.err
    assert selection.tests.keys() <= {case[key] for case in cases for key in ("name", "unique_name")}
    skipped = untried(selection, cases)
    if skipped:  # the week calls that unknown
        pytest.skip(f"{len(skipped)} of the {len(selection.tests)} tests of {suite} could not run: {skipped[0]} ...")


def untried(selection: Selection, cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the tests of a selection that were skipped, as where a peer's environment is missing."""
    return [one["name"] for one in cases if one["result"] == "skip" and one["name"] in selection.tests]


def test_a_skipped_test_counts_only_where_it_could_have_run_by_the_systems_file() -> None:
    selection = Selection("baselines", (), {"Baseline %match=a": 0.1, "Baseline %match=b": 0.1})
    results = {"Baseline %match=a": "pass", "Baseline %match=b": "skip", "Baseline %match=of-four-ranks": "skip"}
    assert untried(selection, [{"name": name, "result": result} for name, result in results.items()]) == [
        "Baseline %match=b"
    ]


def test_settings_of_a_selection_reach_the_launch_line(tmp_path: Path) -> None:
    """ReFrame passes over variables that no test has."""
    (found,) = (one for one in REDONE if "tune_matmul=no" in one.settings)
    done = succeed(tmp_path, "--system", "frontier", *found.words, PAR4D_ACCOUNT="abc123")
    (script,) = done.trainings
    assert "--tune-matmul" not in script
    assert script.count(" -m engine train ") == 1, "also_overlap=off"
    tuned = succeed(tmp_path / "tuned", "--system", "frontier", *found.words[:4], PAR4D_ACCOUNT="abc123")
    assert "--tune-matmul" in tuned.script


def test_every_selection_has_tests_on_this_machine() -> None:
    """The two cheapest to ask; all of them every week."""
    for suite in ("p2p", "peak"):
        found = sized_down(suite)
        assert found.tests
        assert Path(found.arguments(HERE, 1)[4]).is_relative_to(ROOT)


def test_a_suite_that_has_nothing_on_a_system_says_why() -> None:
    with pytest.raises(UsageError, match=r"summit.*optimisations"):
        redo.elsewhere(Redo(suite="optimisations", only="axonn-sc24-"), "summit", images=False)
