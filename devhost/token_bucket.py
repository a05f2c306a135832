"""How often something may happen: a burst, then so many times a second."""


class TokenBucket:
    """Counts what happened, on a clock that the caller reads.

    Args:
        burst: How often it may happen in no time.
        rate: How often it may happen each second then.
    """

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst, self._rate = burst, rate
        self._tokens, self._at = burst, 0.0

    def take(self, now: float) -> float:
        """Count once more and return 0; or return in how many seconds it may happen."""
        if self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < 1.0:
            return (1.0 - self._tokens) / self._rate
        self._tokens -= 1.0
        return 0.0
