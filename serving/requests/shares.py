"""Limits on amounts in use or kept, in all and for each address."""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")


def first_to_go(entries: Iterable[tuple[K, str, int]]) -> K:
    """Return the key of the entry to drop first: the oldest of the address that takes up most.

    So an address that fills a store loses its own entries and not those of others.

    Args:
        entries: key, address and amount of each entry, oldest first; at least one.
    """
    entries = list(entries)
    used: Counter[str] = Counter()
    for _, address, amount in entries:
        used[address] += amount
    [(greediest, _)] = used.most_common(1)
    return next(key for key, address, _ in entries if address == greediest)


class Shares:
    """Amounts in use: at most `most` in all, and at most `most_each` by one address.

    The second limit keeps one address from taking what the others need.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self.most = most
        self.most_each = most_each
        self._used: Counter[str] = Counter()
        self._total = 0

    def has_room(self, amount: int = 1) -> bool:
        """Return whether `amount` more fits into the limit for all."""
        return self._total + amount <= self.most

    def has_room_for(self, address: str, amount: int = 1) -> bool:
        """Return whether `amount` more fits into both limits."""
        return self.has_room(amount) and self._used[address] + amount <= self.most_each

    def take(self, address: str, amount: int = 1) -> bool:
        """Count `amount` for `address`; return False, and count nothing, if there is no room."""
        if not self.has_room_for(address, amount):
            return False
        self._used[address] += amount
        self._total += amount
        return True

    def give_back(self, address: str, amount: int = 1) -> None:
        """Subtract an amount that `take` counted."""
        self._total -= amount
        self._used[address] -= amount
        if not self._used[address]:
            del self._used[address]
