"""The order of requests: fair to addresses and to visitors, and complete."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.drawing.fair_queue import FairQueue

Item = tuple[str, str, int]  # address, visitor, number

SENDERS = st.tuples(st.sampled_from("AB"), st.sampled_from("abc"))
PUSHES = st.lists(SENDERS, max_size=30)


def filled(pushes: list[tuple[str, str]]) -> FairQueue[Item]:
    queue: FairQueue[Item] = FairQueue()
    for number, (address, visitor) in enumerate(pushes):
        queue.push(address, visitor, (address, visitor, number))
    return queue


@settings(deadline=None)
@given(PUSHES)
def test_every_item_comes_out_once_in_the_order_announced(pushes: list[tuple[str, str]]):
    queue = filled(pushes)
    foretold = list(queue)
    assert len(queue) == len(pushes)
    assert [queue.pop() for _ in pushes] == foretold
    assert sorted(number for _, _, number in foretold) == list(range(len(pushes)))
    for sender in set(pushes):  # first come, first served
        own = [number for *one, number in foretold if tuple(one) == sender]
        assert own == sorted(own)


@settings(deadline=None)
@given(PUSHES)
def test_no_visitor_waits_for_two_turns_of_another(pushes: list[tuple[str, str]]):
    order = list(filled(pushes))
    for place, (address, visitor, _) in enumerate(order):
        before = [one for one, *_ in order[:place]]
        own_before = before.count(address)
        assert all(before.count(other) <= own_before + 1 for other in "AB")
        behind = [one for where, one, _ in order[:place] if where == address]
        own_before = behind.count(visitor)
        assert all(behind.count(other) <= own_before + 1 for other in "abc")


def test_one_request_is_not_starved_by_ten():
    queue = filled([("A", "greedy")] * 10)
    queue.pop()
    queue.push("A", "patient", ("A", "patient", 0))
    assert queue.pop() == ("A", "patient", 0)


def test_an_address_gains_nothing_by_making_up_visitors():
    queue = filled([("A", f"made up {i}") for i in range(40)])
    queue.pop()
    queue.push("B", "patient", ("B", "patient", 0))
    assert queue.pop() == ("B", "patient", 0)


def test_a_newcomer_comes_before_the_one_served_last_and_after_the_others():
    queue = filled([(address, "a") for address in "AABBCC"])
    assert queue.pop() == ("A", "a", 0)
    queue.push("D", "a", ("D", "a", 0))
    assert [address for address, *_ in queue] == ["B", "C", "D", "A", "B", "C"]


@settings(deadline=None)
@given(st.lists(SENDERS, min_size=3, max_size=60))
def test_newcomers_keep_nobody_waiting_for_good(pushes: list[tuple[str, str]]):
    queue = filled([("Z", "z"), ("Z", "z")])
    assert queue.pop() == ("Z", "z", 0)
    served = []
    for number, (address, visitor) in enumerate(pushes):
        queue.push(address, visitor, (address, visitor, number))
        served.append(queue.pop())
    assert ("Z", "z", 1) in served[:2]


@settings(deadline=None)
@given(PUSHES, st.data())
def test_removed_is_gone_and_nothing_else(pushes: list[tuple[str, str]], data: st.DataObject):
    queue = filled([*pushes, ("A", "a")])
    gone = data.draw(st.sampled_from(list(queue)))
    rest = {item for item in queue if item != gone}
    queue.remove(gone)
    queue.remove(gone)
    assert set(queue) == rest
    assert len(queue) == len(rest)


@settings(deadline=None)
@given(st.lists(st.tuples(SENDERS, st.integers(1, 4)), max_size=12))
def test_an_item_is_removed_with_its_last_turn(pushes: list[tuple[tuple[str, str], int]]):
    left = {number: turns for number, (_, turns) in enumerate(pushes)}
    queue: FairQueue[Item] = FairQueue(lambda item: left[item[2]])
    for number, ((address, visitor), _) in enumerate(pushes):
        queue.push(address, visitor, (address, visitor, number))
    foretold = list(queue.in_turn())
    assert list(queue) == list(dict.fromkeys(foretold))
    given_turns: list[Item] = []
    while item := queue.pop():
        left[item[2]] -= 1
        given_turns.append(item)
        assert len(queue) == sum(turns > 0 for turns in left.values())
    assert given_turns == foretold
    assert not any(left.values())


def test_many_turns_of_an_item_delay_no_other_visitor():
    left = {0: 8, 1: 1}
    queue: FairQueue[int] = FairQueue(lambda item: left[item])
    queue.push("A", "greedy", 0)
    assert queue.pop() == 0
    queue.push("A", "patient", 1)
    assert [queue.pop(), queue.pop()] == [1, 0]


def test_empty():
    assert FairQueue[int]().pop() is None


@settings(deadline=None)
@given(PUSHES, st.integers(0, 30))
def test_an_item_that_is_not_ready_keeps_its_place(pushes: list[tuple[str, str]], least: int):
    queue = filled(pushes)
    ready = [item for item in queue if item[2] >= least]
    others = [item for item in queue if item[2] < least]
    out = iter(lambda: queue.pop(lambda item: item[2] >= least), None)
    assert sorted(out) == sorted(ready)
    for sender in set(pushes):
        kept = [item for item in queue if item[:2] == sender]
        assert kept == [item for item in others if item[:2] == sender]


def test_a_turn_costs_the_same_however_many_wait():
    calls = 0

    def turns(_: Item) -> int:
        nonlocal calls
        calls += 1
        return 1

    def cost(waiting: int) -> int:
        nonlocal calls
        queue: FairQueue[Item] = FairQueue(turns)
        items = [(str(number % 7), str(number % 50), number) for number in range(waiting)]
        for item in items:
            queue.push(*item[:2], item)
        calls = 0
        queue.remove(items[-1])
        assert len(queue) == waiting - 1
        for _ in range(10):
            queue.pop()
        return calls

    assert cost(10_000) == cost(1000) <= 30


def test_items_come_and_go_while_turns_are_read():
    queue = filled([(address, visitor) for address in "ABC" for visitor in "ab"])
    turns = queue.in_turn()
    read = [next(turns)]
    queue.remove(read[0])
    queue.push("D", "a", ("D", "a", 6))
    read += turns
    assert [number for *_, number in read] == [0, 2, 4, 1, 3, 5]
