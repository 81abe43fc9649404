"""The corpus is real text that every machine has: the standard library of the running Python."""

import sysconfig

from reframe.core.builtins import variable

from suites.base.prepared import Prepared


class Corpus(Prepared):
    """vocabulary: how many tokens there are, at most as many as the model knows. most_bytes: how much text is read."""

    vocabulary = variable(int, value=2048)
    most_bytes = variable(int, value=8_000_000)
    into, made, source = "corpus", "tokens", sysconfig.get_path("stdlib")

    def options(self) -> list[str]:
        words = ["prepare", "--source", self.source, "--vocab-size", str(self.vocabulary)]
        return [*words, "--max-bytes", str(self.most_bytes)]
