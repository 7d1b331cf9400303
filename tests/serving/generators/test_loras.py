"""LoRAs of a folder in the local generator: loading, and the order of requests that use them."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline import Cancelled, DeviceError
from pipeline.drawing import scheduler
from serving.generator import Done, Error, Request, RequestError
from serving.generators import watched
from serving.generators.local import Folders
from serving.generators.watched import LoadedLoras, LoraFolder
from serving.messages import Code, Message
from serving.metrics import Observer
from serving.requests.lifecycle import RequestLifecycle
from serving.requests.registry import Limits
from tests.fake_pipeline import FakePipeline
from tests.generators import closing, draw, ending, local_generator, request, until
from tests.run_by import run_by

Test = Callable[[RequestLifecycle, FakePipeline], Awaitable[None]]


@pytest.fixture(autouse=True)
def looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.folders.SETTLED_S", 0.0)
    monkeypatch.setattr("serving.folders.RESCAN_S", 0.0)
    monkeypatch.setattr("serving.generators.local.RESCAN_S", 0.001)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "broken"):
        write(tmp_path, name)
    return tmp_path


def write(folder: Path, name: str, size: int = 250) -> None:
    save_file({"x": np.zeros(size, np.float32)}, folder / "new")
    (folder / "new").replace(folder / f"{name}.safetensors")


def run(test: Test, folder: Path, *, held: bool = False) -> None:
    pipe = FakePipeline(held=held)

    async def whole() -> None:
        generator = local_generator(
            pipe.as_pipeline(),
            Limits(),
            Observer(),
            folders=Folders(LoraFolder(folder)),
        )
        await generator.open()
        async with closing(generator, pipe):
            await test(generator, pipe)

    asyncio.run(whole())


def error_of(events: list) -> Message:
    last = ending(events)
    assert isinstance(last, Error)
    return last.message


@run_by(run, "folder")
async def test_a_lora_is_loaded_when_it_is_first_asked_for(
    generator: RequestLifecycle, pipe: FakePipeline
):
    assert [lora.name for lora in generator.facts.loras] == ["a", "b", "broken"]
    assert pipe.loads == []
    for loras in ("a:0.8", "a:0.5,b:1:0.2", ""):
        assert isinstance(ending(await draw(generator, request(loras=loras))), Done)
        assert pipe.calls[-1]["loras"] == loras
    assert pipe.loads == [("load", "a"), ("load", "b")]


@run_by(run, "folder")
async def test_a_prompt_names_loras(generator: RequestLifecycle, pipe: FakePipeline):
    asked = request(prompt="a fox <lora:a:0.5>", loras="b:1", prompt_syntax="a1111")
    assert isinstance(ending(await draw(generator, asked)), Done)
    assert pipe.calls[-1]["loras"] == "a:0.5,b:1"
    assert pipe.calls[-1]["prompt"] == "a fox"
    many = ",".join(f"own{i}:1" for i in range(8))
    with pytest.raises(RequestError) as refused:
        await draw(generator, request(prompt="<lora:a>", loras=many, prompt_syntax="a1111"))
    assert refused.value.message == Message(Code.TOO_MANY_LORAS, {"count": 9, "limit": 8})


def test_a_recipe_loads_its_lora_and_sets_the_rest(folder: Path):
    lora = "sdxl_lightning_4step_lora"
    write(folder, lora)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        assert generator.facts.recipe_names == ("lightning-4",)
        asked = request(
            recipe="lightning-4", num_inference_steps=25, loras="a:0.5", sigma_schedule="karras"
        )
        assert isinstance(ending(await draw(generator, asked)), Done)
        drawn = pipe.calls[-1]
        assert drawn["loras"] == f"a:0.5,{lora}:1"
        assert (drawn["num_inference_steps"], drawn["guidance_scale"]) == (4, 1.0)
        assert (drawn["scheduler"], drawn["timestep_spacing"]) == ("euler", "trailing")
        assert (drawn["recipe"], drawn["sigma_schedule"]) == ("", "default")

    run(test, folder)


def test_a_recipe_that_cannot_be_drawn_is_refused(folder: Path):
    write(folder, "sdxl_lightning_4step_lora")
    many = ",".join(f"{name}:1" for name in "abcdefgh")

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        for asked, code, field in (
            (request(recipe="lcm"), Code.UNKNOWN_CHOICE, "recipe"),
            (request(recipe="lightning-4", loras=many), Code.TOO_MANY_LORAS, "loras"),
        ):
            with pytest.raises(RequestError) as refused:
                await generator.submit(asked)
            assert (refused.value.message.code, refused.value.field) == (code, field)

    run(test, folder)


def test_a_name_that_is_not_there_is_refused(folder: Path):
    (folder / "more").mkdir()
    write(folder / "more", "b")

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        for name, code in (("c", Code.UNKNOWN_LORA), ("b", Code.DOUBLED_LORA)):
            with pytest.raises(RequestError) as refused:
                await generator.submit(request(loras=f"{name}:1"))
            assert refused.value.message.code is code
            assert refused.value.field == "loras"
            assert "LORA_DIR" in str(refused.value)
            assert str(folder) not in str(refused.value)
        assert "b.safetensors, more/b.safetensors" in str(refused.value)

    run(test, folder)


@run_by(run, "folder")
async def test_a_file_that_cannot_be_used_hurts_no_other_request(
    generator: RequestLifecycle, pipe: FakePipeline, caplog: pytest.LogCaptureFixture
):
    for _ in range(2):
        message = error_of(await draw(generator, request(loras="broken:1")))
        assert message == Message(Code.UNUSABLE_LORA, {"value": "broken"})
    assert pipe.loads == [("load", "broken")]  # it is not tried twice
    assert "a secret" in caplog.text
    assert isinstance(ending(await draw(generator, request(loras="a:1"))), Done)


@pytest.mark.parametrize(
    ("error", "tries"), [(KeyError("a secret"), 1), (DeviceError("too little memory"), 2)]
)
@run_by(run, "folder")
async def test_a_file_that_fails_is_tried_again_only_for_want_of_memory(
    generator: RequestLifecycle,
    pipe: FakePipeline,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    tries: int,
):
    def fail(source: Path, name: str) -> str:
        raise error

    pipe.load_lora = fail
    for _ in range(2):
        message = error_of(await draw(generator, request(loras="a:1")))
        assert message == Message(Code.UNUSABLE_LORA, {"value": "a"})
    assert caplog.text.count("The LoRA a cannot be used") == tries


def test_a_file_that_takes_too_long_is_not_loaded_again_until_it_changes(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    pipe, now = FakePipeline(), [0.0]
    load = pipe.load_lora

    def slowly(source: Path, name: str) -> str:
        now[0] += watched.MOST_SECONDS + (1 if name == "a" else -1)
        return load(source, name)

    pipe.load_lora = slowly
    loras = LoadedLoras(pipe.as_pipeline(), LoraFolder(folder), clock=lambda: now[0])
    going_on = threading.Event()
    for _ in range(2):
        with pytest.raises(RequestError) as refused:
            loras.prepare(["a"], going_on)
        assert refused.value.message == Message(Code.UNUSABLE_LORA, {"value": "a"})
        loras.prepare(["b"], going_on)
    assert pipe.loads == [("load", "a"), ("unload", "a"), ("load", "b")]
    assert caplog.text.count("to load it took 61 s; the most is 60 s") == 1
    write(folder, "a", 300)
    with pytest.raises(RequestError):
        loras.prepare(["a"], going_on)
    assert pipe.loads[3:] == [("load", "a"), ("unload", "a")]


def test_no_lora_is_loaded_for_a_cancelled_request(folder: Path):
    pipe, cancelled = FakePipeline(), threading.Event()
    cancelled.set()
    with pytest.raises(Cancelled):
        LoadedLoras(pipe.as_pipeline(), LoraFolder(folder)).prepare(["a"], cancelled)
    assert not pipe.loads


@run_by(run, "folder")
async def test_files_that_are_replaced_or_removed(
    generator: RequestLifecycle, pipe: FakePipeline, folder: Path
):
    await draw(generator, request(loras="a:1"))
    write(folder, "a", 300)
    write(folder, "c")
    await until(lambda: "c" in generator.facts.usable_loras)
    await draw(generator, request(loras="a:1"))
    assert pipe.loads == [("load", "a"), ("unload", "a"), ("load", "a")]
    (folder / "a.safetensors").unlink()
    await until(lambda: "a" not in generator.facts.usable_loras)
    await draw(generator, request())
    assert pipe.loads[-1] == ("unload", "a")


@run_by(run, "folder", held=True)
async def test_a_file_that_is_removed_while_its_request_waits(
    generator: RequestLifecycle, pipe: FakePipeline, folder: Path
):
    await generator.submit(request())
    await until(lambda: pipe.at_rest)
    waiting = request(loras="a:1")
    await generator.submit(waiting)
    (folder / "a.safetensors").unlink()
    pipe.let_all()
    events = [event async for event in generator.events(waiting.id)]
    assert error_of(events) == Message(Code.UNKNOWN_LORA, {"value": "a"})


def test_the_latest_loras_are_kept_within_a_bound(folder: Path, monkeypatch: pytest.MonkeyPatch):
    size = (folder / "a.safetensors").stat().st_size
    write(folder, "c")
    monkeypatch.setattr(watched, "MOST_BYTES", 2 * size)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        for loras in ("a:1", "b:1", "a:1", "c:1"):
            await draw(generator, request(loras=loras))
        assert pipe.loras.keys() == {"a", "c"}
        await draw(generator, request(loras="a:1,b:1,c:1"))  # more than the bound, but asked for
        assert pipe.loras.keys() == {"a", "b", "c"}
        await draw(generator, request())
        assert len(pipe.loras) == 2

    run(test, folder)


# --- the order of requests ---


async def begin(generator: RequestLifecycle, pipe: FakePipeline, *wanted: Request) -> None:
    """Begin the first request, and let the others wait."""
    for each in wanted:
        await generator.submit(each)
        await until(lambda: pipe.at_rest)


async def drawn_in_order(
    generator: RequestLifecycle, pipe: FakePipeline, *wanted: Request
) -> list[str]:
    await begin(generator, pipe, *wanted)
    foretold = [str(wanted[0].prompt), *(str(each.request.prompt) for each in waiting(generator))]
    pipe.let_all()
    for each in wanted:
        assert isinstance([event async for event in generator.events(each.id)][-1], Done)
    drawn = [call["prompt"] for call in pipe.calls]
    assert drawn == foretold
    return drawn


def waiting(generator: RequestLifecycle) -> list:
    """Return the waiting records in the order that their visitors were told."""
    return list(dict.fromkeys(generator._scheduler.in_turn()))


def asked(sender: str, number: int, loras: str) -> Request:
    return request(f"{sender}{number} {loras}", address=sender, visitor=sender, loras=loras)


def test_requests_with_the_loras_in_use_go_first(folder: Path):
    """Whether they name them in `loras` or in their prompts."""
    sender = {"address": "C", "visitor": "C"}
    tagged = request("C1 a:1 <lora:a:1.0>", prompt_syntax="a1111", **sender)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        order = await drawn_in_order(
            generator,
            pipe,
            asked("A", 1, "a:1"),
            asked("B", 1, "b:1"),
            tagged,
            asked("D", 1, "b:1"),
            asked("A", 2, "a:1"),
        )
        assert order == ["A1 a:1", "C1 a:1", "A2 a:1", "B1 b:1", "D1 b:1"]

    run(test, folder, held=True)


def test_nobody_who_waited_long_is_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(scheduler, "PASSED_OVER_S", 0.0)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        senders = [("A", "a:1"), ("B", "b:1"), ("A", "a:1"), ("A", "a:1"), ("B", "b:1")]
        wanted = [asked(sender, i, loras) for i, (sender, loras) in enumerate(senders)]
        order = await drawn_in_order(generator, pipe, *wanted)
        assert order == ["A0 a:1", "B1 b:1", "A2 a:1", "B4 b:1", "A3 a:1"]

    run(test, folder, held=True)


def test_a_stream_of_requests_with_the_loras_in_use_starves_nobody(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """One address always has a request for the LoRAs in use; another one asks for others."""
    monkeypatch.setattr(scheduler, "PASSED_OVER_S", 1000.0)

    async def test(generator: RequestLifecycle, pipe: FakePipeline) -> None:
        await begin(generator, pipe, asked("A", 0, "a:1"), asked("B", 0, "b:1"))
        for number in range(1, 20):
            await generator.submit(asked("A", number, "a:1"))
            for record in generator._scheduler:
                record.accepted_at -= 300  # each drawing takes so long
            before = len(pipe.calls)
            pipe.let_step(4)
            await until(lambda before=before: len(pipe.calls) > before and pipe.at_rest)
            if pipe.calls[-1]["prompt"].startswith("B"):
                break
        assert [call["prompt"][0] for call in pipe.calls] == ["A", "A", "A", "A", "B"]

    run(test, folder, held=True)
