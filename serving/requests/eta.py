"""How long requests take, judged by the recent ones."""

# The weight of the newest request in the average.
_NEWEST = 0.3


class Speed:
    """A moving average of the seconds that a step of a request takes, all else included."""

    def __init__(self) -> None:
        self._step_s: float | None = None

    def observe(self, steps: int, seconds: float) -> None:
        """Counts in a request that was drawn to the end."""
        step_s = seconds / steps
        old = step_s if self._step_s is None else self._step_s
        self._step_s = old + _NEWEST * (step_s - old)

    def expect(self, steps: int) -> float | None:
        """Seconds for so many steps; None before anything was drawn."""
        return None if self._step_s is None else self._step_s * steps
