"""Files of calls' pictures, which one thread writes for all addresses in turn."""

import asyncio

import pytest

from serving.http.calls import Format, metadata


def test_addresses_take_turns_at_the_encoder(monkeypatch: pytest.MonkeyPatch):
    order: list[bytes] = []
    monkeypatch.setattr(metadata, "scaled", lambda png, _: order.append(png) or png)

    async def encode() -> None:
        formats = [Format("png", 95, address, size=(8, 8)) for address in "aaaab"]
        await asyncio.gather(*(output.encode(output.address.encode()) for output in formats))

    asyncio.run(encode())
    assert order == [b"a", b"a", b"b", b"a", b"a"]
