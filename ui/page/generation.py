"""Requests for pictures, from a press of Generate to their end, for the page and for programs."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, NamedTuple

import gradio as gr
from gradio.data_classes import FileData

from pipeline.request import VALUES
from pipeline.setting_kinds import add_variation, random_seed
from serving.generator import (
    Done,
    Error,
    ErrorKind,
    Event,
    Generator,
    Image,
    Pause,
    Preview,
    Request,
    RequestError,
    Step,
    new_id,
)
from serving.http import schemas
from serving.messages import Code, Message
from serving.requests import inputs
from serving.requests.inputs import Input
from serving.requests.shares import first_to_go
from ui import i18n, start, status
from ui.form import requests, settings
from ui.form.fields import ALL, Fields, Visitor, element_of, size_of
from ui.page import history
from ui.pictures import picture_panel
from ui.pictures import saved as saved_pictures
from ui.pictures.saved import Picture, Unfinished
from ui.samples.model_kind import Kind
from ui.samples.styles import styles_for
from ui.start import Start
from ui.wiring import Call, Updates, text_of

MOST_PRESSES = 10_000  # whose answers are remembered
SUBTLE, STRONG = 0.2, 0.6  # strengths of variations

_ID = re.compile(schemas.ID)
_BROKEN = Message(Code.BROKEN)

# The components that a request updates.
UPDATED = ("status", "gallery", "pictures", "panel", "texts", "seed", "relay")

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """The values of the fields that a visitor asks with, and the picture to start from.

    The picture is as `start.take` reads it.
    """

    fields: Fields
    start: Any = None


@dataclass
class Run:
    """A request as a page knows it.

    Attributes:
        id: the request's id.
        fields: the values of the page's fields that ask for it, if they are known.
        began: the `time.monotonic` at which the visitor asked; None to show no duration, as the
            page has lost sight of the request meanwhile.
        entry: the request's entry in the history.
        start: the browser's id of the picture that the request starts from, "" for none.
        gone: the indices of the pictures that the visitor deleted, as texts.
    """

    id: str
    fields: Fields | None = None
    began: float | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    start: str = ""
    gone: Collection[str] = ()

    def told(self, **entry: Any) -> dict[str, Any]:
        """Return what the browser is told of the request, with these parts of its entry."""
        new_entry = self.entry | entry
        return {"request": self.id} | ({"entry": new_entry} if new_entry else {})

    def left(self, items: Iterable[Any]) -> list[Any]:
        """Return the pictures of the request that were not deleted."""
        return [item for item in items if str(item.index) not in self.gone]


def draws(
    ask: Callable[["Drawing", Call], Asked | None],
) -> Callable[["Drawing", Call], Coroutine[Any, Any, Updates]]:
    """Make a handler, which draws what its visitor asks for, of a method that says what that is."""

    @wraps(ask)
    async def draw(drawing: "Drawing", call: Call) -> Updates:
        return await drawing.draw(call, partial(ask, drawing, call))

    return draw


class Drawing:
    """The handlers of the page: they send requests to a generator and return updates of the page.

    The page follows a request by `ui.page.following`, and asks for what it has come to at its end.
    """

    def __init__(self, generator: Generator, kind: Kind) -> None:
        self._generator = generator
        self._styles = styles_for(kind)
        # The answers to presses by the ids of their requests, oldest first.
        self._answers: dict[str, asyncio.Task[tuple[Updates, Run | None]]] = {}
        self._addresses: dict[str, str] = {}  # that they were sent from

    @draws
    def for_page(self, call: Call) -> Asked:
        """Draw what the fields ask for."""
        return Asked(Fields.sent(call.values), call.told.get("start"))

    @draws
    def waited(self, call: Call) -> Asked:
        """Draw a prompt of its own with the settings of the fields.

        It waited for the end of a drawing; or it is that of the live picture, whose seed is kept.
        """
        fields = Fields.sent(call.values)._replace(prompt=call.details.get("prompt"))
        if "seed" in call.details:
            fields = fields._replace(seed=call.details["seed"], randomise=False)
        return Asked(fields, call.told.get("start"))

    @draws
    def new_seed(self, call: Call) -> Asked:
        """Draw the settings of a picture again, with a new seed; the page's fields stay."""
        picture = picture_panel.chosen(call)
        names = ("seed", "variation_seed", "variation_strength", "variation_of")
        picture_settings = replace(picture.settings, **dict.fromkeys(names))
        fields, _ = replace(picture, settings=picture_settings).fields(self._generator.facts)
        return Asked(fields, call.told.get("start"))

    @draws
    def vary(self, call: Call) -> Asked:
        """Draw variations of a picture; the page's fields stay."""
        picture = picture_panel.chosen(call)
        fields, _ = settings.as_fields(picture.settings, self._generator.facts, picture.typed)
        earlier_variations = fields.variation_of
        if fields.variation_strength > 0:
            earlier_variations = add_variation(
                earlier_variations, fields.variation_seed, fields.variation_strength
            )
        varied = fields._replace(
            variation_of=earlier_variations,
            variation_strength=STRONG if call.details.get("how") == "strong" else SUBTLE,
            variation_seed=random_seed(),
        )
        return Asked(varied, call.told.get("start"))

    @draws
    def larger(self, call: Call) -> Asked | None:
        """Draw a picture again, from itself, in the next larger size."""
        model, picture = self._generator.facts, picture_panel.chosen(call)
        steps = picture.settings.num_inference_steps or model.num_inference_steps
        start_picture = start.to_enlarge(picture.path, steps)
        size = picture.larger_size(model)
        if size is None:
            return None
        fields, _ = settings.as_fields(picture.settings, model, picture.typed)
        enlarged = fields._replace(
            size=size_of(size, model),
            images=1,
            strength=None,
            controls="",  # the finished picture is no depth map
            enlarge="",
            randomise=False,
        )
        return Asked(enlarged, start_picture)

    @draws
    def finish(self, call: Call) -> Asked | None:
        """Draw the request of an unfinished picture again, with all its pictures."""
        unfinished = picture_panel.chosen(call).unfinished
        return unfinished and Asked(unfinished.asked, call.told.get("start"))

    async def draw(self, call: Call, ask: Callable[[], Asked | None]) -> Updates:
        """Send a request for what `ask` returns; an error becomes the status line.

        The browser chooses the request's id. If no answer reaches the browser, it asks again with
        the same id, and gets the answer to the first time.
        """
        press_id = text_of(call.told.get("press"))
        request_id = press_id if _ID.fullmatch(press_id) else new_id()
        answer = self._answers.get(request_id)
        if answer is None:
            answer = asyncio.create_task(self._answered(call, request_id, ask))
            self._answers[request_id] = answer
            self._addresses[request_id] = Visitor.behind(call.sender).address
            if len(self._answers) > MOST_PRESSES:
                entries = ((press, address, 1) for press, address in self._addresses.items())
                dropped_id = first_to_go(entries)
                del self._answers[dropped_id], self._addresses[dropped_id]
        updates, _ = await asyncio.shield(answer)
        return updates

    async def _answered(
        self, call: Call, request_id: str, ask: Callable[[], Asked | None]
    ) -> tuple[Updates, Run | None]:
        began, fields = time.monotonic(), None
        try:
            asked = await asyncio.to_thread(ask)
            if asked is None:
                return {}, None
            fields = asked.fields
            run = await self._submitted(call, request_id, asked)
            run.began = began
            gallery = gr.Gallery(selected_index=None)
            seed = run.fields and run.fields.seed
            return {**_starting(run), "gallery": gallery, "seed": seed}, run
        except RequestError as error:
            return _refused(error, fields), None
        except Exception as error:
            log.error("A request could not be sent", exc_info=error)
            return {"status": status.error(i18n.translate(_BROKEN))}, None

    async def _submitted(self, call: Call, request_id: str, asked: Asked) -> Run:
        """Submit a request.

        Raises:
            RequestError: if it is refused.
        """
        model = self._generator.facts
        start_picture = await start.take(asked.start)
        fields = _fitting(asked.fields, start_picture)
        request = self._request(
            fields._replace(seed=None) if fields.randomise else fields,
            Visitor.behind(call.sender),
            blank=start_picture is not None,
        )
        request = replace(request, id=request_id)
        if start_picture is not None:
            request = await start_picture.added(request, model)
        await self._generator.submit(request)
        numbers = {
            setting.link: value
            for setting in VALUES
            if (value := getattr(request, setting.name)) is not None
        }
        # LoRAs that the prompt names are not chosen as well.
        numbers |= {"loras": fields.loras, "size": size_of(request.size, model)}
        fields = fields._replace(**numbers, randomise=False)
        return Run(
            request.id,
            fields,
            entry=history.asked(request.id, fields),
            start="" if start_picture is None else start_picture.id,
        )

    async def chosen(self, call: Call) -> Updates:
        """Show the pictures of the entry of the history that was chosen, if they are kept."""
        request_id = text_of(call.details.get("id"))
        return await self._shown(call, request_id, in_sight=False) or {
            "relay": {"entry": {"id": request_id, "forgotten": True}}
        }

    async def again(self, call: Call) -> Updates:
        """Show the request that this page followed before, and let the page follow it again."""
        request_id = text_of(call.told.get("request"))
        return await self._shown(call, request_id, in_sight=False) or {}

    async def ended(self, call: Call) -> Updates:
        """Show what a request has come to that the page followed to its end."""
        request_id = text_of(call.details.get("id"))
        in_sight = not call.details.get("broken")
        updates = await self._shown(call, request_id, in_sight=in_sight)
        return updates or {"status": status.note(i18n.LOST) | {"ends": request_id}}

    async def _shown(self, call: Call, request_id: str, *, in_sight: bool) -> Updates | None:
        """Return updates with what a request has come to; None if the request is forgotten.

        The browser tells which of its pictures were deleted.
        """
        try:
            # It may have been stopped because its visitor was away for too long.
            await self._generator.take_up(request_id)
            events = await self._so_far(request_id)
            run = self._run_of(request_id)
            if not in_sight:
                run.began = None
                run.entry = {"id": run.id}  # the browser has the rest, or it was cleared
            run = replace(run, gone=text_of(call.details.get("gone")).split(","))
            # A thread, so that a slow disk does not hold up others.
            return await asyncio.to_thread(self._come_to, run, events, embeds(call))
        except RequestError as error:
            if error.kind is ErrorKind.UNKNOWN:
                return None
            return {"status": status.error(i18n.translate(error.message)) | {"ends": request_id}}
        except Exception as error:
            log.error("A request could not be shown", exc_info=error)
            return {"status": status.error(i18n.translate(_BROKEN))}

    async def _so_far(self, request_id: str) -> list[Event]:
        """Return the events of a request that can be had without waiting."""
        events: list[Event] = []
        async with aclosing(self._generator.events(request_id, 0)) as followed:
            async for event in followed:
                if isinstance(event, Pause):
                    break
                events.append(event)
        return events

    def _run_of(self, request_id: str) -> Run:
        answer = self._answers.get(request_id)
        _, run = answer.result() if answer and answer.done() else ({}, None)
        return run or Run(request_id)

    def _come_to(self, run: Run, events: Sequence[Event], embed: bool) -> Updates:
        match events[-1] if events else None:
            case Done() as done:
                return self._done(run, events, done, embed)
            case Error(kind, message):
                text, updates = i18n.translate(message), self._unfinished(run, events)
                if kind not in (ErrorKind.CANCELLED, ErrorKind.ABANDONED):
                    updates = {**updates, "status": status.error(text)}
                line = updates.get("status", status.note(text))
                return {**updates, "status": line | {"ends": run.id}, "relay": run.told()}
            case _:
                return _starting(run)

    async def stop(self, call: Call) -> None:
        """Stop a request, and tell everybody who follows it."""
        with suppress(RequestError):
            self._generator.cancel(text_of(call.told.get("request")))

    @requests.for_programs
    async def for_programs(
        self, sender: gr.Request, **values: Any
    ) -> tuple[list[dict[str, Any]], list[int], str]:
        """Draw pictures from a description.

        Args:
            prompt: what the pictures should show; at most 2000 characters.
            negative_prompt: what they should not show.
            style: the name of one of the page's styles, or "(none)".
            {numbers}
            size: width and height such as "1024x1024", one of the sizes that the page offers; the
                page's own if left out.
            image: the file of a picture to start from, if any.
            mask: the file of the part of it to redraw, in white and of the same size, if any.

        Returns:
            The PNG files with their settings inside; the seed of each; and the part of the
            prompt that was too long for the model to read, or "".
        """
        try:
            model = self._generator.facts
            image, mask = [
                await start.content(name, values.pop(name, None)) for name in requests.FILES
            ]
            request = requests.to_request(
                model,
                self._styles,
                Fields.for_model(model)._replace(**values),
                Visitor.behind(sender),
                blank=image is not None,
            )
            if request.recipe and "steps" not in values:
                request = replace(request, num_inference_steps=None)
            request = await inputs.shared().added(request, Input(image, mask), model)
            await self._generator.submit(request)
            images, done = await self._finished(request.id)
            pictures = await asyncio.to_thread(
                saved_pictures.save, images, [self._styles[values["style"]]], embed=True
            )
        except RequestError as error:
            raise gr.Error(i18n.translate(error.message), print_exception=False) from None
        except Exception as error:
            log.error("A request could not be answered", exc_info=error)
            raise gr.Error(i18n.translate(_BROKEN), print_exception=False) from None
        files = [
            FileData(path=str(picture.path), orig_name=picture.path.name).model_dump()
            for picture in pictures
        ]
        parts = dict.fromkeys(part for image in images for part in image.ignored)
        ignored = [*(part for part in parts if part not in done.truncated), done.truncated]
        return files, [image.seed for image in images], " … ".join(filter(None, ignored))

    def _request(self, fields: Fields, visitor: Visitor, *, blank: bool) -> Request:
        request = requests.to_request(
            self._generator.facts, self._styles, fields, visitor, tags=True, blank=blank
        )
        return replace(
            request,
            # The page hides the field beside a recipe, which has its own.
            num_inference_steps=None if request.recipe else request.num_inference_steps,
            keep=True,
            previews=True,
            unblurred=True,
        )

    def _done(self, run: Run, events: Sequence[Event], done: Done, embed: bool) -> Updates:
        """Save the finished pictures, and return the updates that show them."""
        fields, styles = run.fields, self._styles
        pictures = saved_pictures.save(
            run.left(event for event in events if isinstance(event, Image)),
            styles.values() if fields is None else [styles[fields.style]],
            embed,
            ALL if fields is None else fields.images,
            run.start,
        )
        seconds = None if run.began is None else time.monotonic() - run.began
        count = i18n.text("pictures", count=len(pictures))
        text = i18n.text("finished", pictures=count, seconds=seconds)
        line = status.drawn(text, i18n.END_LEFT_OUT if done.truncated else "", run.id)
        entry = run.told(id=run.id, drawn=[picture.key for picture in pictures])
        return {"status": line, "relay": entry, **self._in_gallery(pictures)}

    def _in_gallery(self, pictures: list[Picture]) -> dict[str, Any]:
        """Return the updates that show pictures in the gallery, and the panel of an opened one."""
        shown = picture_panel.in_gallery(pictures, self._generator.facts)
        return shown | {"panel": gr.Column(visible=True)}

    def _unfinished(self, run: Run, events: Sequence[Event]) -> Updates:
        """Return the latest previews for the gallery; without any, it keeps the older pictures."""
        newest_first = events[::-1]
        preview = next((event for event in newest_first if isinstance(event, Preview)), None)
        step = next((event for event in newest_first if isinstance(event, Step)), Step(0, 0))
        if preview is None or not preview.jpegs:
            return {}
        paths = saved_pictures.save_previews(preview.jpegs)
        if run.fields is None:  # they cannot be finished
            caption = i18n.text("unfinished", done=step.done, total=step.total)
            return self._in_gallery([]) | {"gallery": [(str(path), caption) for path in paths]}
        request = self._request(run.fields, Visitor("", ""), blank=True)
        unfinished = Unfinished(step.done, step.total, run.fields, run.start)
        pictures = saved_pictures.unfinished(paths, request, self._generator.facts, unfinished)
        text = i18n.text("stopped_at", done=step.done, total=step.total)
        return self._in_gallery(run.left(pictures)) | {"status": status.stopped(text)}

    async def _finished(self, request_id: str) -> tuple[list[Image], Done]:
        progress = gr.Progress()
        images: list[Image] = []
        async with aclosing(self._generator.events(request_id)) as events:
            async for event in events:
                if isinstance(event, Image):
                    images.append(event)
                elif isinstance(event, Step):
                    progress((event.done, event.total), unit="steps")
                elif isinstance(event, Done):
                    return images, event
                elif isinstance(event, Error):
                    raise RequestError(event.message, event.kind)
        raise RuntimeError("the request has no ending")


def embeds(call: Call) -> bool:
    """Return whether the visitor wants settings inside the files of pictures."""
    return not call.told.get("bare")


def _fitting(fields: Fields, start_picture: Start | None) -> Fields:
    """Return the fields without the settings of a picture that is not there."""
    if start_picture is None:
        return fields._replace(strength=None, padding=None, controls="")
    strength = start_picture.strength if fields.strength is None else fields.strength
    padding = None if start_picture.mask is None else fields.padding
    return fields._replace(strength=strength, padding=padding)


def _starting(run: Run) -> Updates:
    """Return the updates that make the page follow a request."""
    return {"status": status.busy(i18n.text("starting", attempt=1), run.id), "relay": run.told()}


def _refused(error: RequestError, fields: Fields | None = None) -> Updates:
    """Return the updates with the message of a refusal, which names the field that is wrong."""
    in_prompt = error.field == "loras" and fields and requests.has_tags(fields.prompt)
    element = element_of("prompt" if in_prompt else error.field)
    return {"status": status.error(i18n.translate(error.message), element)}
