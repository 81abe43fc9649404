"""Loading torch makes a million objects at once, none of which is garbage."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

from engine import openmp


@contextmanager
def loading() -> Iterator[None]:
    """Keep Python from looking for garbage while modules are imported, and later among what they have made.

    It took a sixth of the time in which a rank starts (2.2 s of processor time, 1.8 without), and every later full
    collection, which falls into some step, would go over all of torch. Raises UsageError where the environment tells
    OpenMP, which begins with torch, what it can't follow.
    """
    openmp.check(os.environ)
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
