"""Each command that redoes a published claim runs: dry on the paper's machine, sized down on this one."""

from pathlib import Path

import pytest
from running import ROOT, reframe

from engine.errors import UsageError
from engine.published.claims import Redo, costs, figures
from suites import redo
from suites.redo import Selection

REDONE = sorted(
    {one for figure in figures() for claim in figure.claims for one in claim.redo}, key=lambda one: one.words
)
SUITES = sorted({one.suite for one in REDONE})
HERE = "local"
"""The system that any machine is."""


def sized_down(suite: str) -> Selection:
    """Select what redoes all claims of a suite on this machine, each test once."""
    return redo.together(_here(one) for one in REDONE if one.suite == suite)[0]


def _here(one: Redo) -> Selection:
    return redo.elsewhere(one, HERE, images=redo.OF_IMAGES in one.pattern.lower())


@pytest.mark.weekly
@pytest.mark.parametrize("words", [words.split() for words in costs()], ids=lambda words: "-".join(words[2:]))
def test_every_command_dry_runs_on_the_papers_machine(tmp_path: Path, words: list[str]) -> None:
    done = reframe(tmp_path, *words[1:], "--dry-run", PAR4D_ACCOUNT="abc123")
    assert done.code == 0, done.out + done.err
    assert list(done.folder.glob("stage/**/rfm_job.sh"))


@pytest.mark.weekly
@pytest.mark.parametrize("suite", SUITES)
def test_every_selection_runs_sized_down_here(tmp_path: Path, suite: str) -> None:
    done = reframe(tmp_path, *sized_down(suite).arguments(HERE, 1))
    if done.code and {case["result"] for case in done.cases()} == {"skip"}:
        pytest.skip(f"no test of {suite} could run: {done.out}")  # the week calls that unknown
    assert done.code == 0, done.out + done.err


def test_every_selection_has_tests_on_this_machine() -> None:
    """The two cheapest to ask; all of them every week."""
    for suite in ("p2p", "peak"):
        found = sized_down(suite)
        assert found.tests
        assert Path(found.arguments(HERE, 1)[4]).is_relative_to(ROOT)


def test_a_suite_that_has_nothing_on_a_system_says_why() -> None:
    with pytest.raises(UsageError, match=r"summit.*optimisations"):
        redo.elsewhere(Redo(suite="optimisations", only="axonn-sc24-"), "summit", images=False)
