"""Tests of the links between ranks."""

from reframe.core.builtins import variable

from engine.result.schema import Result, parse
from engine.result.schema.bench import Links
from suites.base.engine_test import WholeNodes, command


class LinksTest(WholeNodes):
    """`engine bench collectives`. message_bytes: the size of the largest message; 0 takes the engine's default."""

    study = "bandwidth"
    message_bytes = variable(int, value=0)
    time_budget_s = variable(float, value=90.0)
    time_limit = "3m"
    pairs = False

    def options(self) -> list[str]:
        size = self.message_bytes or None
        asked = command("bench collectives", pairs=self.pairs, device=self.device)
        return [*asked, *command("", time_budget=self.time_budget_s, bytes=size)]

    @property
    def result(self) -> Result:
        return parse(self.record, "the result")

    @property
    def links(self) -> Links:
        found = self.result.links
        assert found is not None, "a result that is good has links"
        return found
