"""Whatever the OpenAPI description allows, and what it forbids, tried by schemathesis."""

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import settings

from serving.generators.local import LocalGenerator
from serving.http import app
from serving.metrics import Observer
from serving.requests.rate_limits import RateLimits
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.web import Site, serve


def description() -> dict[str, object]:
    pipe, observer = FakePipeline().as_pipeline(), Observer()
    generator = LocalGenerator(pipe, Limits(), RateLimits(None, None), observer)
    return app.build(generator, observer).openapi()


schema = schemathesis.openapi.from_dict(description())


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


@schema.parametrize()
@settings(max_examples=25, deadline=None)
def test_every_answer_is_clear_and_none_is_a_failure(site: Site, case: schemathesis.Case):
    answer = case.call(base_url=site.url, timeout=60)
    assert answer.status_code < 500
    if answer.status_code >= 400:
        assert answer.json()["error"]["message"]
