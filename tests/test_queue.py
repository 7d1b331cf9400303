"""The order of requests: fair to visitors, and complete."""

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.queue import FairQueue

PUSHES = st.lists(st.tuples(st.sampled_from("abc"), st.integers()), max_size=30)


def filled(pushes: list[tuple[str, int]]) -> FairQueue[tuple[str, int, int]]:
    queue: FairQueue[tuple[str, int, int]] = FairQueue()
    for number, (visitor, value) in enumerate(pushes):
        queue.push(visitor, (visitor, number, value))
    return queue


@settings(deadline=None)
@given(PUSHES)
def test_what_goes_in_comes_out_once_and_in_the_order_foretold(pushes: list[tuple[str, int]]):
    queue = filled(pushes)
    foretold = list(queue)
    assert len(queue) == len(pushes)
    assert [queue.pop() for _ in pushes] == foretold
    assert sorted(number for _, number, _ in foretold) == list(range(len(pushes)))
    for visitor in "abc":  # first come, first served
        own = [number for one, number, _ in foretold if one == visitor]
        assert own == sorted(own)


@settings(deadline=None)
@given(PUSHES)
def test_nobody_waits_for_two_turns_of_another(pushes: list[tuple[str, int]]):
    order = [visitor for visitor, _, _ in filled(pushes)]
    for place, visitor in enumerate(order):
        own_before = order[:place].count(visitor)
        for other in set(order):
            assert order[:place].count(other) <= own_before + 1


def test_one_request_is_not_starved_by_ten():
    queue = filled([("greedy", i) for i in range(10)])
    queue.pop()
    queue.push("patient", ("patient", 0, 0))
    queue.pop()
    assert queue.pop() == ("patient", 0, 0)


@settings(deadline=None)
@given(PUSHES, st.data())
def test_removed_is_gone_and_nothing_else(pushes: list[tuple[str, int]], data: st.DataObject):
    queue = filled([*pushes, ("a", 0)])
    gone = data.draw(st.sampled_from(list(queue)))
    rest = {item for item in queue if item != gone}
    queue.remove(gone[0], gone)
    queue.remove(gone[0], gone)
    assert set(queue) == rest
    assert len(queue) == len(rest)


def test_empty():
    assert FairQueue[int]().pop() is None


@settings(deadline=None)
@given(PUSHES, st.integers())
def test_what_is_not_ready_keeps_its_place(pushes: list[tuple[str, int]], least: int):
    queue = filled(pushes)
    ready = [item for item in queue if item[2] >= least]
    others = [item for item in queue if item[2] < least]
    out = iter(lambda: queue.pop(lambda item: item[2] >= least), None)
    assert sorted(out) == sorted(ready)
    for visitor in "abc":
        kept = [item for item in queue if item[0] == visitor]
        assert kept == [item for item in others if item[0] == visitor]
