"""The proof of nights knows when a fault is found, and when the machine is idle."""

import subprocess
import sys
from pathlib import Path

from prove_nights import FAULTS, processor_times, wait_until_idle
from waiting import LONG_S


def test_the_proof_is_content_only_where_the_culprit_is_named_and_nothing_else_blamed():
    load, named = FAULTS[-1], ("TwoNodes", "TwoNodes: slow. Culprit: one node: n1 computes longer.")
    assert load.is_found([named])
    assert load.is_found([named, ("Peak", "Peak: slow. Culprit: compute: longer.")])
    assert not load.is_found([("Peak", "Peak: slow. Culprit: compute: longer.")])
    assert not load.is_found([named, ("Bandwidth", "Bandwidth: less. Culprit: the link: slow.")])
    assert not load.is_found([("TwoNodes", "TwoNodes: slow. Culprit: one node: n0 computes longer.")])
    assert not load.is_found([])


def test_the_proof_knows_how_busy_the_machine_is():
    before, most_s = processor_times(), 0.1
    assert wait_until_idle(most_s) > most_s
    assert sum(processor_times()) > sum(before)


def test_it_says_by_itself_what_it_takes(tmp_path: Path):
    words = [sys.executable, str(Path(__file__).with_name("prove_nights.py")), "--help"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LONG_S, check=True)
    assert "--quiet" in done.stdout
