"""Shared by all tests: one thread a process, so that virtual ranks, real ones and two workers don't fight for cores."""

import gc
import os
import signal
from collections import Counter

import hypothesis
import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # of torch, which nothing has loaded yet, here and in what tests start
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"  # torch.compile makes no trial libraries of vector instructions
for _number, _heard in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if (
        signal.getsignal(_number) is signal.SIG_IGN
    ):  # in the background of a script, by nohup: what tests start hears it
        signal.signal(_number, _heard)
# No example fails for being slow on a busy machine, and none is kept in the working tree.
hypothesis.settings.register_profile(
    "par4d", deadline=None, database=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("par4d")
gc.disable()  # while tests are loaded: to look for garbage would take a fifth of that time


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave to the week what `sampled` doesn't take."""
    places = Counter[str]()
    for item in items:
        sampled = item.get_closest_marker("sampled")
        if sampled is None or item.get_closest_marker("weekly"):
            continue
        function = item.nodeid.partition("[")[0]
        if places[function] % sampled.args[0]:
            item.add_marker(pytest.mark.weekly)
        places[function] += 1


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from now on, but not of what is loaded, and seldom: to look for it takes more than it saves."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()
