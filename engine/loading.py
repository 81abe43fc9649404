"""Loading torch makes a million objects at once, none of which is garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Keep Python from looking for garbage while modules are imported, and later among what they have made.

    It took a sixth of the time in which a rank starts (2.2 s of processor time, 1.8 without), and every later full
    collection, which falls into some step, would go over all of torch.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
