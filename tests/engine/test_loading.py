"""What loading torch leaves Python's collector of garbage to do."""

import gc
import subprocess
import sys

from waiting import LONG_S

from engine.loading import loading


def test_nothing_is_collected_meanwhile_and_nothing_of_it_looked_at_again() -> None:
    before = gc.get_freeze_count()
    try:
        with loading():
            assert not gc.isenabled()
        assert gc.isenabled()
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_a_rank_loads_torch_without_a_collection() -> None:
    code = """
import gc, sys
from engine.cli.main import main
collected = []
loaded = lambda: hasattr(sys.modules.get("engine.tracing.dry"), "dry_run")
gc.callbacks.append(lambda phase, about: "torch" in sys.modules and collected.append(loaded()))
main(["bench", "dry", "--model", "gpt-test", "--grid", "1x1x1x1", "--batch-size", "1"])
assert gc.get_freeze_count() > 100_000
assert all(collected)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
