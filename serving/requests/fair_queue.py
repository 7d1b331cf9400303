"""The queue of requests: addresses take turns, and so do the visitors behind each address."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)
L = TypeVar("L")


class FairQueue(Generic[T]):
    """A round robin over addresses, and over the visitors behind each address.

    Ten requests of one visitor do not delay the single request of another, and neither do the many
    pictures of one request. An address that makes up visitors gets no more turns than any other
    address.

    To add or remove an item takes the same time however many wait.

    Args:
        turns: returns the number of turns that an item still needs, at least one.
    """

    def __init__(self, turns: Callable[[T], int] = lambda _: 1) -> None:
        self._turns = turns
        # All levels are in the order of turns. An inner one is never empty.
        self._lines: dict[str, dict[str, dict[T, None]]] = {}
        self._senders: dict[T, tuple[str, str]] = {}  # address and visitor
        self._served = ""  # the address that had the last turn
        self._visitors_served: dict[str, str] = {}  # the visitor that had the last turn, by address

    def push(self, address: str, visitor: str, item: T) -> None:
        """Add an item, which is not in the queue, at the end of the visitor's own line.

        A new line comes before the one that had the last turn.
        """
        visitors = _with_line(self._lines, address, {}, self._served)
        served = self._visitors_served.get(address, "")
        _with_line(visitors, visitor, {}, served)[item] = None
        self._senders[item] = address, visitor

    def pop(
        self,
        ready: Callable[[T], bool] = lambda _: True,
        arrange: Callable[[Iterator[T]], Iterable[T]] = lambda turns: turns,
    ) -> T | None:
        """Give the first item in order that is ready a turn; return None if none is ready.

        An item that comes earlier because `arrange` changed the order takes its sender's turn. With
        its last turn an item is removed.

        Args:
            ready: returns whether an item can have a turn; called until it returns True.
            arrange: changes the order of the turns, or leaves some out.
        """
        item = next(filter(ready, arrange(self.in_turn())), None)
        if item is None:
            return None
        address, visitor = self._senders[item]
        if self._turns(item) <= 1:
            self.remove(item)
        self._served = address
        if visitors := self._lines.get(address):
            self._visitors_served[address] = visitor
            _move_to_end(self._lines, address)
            _move_to_end(visitors, visitor)
        return item

    def remove(self, item: T) -> None:
        """Remove an item, wherever it is; do nothing if it is not there."""
        if item not in self._senders:
            return
        address, visitor = self._senders.pop(item)
        visitors = self._lines[address]
        del visitors[visitor][item]
        if not visitors[visitor]:
            del visitors[visitor]
        if not visitors:
            del self._lines[address]
            self._visitors_served.pop(address, None)

    def __len__(self) -> int:
        return len(self._senders)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in the order of their first turns if none is added."""
        return iter(dict.fromkeys(self.in_turn()))

    def in_turn(self) -> Iterator[T]:
        """Iterate over all turns of the items, in the order in which `pop` gives them.

        Items may be added and removed meanwhile: what has been read of the queue stays as it was.
        """
        return _in_rotation(map(self._turns_at, [*self._lines.values()]))

    def _turns_at(self, visitors: dict[str, dict[T, None]]) -> Iterator[T]:
        return _in_rotation(map(self._turns_in, [*visitors.values()]))

    def _turns_in(self, line: dict[T, None]) -> Iterator[T]:
        return (item for item in [*line] for _ in range(self._turns(item)))


def _with_line(lines: dict[str, L], key: str, new: L, served: str) -> L:
    """Return the line of `key`; put a `new` one before the line that had the last turn."""
    if key not in lines:
        lines[key] = new
        _move_to_end(lines, served)
    return lines[key]


def _move_to_end(lines: dict[str, L], key: str) -> None:
    if key in lines:
        lines[key] = lines.pop(key)


def _in_rotation(lines: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield the first of each line, then the second of each, and so on."""
    while lines:
        others = []
        for line in lines:
            for item in islice(line, 1):
                yield item
                others.append(line)
        lines = others
