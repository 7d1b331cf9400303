"""The queue of requests: addresses share the devices, and so do the visitors behind each."""

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T", bound=Hashable)
L = TypeVar("L")
_Turn: TypeAlias = tuple[T, float]  # an item, and the cost of its turn


class FairQueue(Generic[T]):
    """Turns of items, shared fairly among addresses, and among the visitors behind each address.

    The next turn is that of the sender that was charged least, so ten requests of one visitor do
    not delay the single request of another, and neither do the many pictures or steps of one
    request. An address that makes up visitors gets no more than any other address.

    To add or remove an item takes the same time however many wait.

    Args:
        turns: returns the number of turns that an item still needs, at least one.
    """

    def __init__(self, turns: Callable[[T], int] = lambda _: 1) -> None:
        self._turns = turns
        # The costs of items by address and visitor. An inner level is never empty.
        self._lines: _Lines[_Lines[dict[T, float]]] = _Lines()
        self._senders: dict[T, tuple[str, str]] = {}  # address and visitor

    def push(self, address: str, visitor: str, item: T, cost: float = 1.0) -> None:
        """Add an item, which is not in the queue, at the end of the visitor's own line.

        A sender that was not there comes before those that were charged as much. Each turn of the
        item is charged with `cost`, above 0.
        """
        visitors = self._lines.find(address, _Lines)
        visitors.find(visitor, dict)[item] = cost
        self._senders[item] = address, visitor

    def pop(
        self,
        ready: Callable[[T], bool] = lambda _: True,
        arrange: Callable[[Iterator[T]], Iterable[T]] = lambda turns: turns,
    ) -> T | None:
        """Give the first item in order that is ready a turn; return None if none is ready.

        An item that comes earlier because `arrange` changed the order uses up its sender's next
        turn. An item is removed with its last turn.

        Args:
            ready: returns whether an item can have a turn; called until it returns True.
            arrange: changes the order of the turns, or leaves some out.
        """
        item = next(filter(ready, arrange(self.in_turn())), None)
        if item is None:
            return None
        address, visitor = self._senders[item]
        cost = self._lines[address][visitor][item]
        self._lines.charge(address, cost)
        self._lines[address].charge(visitor, cost)
        if self._turns(item) <= 1:
            self.remove(item)
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

    def __len__(self) -> int:
        return len(self._senders)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the items in the order of their first turns if none is added."""
        return iter(dict.fromkeys(self.in_turn()))

    def in_turn(self) -> Iterator[T]:
        """Iterate over all turns of the items, in the order in which `pop` gives them.

        Items may be added and removed meanwhile: what has been read of the queue stays as it was.
        """
        return (
            item
            for item, _ in self._lines.in_turn(lambda visitors: visitors.in_turn(self._turns_in))
        )

    def _turns_in(self, line: dict[T, float]) -> Iterator[_Turn[T]]:
        return (turn for turn in [*line.items()] for _ in range(self._turns(turn[0])))


class _Lines(dict[str, L]):
    """Lines by sender, each charged for its turns: weighted fair queuing (Demers et al. 1989).

    A sender that was away begins at the present virtual time, about the average charge of the
    others; an earlier charge that is higher still counts.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._numbers = 0  # given so far; they order senders that were charged the same
        self._charged: dict[str, tuple[float, bool, int]] = {}

    def find(self, sender: str, make_line: Callable[[], L]) -> L:
        """Return the line of a sender, a new one if there is none."""
        if sender not in self:
            self[sender] = make_line()
            charge = max(self._charged.get(sender, (0.0,))[0], self._now)
            self._note(sender, charge, charge > self._now)
        return self[sender]

    def charge(self, sender: str, cost: float) -> None:
        """Charge a sender that has a line."""
        self._now += cost / len(self)
        self._note(sender, self._charged[sender][0] + cost, True)
        if len(self._charged) > 2 * len(self) + 64:
            self._charged = {
                key: note
                for key, note in self._charged.items()
                if key in self or note[0] > self._now
            }

    def in_turn(self, turns_of: Callable[[L], Iterator[_Turn[T]]]) -> Iterator[_Turn[T]]:
        """Iterate over the turns of all lines, those of the least charged line first.

        `turns_of` returns the turns of a line.
        """
        number = self._numbers
        heap = [(*self._charged[sender], turns_of(line)) for sender, line in self.items()]
        heapq.heapify(heap)
        while heap:
            charge, _, _, line = heap[0]
            if (turn := next(line, None)) is None:
                heapq.heappop(heap)
                continue
            number += 1
            heapq.heapreplace(heap, (charge + turn[1], True, number, line))
            yield turn

    def _note(self, sender: str, charge: float, was_here: bool) -> None:
        self._numbers += 1
        self._charged[sender] = charge, was_here, self._numbers
