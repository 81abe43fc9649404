"""Measure how long a report of many nights takes: `python tests/reports/time_nights.py [NIGHTS [TESTS]]`.

If not said, 400 nights of 25 tests, 10,000 jobs, in a results database of ReFrame's: all tests steady but for every
fifth, which gets slower by 8 % at some night.
"""

import random
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from sample_nights import FIRST, NEW, OLD, case, night_name, session, store, timed

from reports.nights.reference import make
from reports.read.history import history
from reports.site import build
from systems import references

OTHERS = {f"variable_{number}": ["some", "words", "of", "it"] for number in range(170)}
"""What else ReFrame keeps of a test case, so that one has 15 kB, as on a real system."""


def night(number: int, nights: int, tests: int) -> dict[str, Any]:
    """One job of each test."""
    noise = random.Random(number)
    cases = []
    for test in range(tests):
        since = nights // 2 + 7 * test
        late = test % 5 == 0 and number >= since
        seconds = (10 + test) * noise.gauss(1.0, 0.005) * (1.08 if late else 1.0)
        figures, record = timed(seconds, number * tests + test, NEW if number >= nights // 2 else OLD)
        figures["fastest_iteration"] = (0.98 * seconds * noise.gauss(1.0, 0.002), "s")
        cases.append(case(f"Test{test} %n=512", figures, record) | OTHERS)
    return session(cases, FIRST + timedelta(days=number), night_name(number))


def main() -> None:
    nights, tests = (int(sys.argv[at]) if len(sys.argv) > at else usual for at, usual in ((1, 400), (2, 25)))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = store(folder / "results" / "results.db", (night(number, nights, tests) for number in range(nights)))
        references.FOLDER = folder / "references"
        make(history(database, "frontier"))
        start = time.perf_counter()
        page, loaded = build([folder / "results"], folder / "site")
        taken = time.perf_counter() - start
        written = sum(path.stat().st_size for path in page.parent.rglob("*") if path.is_file())
        sys.stdout.write(
            f"{nights} nights of {tests} tests: {len(loaded.runs):,} results of {database.stat().st_size / 1e6:.0f} MB "
            f"in {taken:.1f} s, {written / 1e6:.1f} MB written\n"
        )


if __name__ == "__main__":
    main()
