"""Rate limits: a token bucket for each address and each session.

Token bucket: https://en.wikipedia.org/wiki/Token_bucket
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message

# Keys remembered. Beyond that, the key unused for longest is dropped: its bucket is full again.
_REMEMBERED = 10_000


class Buckets:
    """A bucket of `per_minute` tokens for each key, refilled evenly within a minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = float(per_minute)
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens, and the time

    def wait_s(self, key: str) -> float:
        """Return the seconds until there is a token; 0 if there is one now."""
        return max(0.0, (1 - self._level(key)) * 60 / self._size)

    def take(self, key: str) -> None:
        """Take a token out of the bucket of `key`."""
        self._levels[key] = self._level(key) - 1, self._clock()
        self._levels.move_to_end(key)
        if len(self._levels) > _REMEMBERED:
            self._levels.popitem(last=False)

    def _level(self, key: str) -> float:
        tokens, updated_at = self._levels.get(key, (self._size, self._clock()))
        return min(self._size, tokens + (self._clock() - updated_at) * self._size / 60)


class RateLimits:
    """Limits of requests per minute, for each address and each session; 0 means no limit."""

    def __init__(self, per_address: int, per_session: int) -> None:
        self._addresses = Buckets(per_address) if per_address else None
        self._sessions = Buckets(per_session) if per_session else None

    def admit(self, address: str, session: str) -> None:
        """Count a request of an address and a session.

        Raises:
            RequestError: if the request exceeds a limit; it is then not counted.
        """
        pairs = (self._addresses, address), (self._sessions, session)
        limits = [(buckets, key) for buckets, key in pairs if buckets and key]
        wait_s = max((buckets.wait_s(key) for buckets, key in limits), default=0.0)
        if wait_s > 0:
            message = Message(Code.TOO_MANY_REQUESTS, {"wait_s": wait_s})
            raise RequestError(message, ErrorKind.TOO_MANY, retry_after_s=wait_s)
        for buckets, key in limits:
            buckets.take(key)
