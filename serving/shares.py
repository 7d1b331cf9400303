"""Counters of what is in use, limited in all and for each address."""

from collections import Counter


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
        """Count `amount` in for `address`; return False, and count nothing, without room."""
        if not self.has_room_for(address, amount):
            return False
        self._used[address] += amount
        self._total += amount
        return True

    def give_back(self, address: str, amount: int = 1) -> None:
        """Count out what `take` counted in."""
        self._total -= amount
        self._used[address] -= amount
        if not self._used[address]:
            del self._used[address]
