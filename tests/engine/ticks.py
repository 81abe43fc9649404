"""Clocks for tests."""


class Hands:
    """A clock that shows what it is set to."""

    now = 0.0

    def stamp(self) -> float:
        return self.now

    def stamp_end(self) -> float:
        return self.stamp()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def forget(self) -> None:
        pass


class Ticks(Hands):
    """A clock that moves on with each stamp."""

    def stamp(self) -> float:
        self.now += 1
        return self.now
