"""The canary is the same program for ever, and every rank of a job runs it."""

import hashlib
import re
import subprocess
import sys

from running import ROOT
from waiting import LONG_S

from suites.base.engine_test import CANARY_PROGRAM


def test_it_has_never_changed() -> None:
    """Whoever has to change it gives its figure another name, too (systems/references.py)."""
    assert hashlib.sha256(CANARY_PROGRAM.read_bytes()).hexdigest() == (
        "3614e4019f1b7d5904ab7c1bacae44d6c909966713cd4041a334bb7b8ceb2060"
    )


def test_it_knows_nothing_of_the_engine_and_says_what_a_round_takes() -> None:
    assert not re.search(r"\b(engine|suites|systems|reports)\.", CANARY_PROGRAM.read_text().split("import os")[1])
    done = subprocess.run(
        [sys.executable, str(CANARY_PROGRAM), "cpu"],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=True,
    )
    assert re.fullmatch(r"canary \d+\.\d{9}\n", done.stdout)
