"""Parsing of events received over HTTP."""

from dataclasses import asdict
from typing import Any

import pydantic
import pytest

from pipeline.images.metadata import Settings
from serving.generator import Step
from serving.generators import client, compatibility
from serving.http import schemas


def test_reading_an_event_builds_no_type_adapter(monkeypatch: pytest.MonkeyPatch):
    built: list[Any] = []

    class Counted(pydantic.TypeAdapter[Any]):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            built.append(args)
            super().__init__(*args, **options)

    for module in (schemas, client, compatibility):
        monkeypatch.setattr(module, "TypeAdapter", Counted)
    for _ in range(3):
        assert schemas.to_event("step", '{"done": 1, "total": 4}') == Step(1, 4)
    assert compatibility._are_settings(asdict(Settings("a", "", 7, 25, 5.0, 8, 8, "model", None)))
    assert not built
