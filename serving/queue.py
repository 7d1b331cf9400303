"""Who is next: first come, first served for each visitor, and the visitors take turns."""

from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Round robin over visitors, so that one visitor's ten requests do not delay another's one."""

    def __init__(self) -> None:
        # In the order of the visitors' turns; a visitor without requests is not there.
        self._lines: dict[str, deque[T]] = {}

    def push(self, visitor: str, item: T) -> None:
        """Adds an item at the end of the visitor's own line."""
        self._lines.setdefault(visitor, deque()).append(item)

    def pop(self) -> T:
        """Takes out the item that is next.

        Raises:
            IndexError: the queue is empty.
        """
        if not self._lines:
            raise IndexError("pop from an empty queue")
        visitor = next(iter(self._lines))
        line = self._lines.pop(visitor)
        item = line.popleft()
        if line:
            self._lines[visitor] = line  # behind all other visitors
        return item

    def remove(self, visitor: str, item: T) -> None:
        """Takes out an item, wherever it is; one that is not there is no error."""
        line = self._lines.get(visitor, deque())
        if item in line:
            line.remove(item)
            if not line:
                del self._lines[visitor]

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __iter__(self) -> Iterator[T]:
        """The items in the order in which they are next, should nobody else come."""
        turns = [
            (turn, nth, item)
            for nth, line in enumerate(self._lines.values())
            for turn, item in enumerate(line)
        ]
        return (item for _, _, item in sorted(turns, key=lambda each: each[:2]))
