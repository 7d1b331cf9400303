"""The page's components and events by their names.

An event names the components that it reads and those that it may update. Its function gets a `Call`
and returns new values by the same names; a component without one stays as it is.
"""

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import gradio as gr

from ui.relay import RELAY, tell

T = TypeVar("T")
Updates: TypeAlias = Mapping[str, Any]

# Programs can call none of the events, and none waits in Gradio's queue. Gradio's own checks would
# refuse choices that came or went since the page was laid out, in its own words.
_OPTIONS: dict[str, Any] = {
    "show_progress": "hidden",
    "api_visibility": "private",
    "queue": False,
    "preprocess": False,
}
# Types of what a component sends; anything else counts as none.
_TYPES: dict[type, Any] = {
    gr.Textbox: str,
    gr.Dropdown: str,
    gr.Radio: str | int,
    gr.Number: int | float,
    gr.Slider: int | float,
    gr.Checkbox: bool,
}
# Calls a function of the browser with the values by name, and returns its values in their order.
_BY_NAME = """async (...values) => {
  const before = Object.fromEntries(%(reads)s.map((name, i) => [name, values[i]]));
  const after = await (%(js)s)(before) ?? {};
  return %(results)s.map((name) => name in after ? after[name] : %(otherwise)s);
}"""


@dataclass(frozen=True)
class Call:
    """An event on a page.

    Attributes:
        sender: the page's own request.
        values: those of the components that the event reads, by name.
        data: what the event itself tells.
    """

    sender: gr.Request
    values: Mapping[str, Any] = field(default_factory=dict)
    data: Any = None

    @property
    def told(self) -> Mapping[str, Any]:
        """What the browser tells with the event; every value may be anything."""
        told = self.values.get(RELAY)
        return told if isinstance(told, dict) else {}

    @property
    def details(self) -> Mapping[str, Any]:
        """What the event itself tells, by name; every value may be anything."""
        return self.data if isinstance(self.data, dict) else {}


def text_of(value: object) -> str:
    """Return a text that a browser sent, or "" for anything else: it may send any JSON."""
    return value if isinstance(value, str) else ""


class Wiring:
    """The components of a page by name, and its events."""

    def __init__(self, page: gr.Blocks) -> None:
        self.components: dict[str, Any] = {"page": page}

    def add(self, name: str, component: T) -> T:
        """Name a component."""
        self.components[name] = component
        return component

    def __getitem__(self, name: str) -> Any:
        return self.components[name]

    def on(
        self,
        triggers: Any,
        function: Callable[[Call], Any] | None = None,
        *,
        reads: Sequence[str] = (),
        updates: Sequence[str] = (),
        tells: Sequence[str] | None = None,
        js: str = "",
        **options: Any,
    ) -> Any:
        """Connect events to a function, and return Gradio's own event.

        Args:
            triggers: events, such as "prompt.submit generate.click", or an event that this method
                returned, whose end is waited for.
            function: a function or a coroutine function; None if the browser alone handles the
                events.
            reads: names of the components whose values the function gets.
            updates: names of the components that it may update.
            tells: names of `static/relay.js` for what the browser tells with the event, besides
                the relay's own value. None asks the browser nothing: the relay's value, if `reads`
                names it, is then the last that Gradio knew, which may be a moment old.
            js: a JavaScript function that gets an object with the values of `reads`. It returns
                new values of `updates`, or of `reads` if there is a `function`.
            options: those of Gradio's events.
        """
        if tells is not None:
            reads, js = (RELAY, *reads), tell(tells)
        return self._trigger(triggers)(
            function and self._adapted(function, reads, updates),
            [self[name] for name in reads],
            [self[name] for name in updates],
            js=_script(js, reads, None if function else updates) if js else None,
            **_OPTIONS | options,
        )

    def _trigger(self, triggers: Any) -> Callable[..., Any]:
        """Return the function of Gradio that connects a function to these events."""
        if not isinstance(triggers, str):
            return triggers.then
        pairs = (trigger.split(".") for trigger in triggers.split())
        events = [getattr(self[name], event) for name, event in pairs]
        return partial(gr.on, events) if len(events) > 1 else events[0]

    def _adapted(
        self, function: Callable[[Call], Any], reads: Sequence[str], updates: Sequence[str]
    ) -> Callable[..., Any]:
        """Return the function as Gradio calls it, with values in their order."""

        async def adapted(sender: gr.Request, event: gr.EventData, *values: Any) -> Any:
            pairs = zip(reads, values, strict=True)
            sent_values = {name: self._sent(name, value) for name, value in pairs}
            call = Call(sender, sent_values, event._data)
            is_async = inspect.iscoroutinefunction(function)
            answer = await (function(call) if is_async else asyncio.to_thread(function, call))
            return self._by_component(answer) if updates else None

        adapted.__name__ = getattr(function, "func", function).__name__  # a partial has none
        return adapted

    def _sent(self, name: str, value: Any) -> Any:
        types = _TYPES.get(type(self[name]), object)
        return value if isinstance(value, types) else None

    def _by_component(self, updates: Updates | None) -> Any:
        if not updates:
            return gr.skip()
        answer = {
            self.components[name]: gr.update(**value) if name == RELAY else value
            for name, value in updates.items()
        }
        if "status" in updates:
            # The browser's scripts hear of no value that equals the one before.
            answer[self["status"]] = {**updates["status"], "told": time.monotonic_ns()}
        return answer


def _script(js: str, reads: Sequence[str], updates: Sequence[str] | None) -> str:
    """Return a function of the browser as Gradio calls it, with values in their order."""
    is_last = updates is not None
    return _BY_NAME % {
        "js": js,
        "reads": json.dumps([*reads]),
        "results": json.dumps([*(updates if is_last else reads)]),
        "otherwise": '{ __type__: "update" }' if is_last else "before[name]",
    }
