"""One target on several machines: every combination of what two of them say, at home and elsewhere."""

from itertools import product

import pytest

from engine.result.judges.machines import over_machines
from engine.result.judges.reproduction import Judgement, Verdict

HOME = "frontier"
SAID: tuple[Verdict, ...] = ("reproduces", "better", "differs", "can't tell")
TOGETHER = {
    ("reproduces", "reproduces"): "reproduces",
    ("reproduces", "better"): "reproduces",
    ("reproduces", "differs"): "differs",
    ("reproduces", "can't tell"): "reproduces",
    ("better", "better"): "better",
    ("better", "differs"): "differs",
    ("better", "can't tell"): "better",
    ("differs", "differs"): "differs",
    ("differs", "can't tell"): "differs",
    ("can't tell", "can't tell"): "can't tell",
}


@pytest.mark.parametrize(("one", "other"), list(product(SAID, SAID)))
def test_two_other_machines(one: Verdict, other: Verdict) -> None:
    """Planted: an order that counts, a vote that is lost, an open one that takes a verdict away."""
    found = over_machines({"alps": Judgement(one), "local": Judgement(other)}, HOME)
    expected = TOGETHER.get((one, other)) or TOGETHER[other, one]
    assert found.judgement.verdict == expected
    deciding = {"reproduces": {"reproduces", "better"}, "can't tell": set()}.get(expected, {expected})
    assert found.by == tuple(name for name, said in (("alps", one), ("local", other)) if said in deciding)
    assert found.open == tuple(name for name, said in (("alps", one), ("local", other)) if said == "can't tell")


@pytest.mark.parametrize(("home", "other"), list(product(SAID, SAID)))
def test_the_papers_own_machine_decides(home: Verdict, other: Verdict) -> None:
    found = over_machines({"alps": Judgement(other, by_sign=True), HOME: Judgement(home)}, HOME)
    told = home != "can't tell"
    assert (found.judgement, found.by, found.open) == (Judgement(home), (HOME,) * told, (HOME,) * (not told))


def test_the_farthest_off_speaks_for_those_that_differ() -> None:
    near, far = Judgement("differs", off=-0.1), Judgement("differs", off=-0.4)
    assert over_machines({"alps": near, "local": far, "vcluster": near}, HOME).judgement == far


def test_no_machine_gives_no_verdict() -> None:
    with pytest.raises(ValueError, match="one that measured"):
        over_machines({}, HOME)
