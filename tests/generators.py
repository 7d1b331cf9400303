"""Generators for tests: the life of requests over a drawer, made in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pipeline.facts import Facts
from serving.generators.client import Client
from serving.generators.local import LocalDrawer
from serving.generators.remote import RemoteDrawer
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits

if TYPE_CHECKING:
    from pipeline import SDXLPipeline


def local_generator(
    pipe: SDXLPipeline, limits: Limits, observer: Observer, **options: Any
) -> RequestLifecycle:
    """Return a generator that draws with a pipeline in this process."""
    return RequestLifecycle(LocalDrawer(pipe, limits, observer, **options), limits, observer)


def remote_generator(
    client: Client, urls: Sequence[str], facts: Facts, limits: Limits, observer: Observer
) -> RequestLifecycle:
    """Return a generator that sends requests to other instances."""
    return RequestLifecycle(RemoteDrawer(client, urls, facts, observer), limits, observer)


def drawer_of(generator: RequestLifecycle) -> Any:
    """Return the drawer of a generator, with its private parts."""
    return generator._drawer


def change_facts(generator: RequestLifecycle, **changes: Any) -> None:
    """Change the facts about the model of a local generator."""
    drawer_of(generator)._facts = replace(generator.facts, **changes)
