"""A clock for tests."""


class Ticks:
    """A clock that moves on with each stamp."""

    now = 0.0

    def stamp(self) -> float:
        self.now += 1
        return self.now

    stamp_end = stamp

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def forget(self) -> None:
        pass
