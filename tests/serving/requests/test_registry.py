"""How long results are kept, and that nothing else holds them."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable

import pytest

from serving.generator import Done, Image, Request, RequestError
from serving.requests.record import Record
from serving.requests.registry import Limits, Registry


def run(limits: Limits, test: Callable[[Registry], None]) -> None:
    async def whole() -> None:
        test(Registry(limits, lambda _: None))

    asyncio.run(whole())


def end(registry: Registry, address: str, size: int) -> Record:
    """End a new request of an address with a picture of `size` bytes."""
    record = registry.take_in(Request("a star", seed=7, address=address))
    registry.publish(record, Image(0, bytes(size), 7, {}))
    registry.publish(record, Done())
    return record


def kept(registry: Registry, records: Iterable[Record]) -> list[bool]:
    def is_kept(record: Record) -> bool:
        try:
            return registry.find(record.request.id) is record
        except RequestError:
            return False

    return [is_kept(record) for record in records]


def test_an_evicted_result_is_gone_at_once():
    def test(registry: Registry) -> None:
        first = weakref.ref(end(registry, "a", 10))
        assert first() is not None
        end(registry, "a", 10)
        gc.collect()
        assert first() is None

    run(Limits(kept=1), test)


@pytest.mark.parametrize("size", [5, 25])
def test_results_are_kept_within_a_bound_of_bytes_and_the_newest_in_any_case(size: int):
    def test(registry: Registry) -> None:
        records = [end(registry, address, 8) for address in "aab"]
        assert kept(registry, records) == [False, True, True]
        records.append(end(registry, "b", size))
        assert kept(registry, records)[-1]
        records.append(end(registry, "a", 8))
        assert kept(registry, records)[-1]
        assert kept(registry, records)[-2] == (size < 20)

    run(Limits(kept_bytes=20), test)
