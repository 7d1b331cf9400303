"""Front-ends, and the instances that they send requests to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from serving.generators import client as generator_client
from serving.metrics import Observer
from serving.requests.registry import Limits
from tests.calls import Event
from tests.fake_pipeline import FakePipeline
from tests.generators import drawer_of, remote_generator
from tests.web import Site, serve, wait_until

MODEL = FakePipeline.facts


@contextmanager
def front_of(*urls: str, **limits: Any) -> Iterator[Site]:
    observer = Observer()
    generator = remote_generator(generator_client.Client(), urls, MODEL, Limits(**limits), observer)
    with serve(generator=generator, observer=observer, passes_on=True) as site:
        # Once all instances are known, the first of two idle ones gets the first request.
        wait_until(
            lambda: all(each.facts or not each.healthy for each in drawer_of(generator).backends)
        )
        yield site


def pictures(events: list[Event]) -> list[str]:
    return [fields["png"] for name, fields in events if name == "image"]
