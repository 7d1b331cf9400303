"""The queue of requests: addresses take turns, and so do the visitors behind each address."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
L = TypeVar("L")


class FairQueue(Generic[T]):
    """A round robin over addresses, and over the visitors behind each address.

    Ten requests of one visitor do not delay the single request of another, and neither do the many
    pictures of one request. An address that makes up visitors gets no more turns than any other
    address.

    Args:
        turns: returns the number of turns that an item still needs, at least one.
    """

    def __init__(self, turns: Callable[[T], int] = lambda _: 1) -> None:
        self._turns = turns
        # Both levels are in the order of turns. An inner dictionary or a deque is never empty.
        self._lines: dict[str, dict[str, deque[T]]] = {}
        self._served = ""  # the address that had the last turn
        self._visitors_served: dict[str, str] = {}  # the visitor that had the last turn, by address

    def push(self, address: str, visitor: str, item: T) -> None:
        """Add an item at the end of the visitor's own line.

        A new line comes before the one that had the last turn.
        """
        visitors = _with_line(self._lines, address, {}, self._served)
        served = self._visitors_served.get(address, "")
        _with_line(visitors, visitor, deque(), served).append(item)

    def pop(
        self,
        ready: Callable[[T], bool] = lambda _: True,
        arrange: Callable[[Sequence[T]], Iterable[T]] = lambda items: items,
    ) -> T | None:
        """Give the first item in order that is ready a turn; return None if none is ready.

        An item that comes earlier because `arrange` changed the order takes its sender's turn. With
        its last turn an item is removed.

        Args:
            ready: returns whether an item can have a turn; called until it returns True.
            arrange: changes the order of all turns.
        """
        in_turn = list(self._in_turn())
        senders = {id(item): sender for *sender, item in in_turn}
        for item in arrange([item for *_, item in in_turn]):
            is_last = self._turns(item) <= 1
            if ready(item):
                address, visitor = senders[id(item)]
                if is_last:
                    self.remove(address, visitor, item)
                self._served = address
                if visitors := self._lines.get(address):
                    self._visitors_served[address] = visitor
                    _move_to_end(self._lines, address)
                    _move_to_end(visitors, visitor)
                return item
        return None

    def remove(self, address: str, visitor: str, item: T) -> None:
        """Remove an item, wherever it is; do nothing if it is not there."""
        visitors = self._lines.get(address, {})
        line = visitors.get(visitor, deque())
        if item not in line:
            return
        line.remove(item)
        if not line:
            del visitors[visitor]
        if not visitors:
            del self._lines[address]
            self._visitors_served.pop(address, None)

    def __len__(self) -> int:
        return sum(len(line) for visitors in self._lines.values() for line in visitors.values())

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in the order of their first turns if none is added."""
        return iter({id(item): item for item in self.in_turn()}.values())

    def in_turn(self) -> Iterator[T]:
        """Iterate over all turns of the items, in the order in which `pop` gives them."""
        return (item for _, _, item in self._in_turn())

    def _in_turn(self) -> Iterator[tuple[str, str, T]]:
        addresses = []
        for address, visitors in self._lines.items():
            lines = [
                [(address, visitor, item) for item in line for _ in range(self._turns(item))]
                for visitor, line in visitors.items()
            ]
            addresses.append(list(_in_rotation(lines)))
        return _in_rotation(addresses)


def _with_line(lines: dict[str, L], key: str, new: L, served: str) -> L:
    """Return the line of `key`; put a `new` one before the line that had the last turn."""
    if key not in lines:
        lines[key] = new
        _move_to_end(lines, served)
    return lines[key]


def _move_to_end(lines: dict[str, L], key: str) -> None:
    if key in lines:
        lines[key] = lines.pop(key)


def _in_rotation(lines: Iterable[list[T]]) -> Iterator[T]:
    """Yield the first of each line, then the second of each, and so on."""
    waiting = list(lines)
    turn = 0
    while waiting := [line for line in waiting if turn < len(line)]:
        yield from (line[turn] for line in waiting)
        turn += 1
