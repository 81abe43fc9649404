"""Preparation for loading torch: a check of OpenMP's variables, and no garbage collection meanwhile. No torch."""

import gc
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from engine.errors import UsageError

THREADS = "OMP_NUM_THREADS"
MOST = 2**31
NUMBER = r"\s*\+?[0-9]+\s*"
COUNT, COUNTS = re.compile(NUMBER), re.compile(rf"{NUMBER}(,{NUMBER})*")
NUMBERS = {
    THREADS: (COUNTS, "a whole number above 0, or several with commas, one for each level of nesting"),
    "OMP_THREAD_LIMIT": (COUNT, "a whole number above 0"),
    "MKL_NUM_THREADS": (COUNT, "a whole number above 0"),
}
"""Variables with numbers of threads: the form of each, and its name in a sentence."""
BOUND = r"\s*(primary|master|close|spread)\s*"
PLACES = r"\s*(threads|cores|sockets|ll_caches|numa_domains)\s*(\([0-9\s]+\))?\s*|[-!{}0-9:,\s]*{[-!{}0-9:,\s]+"
WORDS = {
    "OMP_PROC_BIND": (
        re.compile(rf"\s*(true|false)\s*|{BOUND}(,{BOUND})*", re.IGNORECASE),
        "true, false, or some of primary, close and spread with commas",
    ),
    "OMP_PLACES": (re.compile(PLACES, re.IGNORECASE), "threads, cores, sockets, or a list such as {0:4},{4:4}"),
}
"""Variables that bind threads to cores, likewise."""


def cores() -> frozenset[int]:
    """Return the numbers of the processors that the calling thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


AT_START: Final = cores()
"""Cores of this process as its launcher gave them: once torch is loaded, OMP_PROC_BIND binds the main thread to one."""


def check(environ: Mapping[str, str]) -> None:
    """Raise UsageError for what OpenMP or MKL can't follow, as a step with all cores for each rank takes very long."""
    for name, (form, allowed) in {**NUMBERS, **WORDS}.items():
        given = environ.get(name)
        if given is None:
            continue
        wrong = form.fullmatch(given) is None
        if not wrong and name in NUMBERS:
            wrong = not all(0 < int(number) < MOST for number in given.split(","))
        if wrong:
            raise UsageError(f"{name} is {allowed}, but {given[:40]!r} was given: set it so, or unset it.")


@contextmanager
def loading() -> Iterator[None]:
    """Disable the garbage collector while torch is imported, and spare later collections what was made.

    That saves a sixth of a rank's start (2.2 s of processor time, 1.8 without). Raises UsageError where the environment
    tells OpenMP, which begins with torch, what it can't follow.
    """
    check(os.environ)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
