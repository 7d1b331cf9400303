"""The other instances that draw: their health, their models, and which of them has room."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pipeline.facts import Facts, differences, digest_of, merged, without_offers
from serving.generator import Request
from serving.generators.client import BackendError, Client, LoopError, fetch_model

log = logging.getLogger(__name__)

HEALTH_S = 5.0  # seconds between two health checks of an instance
# Health checks in a row without an answer after which the requests of an instance begin again
# elsewhere, and its model no longer counts.
_LOOKS = 2
# Health checks in a row without an answer after which an instance that was added later is removed.
LAST_LOOKS = 24
# Limits of the seconds for which an instance that refused a request is sent nothing.
_LEAST_REST_S, _MOST_REST_S = 0.5, 60.0


@dataclass
class Backend:
    """One other instance.

    Attributes:
        other_requests: number of its requests from elsewhere, at the last health check.
        drawing: number of unfinished pictures of each request that it was sent from here, by the
            request's id; some may wait there for a slot.
        streams: time limit of each open stream of events, by the id of its request.
        resting: whether it is sent no requests for a while, because it refused one.
        silent: unanswered health checks since it last answered or sent an event.
        stays: whether it is kept even if it never answers; others are removed after `LAST_LOOKS`
            unanswered health checks.
        healthy: whether it answers and accepts requests, whatever its model is.
        in_use: the model and the LoRAs of the latest request that it was sent.
        sent_at: `time.monotonic()` of that request.
        facts: the facts about its model from the last health check. None before the first check,
            after a check whose answer could not be used, and after `_LOOKS` unanswered checks.
    """

    url: str
    stays: bool = True
    healthy: bool = True
    other_requests: int = 0
    drawing: dict[str, int] = field(default_factory=dict)
    streams: dict[str, asyncio.Timeout] = field(default_factory=dict)
    resting: bool = False
    silent: int = 0
    in_use: tuple[str, str] = "", ""
    sent_at: float = 0.0
    facts: Facts | None = None

    @property
    def undecided(self) -> bool:
        """Whether it may be used although its model is not known yet."""
        return self.healthy and self.facts is None

    @property
    def pictures(self) -> int:
        """The number of unfinished pictures that it draws for requests from here."""
        return sum(self.drawing.values())

    def draws(self, request: Request, digest: str) -> bool:
        """Return whether it has a free slot and draws a request with what its digest stands for.

        If the request has more pictures than there are free slots, the others wait there.
        """
        if not self.healthy or self.resting or self.facts is None:
            return False
        facts = self.facts.for_known(request.model)
        return (
            self.pictures < self.facts.images_per_request
            and request.size in facts.sizes
            and request.enlarge in ("", *facts.size_names)
            and self.has_all(request, digest)
        )

    def has_all(self, request: Request, digest: str) -> bool:
        """Return whether it has the model and the files that a request's digest stands for."""
        return self.facts is not None and digest_of(request, self.facts) == digest

    def agrees(self, facts: Facts) -> bool:
        """Return whether it is known to draw the same pictures as a model."""
        return self.facts is not None and not differences(self.facts, facts)

    def finish(self, request_id: str, pictures: int | None = None) -> None:
        """Let other pictures have the slots of so many pictures of a request, or of all."""
        num_left = 0 if pictures is None else self.drawing.get(request_id, 0) - pictures
        if num_left > 0:
            self.drawing[request_id] = num_left
        else:
            self.drawing.pop(request_id, None)

    def give_up(self) -> None:
        """Make its requests begin again elsewhere: it may be stopped, or cut off."""
        for timeout in self.streams.values():
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time())


