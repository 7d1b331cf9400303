"""Prometheus metrics, and one line of log for each request."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from pipeline.facts import Facts
from serving.generator import Error, Load, Request, RequestError

if TYPE_CHECKING:
    from serving.requests.record import Record

log = logging.getLogger(__name__)

# Begins the visitor of a request with an API key; the key's name follows. No session has a space.
KEY = "key "
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Observer:
    """Metrics and log of how requests end. Prompts are logged only with `log_prompts`."""

    def __init__(self, *, log_prompts: bool = False) -> None:
        self.registry = CollectorRegistry()
        self._log_prompts = log_prompts
        seconds = partial(Histogram, registry=self.registry, buckets=_SECONDS)
        count = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self._wait = seconds(
            "sdxl_queue_wait_seconds",
            "Time from admission until drawing begins or the request ends.",
        )
        self._stages = seconds(
            "sdxl_stage_duration_seconds",
            "Time of denoising, and of everything after it.",
            ["stage"],
        )
        self._durations = seconds(
            "sdxl_request_duration_seconds", "Time from admission to the end.", ["outcome"]
        )
        self._requests = count("sdxl_requests", "Requests, including refused ones.", ["outcome"])
        self._live = count("sdxl_live", "Live pictures, drawn while visitors type.", ["outcome"])
        self._images = count("sdxl_images", "Pictures drawn.")
        self._key_requests = count(
            "sdxl_key_requests",
            "Requests with an API key, without refused ones.",
            ["key"],
        )
        self._key_images = count("sdxl_key_images", "Pictures drawn for an API key.", ["key"])
        self._retries = count(
            "sdxl_retries", "Requests begun again on another instance.", ["reason"]
        )
        self._depth = gauge("sdxl_queue_depth", "Requests that wait.")
        self._inflight = gauge("sdxl_inflight", "Requests that are being drawn.")
        self._slots = gauge("sdxl_slots", "Pictures that can be drawn at the same time.")
        self._slots_in_use = gauge("sdxl_slots_in_use", "Slots that pictures have.")
        self._steps = count("sdxl_steps", "Evaluations of the network for all pictures in slots.")
        self._picture_steps = count(
            "sdxl_picture_steps", "Evaluations of the network, counted for each picture."
        )
        self._compile = gauge(
            "sdxl_compile_seconds", "Time to load or compile the executables at startup.", ["cache"]
        )
        self._build = gauge(
            "sdxl_build_info", "Always 1.", ["model", "revision", "device", "devices"]
        )

    def watch(self, facts: Facts, load: Callable[[], Load]) -> None:
        """Export the model that draws, in place of an earlier one, and its current load."""
        self._build.clear()
        labels = facts.name, facts.revision or "", facts.device, str(facts.num_devices)
        self._build.labels(*labels).set(1)
        self._depth.set_function(lambda: load().waiting)
        self._inflight.set_function(lambda: load().running)
        self._slots.set_function(lambda: load().slots)
        self._slots_in_use.set_function(lambda: load().slots_in_use)

    def compiled(self, seconds: Mapping[str, float]) -> None:
        """Record the seconds that the executables took, by "hit" or "miss" of the cache."""
        for cache, each in seconds.items():
            self._compile.labels(cache).set(each)

    def evaluated(self, steps: int, picture_steps: int) -> None:
        """Count evaluations of the network, and the pictures in them. Any thread may call this."""
        self._steps.inc(steps)
        self._picture_steps.inc(picture_steps)

    def refused(self, request: Request, error: RequestError) -> None:
        """Count and log a request that was refused; a live one is only counted."""
        if request.live:
            self._live.labels(error.kind).inc()
            return
        self._requests.labels(error.kind).inc()
        self._log(request, str(error.kind))

    def retried(self, reason: str) -> None:
        """Count a request that begins again on another instance; `reason` is a metric label."""
        self._retries.labels(reason).inc()

    def ended(self, record: "Record") -> None:
        """Count and log a request that has ended; a live one is only counted."""
        assert record.ended_at is not None
        outcome = str(record.ending.kind) if isinstance(record.ending, Error) else "done"
        if record.request.live:
            self._live.labels(outcome).inc()
            return
        total_s = record.ended_at - record.accepted_at
        waited_s = (record.started_at or record.ended_at) - record.accepted_at
        stages = {"wait": waited_s, "total": total_s}
        self._requests.labels(outcome).inc()
        self._durations.labels(outcome).observe(total_s)
        self._wait.observe(waited_s)
        if record.started_at and record.drawn_at:
            stages["denoise"] = record.drawn_at - record.started_at
            stages["finish"] = record.ended_at - record.drawn_at
            for stage in ("denoise", "finish"):
                self._stages.labels(stage).observe(stages[stage])
        self._images.inc(record.images)
        if record.request.visitor.startswith(KEY):
            key = record.request.visitor.removeprefix(KEY)
            self._key_requests.labels(key).inc()
            self._key_images.labels(key).inc(record.images)
        milliseconds = {f"{name}_ms": round(1000 * s) for name, s in stages.items()}
        self._log(
            record.request,
            outcome,
            images=record.images,
            attempts=record.attempts,
            **milliseconds,
        )

    def _log(self, request: Request, outcome: str, **others: int) -> None:
        second = request.enlarge and request.enlarge_strength is None
        undecided = request.num_inference_steps is None or second
        fields: dict[str, object] = {
            "request_id": request.id,
            "outcome": outcome,
            "steps": None if undecided else request.drawn_steps,
            **others,
        }
        if self._log_prompts:
            fields["prompt"] = request.prompt
            fields["negative_prompt"] = request.negative_prompt
        log.info("request", extra={"fields": fields})
