"""Events that name the components which they read and update."""

import asyncio
from typing import Any

import gradio as gr

from ui.wiring import Call, Updates, Wiring


def wired(function: Any, **names: Any) -> tuple[Wiring, Any]:
    """Connect a function to a press of a button; return its event as Gradio has it."""
    with gr.Blocks() as blocks:
        wiring = Wiring(blocks)
        for name in ("one", "other"):
            wiring.add(name, gr.Textbox())
        wiring.add("relay", gr.HTML())
        wiring.add("press", gr.Button())
        wiring.on("press.click one.submit", function, **names)
    [event] = blocks.fns.values()
    return wiring, event


def answer(event: Any, *values: Any) -> Any:
    return asyncio.run(event.fn(gr.Request(), gr.EventData(None, "data"), *values))


def test_a_function_gets_and_returns_values_by_name() -> None:
    calls: list[Call] = []

    def function(call: Call) -> Updates:
        calls.append(call)
        return {"one": "new"}

    wiring, event = wired(function, reads=["other", "one"], updates=["one", "other"])
    assert answer(event, "1", "2") == {wiring["one"]: "new"}
    assert calls[0].values == {"other": "1", "one": "2"}
    assert calls[0].data == "data"
    assert event.js is None  # with "" Gradio's page sends no values


def test_a_value_of_another_type_counts_as_none() -> None:
    calls: list[Call] = []
    _, event = wired(calls.append, reads=["one", "other"])
    answer(event, {"a": 1}, ["text"])
    assert calls[0].values == {"one": None, "other": None}


def test_a_function_that_changes_nothing_leaves_all_as_it_is() -> None:
    _, event = wired(lambda _: {}, updates=["one", "other"])
    assert answer(event) == gr.skip()


def test_the_browser_is_asked_for_what_an_event_tells() -> None:
    _, event = wired(lambda call: {"one": call.told["key"]}, tells=["key"], updates=["one"])
    assert 'tell(["key"])' in event.js
    assert [*answer(event, {"key": "a key"}).values()] == ["a key"]
    assert Call(gr.Request(), {"relay": "anything"}).told == {}


def test_the_browser_alone_handles_an_event_by_name() -> None:
    _, event = wired(None, reads=["one"], updates=["other"], js="({ one }) => ({ other: one })")
    assert event.fn is None
    assert '["one"]' in event.js
    assert '["other"]' in event.js


def test_a_function_that_updates_nothing_is_called() -> None:
    calls: list[Call] = []

    async def function(call: Call) -> None:
        calls.append(call)

    _, event = wired(function)
    assert answer(event) is None
    assert len(calls) == 1


def test_the_relay_is_sent_what_it_receives_and_nothing_else() -> None:
    wiring, event = wired(lambda _: {"relay": {"request": "an id"}}, updates=["relay"])
    assert answer(event) == {wiring["relay"]: gr.update(request="an id")}