class Backends:
    """The instances, which are watched, and the model that they draw with.

    It is at first the one that the first instance reported. It changes when more than half of the
    instances have another model, or when none has this one any more.

    Args:
        client: asks them for their models.
        urls: their URLs.
        facts: about the model that they draw with at first.
        changed: called after each health check, with the facts before it.

    Attributes:
        facts: about their model, with what all of them offer.
    """

    def __init__(
        self, client: Client, urls: Sequence[str], facts: Facts, changed: Callable[[Facts], object]
    ) -> None:
        self.facts = facts
        self._client = client
        self._changed = changed
        self._all = [Backend(url) for url in urls]
        self._watching: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Watch the instances from now on."""
        for backend in self._all:
            self._watch(backend)

    def close(self) -> None:
        """Watch them no more."""
        for watching in self._watching:
            watching.cancel()

    def add(self, url: str) -> None:
        """Add an instance, which is used until it is silent for long; ignore one already added."""
        if all(backend.url != url for backend in self._all):
            log.info("Found the instance %s", url)
            backend = Backend(url, stays=False, healthy=False)  # until its first check
            self._all.append(backend)
            self._watch(backend)

    # --- which of them is used

    def __iter__(self) -> Iterator[Backend]:
        """Iterate over all instances."""
        return iter(self._all)

    @property
    def usable(self) -> list[Backend]:
        """The instances to which new requests can be sent."""
        return [backend for backend in self._all if self._takes_new(backend)]

    @property
    def slots(self) -> int:
        """The number of pictures that they can draw at a time."""
        usable_backends = self.usable
        slots = sum((backend.facts or self.facts).images_per_request for backend in usable_backends)
        # Instances that get no new requests may still finish pictures; count these too.
        pictures = sum(backend.pictures for backend in self._all if backend not in usable_backends)
        return slots + pictures if slots else 0

    @property
    def slots_in_use(self) -> int:
        """The number of their slots that pictures have."""
        return sum(
            min(backend.pictures, (backend.facts or self.facts).images_per_request)
            for backend in self._all
        )

    def best(self, request: Request, facts: Facts, tried: Sequence[Backend] = ()) -> Backend | None:
        """Return the instance that suits a request with these facts best; None if none is free.

        Instances that were not tried come first, then those that have its model and LoRAs in use,
        then those with most room, and of these the one that was sent nothing for the longest time.
        """

        def rank(backend: Backend) -> tuple[int, bool, int, float]:
            load = backend.pictures + backend.other_requests
            return tried.count(backend), backend.in_use != request.group, load, backend.sent_at

        digest = digest_of(request, facts)
        backends = [backend for backend in self._all if backend.draws(request, digest)]
        return min(backends, key=rank, default=None)

    def reserve(
        self, request: Request, facts: Facts, tried: Sequence[Backend] = ()
    ) -> Backend | None:
        """Reserve the best instance for a request; None if none is free."""
        if backend := self.best(request, facts, tried):
            backend.drawing[request.id] = request.images or 1
            backend.in_use, backend.sent_at = request.group, time.monotonic()
        return backend

    def suits(self, request: Request) -> bool:
        """Return whether a free instance has the model and the LoRAs of a request in use."""
        digest = digest_of(request, self.facts)
        return any(
            backend.in_use == request.group and backend.draws(request, digest)
            for backend in self._all
        )

    def rest(self, backend: Backend, retry_after_s: float | None, over: Callable[[], None]) -> None:
        """Send an instance nothing for the time that it asked for, within limits."""

        def end_rest() -> None:
            backend.resting = False
            over()

        backend.resting = True
        rest_s = min(max(_LEAST_REST_S, retry_after_s or 0.0), _MOST_REST_S)
        asyncio.get_running_loop().call_later(rest_s, end_rest)

    # --- health

    def _takes_new(self, backend: Backend) -> bool:
        return backend.undecided or (backend.healthy and backend.agrees(self.facts))

    def _watch(self, backend: Backend) -> None:
        watching = asyncio.create_task(self._keep_watching(backend))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def _keep_watching(self, backend: Backend) -> None:
        while backend.stays or backend.silent < LAST_LOOKS:
            try:
                await self._refresh(backend)
            except Exception as error:  # the checks must go on
                log.error("%s cannot be checked", backend.url, exc_info=error)
                backend.healthy, backend.facts = False, None
            old_facts = self.facts
            self._follow_most()
            self._changed(old_facts)
            await asyncio.sleep(HEALTH_S)
        log.info("Removed the instance %s", backend.url)
        self._all.remove(backend)

    async def _refresh(self, backend: Backend) -> None:
        try:
            model, load = await fetch_model(self._client, backend.url)
        except (BackendError, LoopError) as error:
            if self._takes_new(backend):
                log.warning("%s is not used: %s", backend.url, error)
            lost = isinstance(error, BackendError) and error.reason == "lost"
            backend.healthy = False
            backend.silent += lost
            if not lost or backend.silent >= _LOOKS:
                backend.facts = None
            if backend.silent >= _LOOKS:
                backend.give_up()
            return
        was_used, difference = self._takes_new(backend), differences(model, self.facts)
        is_news = backend.facts is None or backend.agrees(self.facts)
        backend.healthy, backend.silent, backend.facts = True, 0, model
        backend.other_requests = max(0, load.waiting + load.running - len(backend.streams))
        if difference and is_news:
            log.warning("%s is not used: it draws with %s", backend.url, difference)
        elif not was_used and not difference:
            log.info("%s is used again", backend.url)

    def _follow_most(self) -> None:
        """Take over the model of more than half of the instances, if it is another one.

        If no instance has the current model any more, take over the most frequent one. An instance
        that is silent for the first time counts only for the current model.
        """
        current_model = without_offers(self.facts)
        pairs = [(backend, without_offers(backend.facts)) for backend in self._all if backend.facts]
        counts = Counter(
            model for backend, model in pairs if backend.healthy or model == current_model
        )
        num_undecided = sum(backend.undecided for backend in self._all)
        # A tie goes to a model that draws the same pictures, then to the one that comes first.
        rank = {
            model: (count, not differences(model, current_model)) for model, count in counts.items()
        }
        frequent_model = max(counts, key=lambda model: rank[model], default=current_model)
        is_gone = current_model not in counts and not num_undecided
        if frequent_model != current_model and (
            is_gone or 2 * counts[frequent_model] > counts.total() + num_undecided
        ):
            difference = differences(frequent_model, self.facts) or "with other defaults"
            log.warning("The instances have changed their model: %s", difference)
            self.facts = frequent_model
        # With what all usable instances offer; the same if there are none.
        offers = [backend.facts for backend in self.usable if backend.facts]
        self.facts = merged(self.facts, offers)
