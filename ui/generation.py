"""Requests for pictures, from a press of Generate to their end, for the page and for programs."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

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
    Preview,
    Queued,
    Request,
    RequestError,
    Started,
    Step,
)
from serving.messages import Code, Message
from serving.requests import inputs
from serving.requests.eta import TimeLeft
from serving.requests.inputs import Input
from ui import form, history, i18n, link, start, status
from ui.form import Fields, Visitor
from ui.gradio_compat.context import current_event
from ui.model_kind import Kind
from ui.pictures import picture_panel
from ui.pictures import saved as saved_pictures
from ui.pictures.saved import Picture, Unfinished
from ui.start import Start
from ui.styles import styles_for
from ui.wiring import Call, Updates

# Shortest time between two updates of the bar. With more, the browser would lag behind a stop.
BAR_SECONDS = 0.1

# Gradio notices a visitor's departure only when it sends: send an empty update after such a pause.
PAUSE_SECONDS = 5.0

# Events whose request is remembered.
MOST_EVENTS = 10_000

_BROKEN = Message(Code.BROKEN)
_NO_STEP = Step(0, 0)

# The components that a request updates.
UPDATED = (
    *("strip", "previews", "gallery", "pictures", "panel", "texts"),
    *("seed", "relay", "generate", "stop"),
)

log = logging.getLogger(__name__)


class Asked(NamedTuple):
    """What a visitor asks for: the values of the fields, and the picture to start from.

    The picture is as `start.take` reads it.
    """

    fields: Fields
    start: Any = None


@dataclass
class Run:
    """A request as a page follows it, from its submission to its end.

    Attributes:
        id: the request's id.
        embed: whether the pictures' files have settings inside.
        fields: the values of the page's fields that ask for it, if they are known.
        began: the `time.monotonic` at which the visitor asked; None to show no duration.
        entry: the request's entry in the history. It is sent again at the end, because Gradio
            drops a value that is replaced before the browser has rendered it.
        start: the browser's id of the picture that the request starts from, "" for none.
        images: the finished pictures.
        previews: the latest previews.
        step: the latest step.
        time_left: estimates the time until the end.
        moved: the `time.monotonic` at which the bar moved last.
    """

    id: str
    embed: bool
    fields: Fields | None = None
    began: float | None = None
    entry: dict[str, Any] = field(default_factory=dict)
    start: str = ""
    images: list[Image] = field(default_factory=list)
    previews: Sequence[bytes] = ()
    step: Step = _NO_STEP
    time_left: TimeLeft = field(default_factory=TimeLeft)
    moved: float = -math.inf  # the first step is shown at once

    def told(self, **entry: Any) -> dict[str, Any]:
        """Return what the browser is told of the request, with these parts of its entry."""
        new_entry = self.entry | entry
        return {"request": self.id} | ({"entry": new_entry} if new_entry else {})


def draws(
    ask: Callable[["Drawing", Call], Asked | None],
) -> Callable[["Drawing", Call], AsyncGenerator[Updates]]:
    """Make a handler, which draws what its visitor asks for, of a method that says what that is."""

    @wraps(ask)
    def draw(drawing: "Drawing", call: Call) -> AsyncGenerator[Updates]:
        return drawing.draw(call, partial(ask, drawing, call))

    return draw


class Drawing:
    """The handlers of the page: they send requests to a generator and yield updates of the page."""

    def __init__(self, generator: Generator, kind: Kind) -> None:
        self._generator = generator
        self._styles = styles_for(kind)
        self._requests: dict[str, str] = {}  # the id that each event follows, oldest first

    @draws
    def for_page(self, call: Call) -> Asked:
        """Draw what the fields ask for."""
        return Asked(Fields.sent(call.values), call.told.get("start"))

    @draws
    def waited(self, call: Call) -> Asked:
        """Draw the prompt that waited for the end of a drawing, with the settings of the fields."""
        fields = Fields.sent(call.values)._replace(prompt=call.data)
        return Asked(fields, call.told.get("start"))

    @draws
    def variations(self, call: Call) -> Asked:
        """Draw variations of the opened picture; the page's fields do not change."""
        picture = picture_panel.opened(call)
        fields, _ = form.as_fields(picture.settings, self._generator.facts, picture.typed)
        earlier_variations = fields.variation_of
        if fields.variation_strength > 0:
            earlier_variations = add_variation(
                earlier_variations, fields.variation_seed, fields.variation_strength
            )
        varied = fields._replace(
            variation_of=earlier_variations,
            variation_strength=call.values["picked-strength"],
            variation_seed=random_seed(),
        )
        return Asked(varied, call.told.get("start"))

    @draws
    def larger(self, call: Call) -> Asked | None:
        """Draw the opened picture again, from itself, in the next larger size."""
        model, picture = self._generator.facts, picture_panel.opened(call)
        steps = picture.settings.num_inference_steps or model.num_inference_steps
        start_picture = start.to_enlarge(picture.path, steps)
        size = picture.larger_size(model)
        if size is None:
            return None
        fields, _ = form.as_fields(picture.settings, model, picture.typed)
        enlarged = fields._replace(
            size=form.size_of(size, model), images=1, strength=None, enlarge="", randomise=False
        )
        return Asked(enlarged, start_picture)

    @draws
    def finish(self, call: Call) -> Asked | None:
        """Draw the request of the opened unfinished picture again, with all its pictures."""
        unfinished = picture_panel.opened(call).unfinished
        return unfinished and Asked(unfinished.asked, call.told.get("start"))

    async def draw(self, call: Call, ask: Callable[[], Asked | None]) -> AsyncGenerator[Updates]:
        """Draw what `ask` returns, and yield updates; an error becomes a message in the strip."""
        began, fields = time.monotonic(), None
        try:
            asked = await asyncio.to_thread(ask)
            if asked is None:
                # If a handler yields nothing, Gradio clears all components that it could update.
                yield {}
                return
            fields = asked.fields
            run = await self._submitted(call, asked)
            run.began = began
            yield _running(
                status.busy(i18n.text("starting", attempt=1)),
                gallery=gr.Gallery(selected_index=None),
                seed=run.fields and run.fields.seed,
                relay=run.told(),
            )
            async with aclosing(self._follow(run)) as all_updates:
                async for updates in all_updates:
                    yield updates
        except RequestError as error:
            yield _refused(error, fields)
        except Exception as error:
            log.error("A request could not be shown", exc_info=error)
            yield _ended(status.error(i18n.translate(_BROKEN)))

    async def _submitted(self, call: Call, asked: Asked) -> Run:
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
        if start_picture is not None:
            request = await start_picture.added(request, model)
        await self._generator.submit(request)
        self._note(request.id)
        numbers = {
            setting.link: value
            for setting in VALUES
            if (value := getattr(request, setting.name)) is not None
        }
        # LoRAs that the prompt names are not chosen as well.
        numbers |= {"loras": fields.loras, "size": form.size_of(request.size, model)}
        fields = fields._replace(**numbers, randomise=False)
        return Run(
            request.id,
            embeds(call),
            fields,
            entry=history.asked(request.id, fields),
            start="" if start_picture is None else start_picture.id,
        )

    async def chosen(self, call: Call) -> AsyncGenerator[Updates]:
        """Restore the settings of the entry of the history that was chosen.

        If its pictures are still kept, they are shown again.
        """
        updates, request_id, query = history.restored(call, self._generator.facts, self._styles)
        yield updates
        async with aclosing(self._again(call, request_id, query)) as all_updates:
            async for updates in all_updates:
                yield updates

    async def again(self, call: Call) -> AsyncGenerator[Updates]:
        """Show the request that this page followed before, and follow it again."""
        yield {}
        request_id, query = text_of(call.told.get("request")), text_of(call.told.get("query"))
        async with aclosing(self._again(call, request_id, query)) as all_updates:
            async for updates in all_updates:
                yield updates

    async def _again(self, call: Call, request_id: str, query: str) -> AsyncGenerator[Updates]:
        if request_id:
            with suppress(RequestError):  # the request is forgotten: no error for the visitor
                async with aclosing(self._found(call, request_id, query)) as all_updates:
                    async for updates in all_updates:
                        yield updates

    async def resume(self, call: Call) -> AsyncGenerator[Updates]:
        """Follow the request again that the page followed when the connection broke.

        If there is none, and the visitor was waiting for one, the strip says so. The page may not
        know of the request whose event broke off. It then still has the id of an older request,
        which must not be shown in its place.
        """
        yield {}
        data = call.data if isinstance(call.data, dict) else {}
        is_visitors = data.get("visitors") is not False
        known_id, query = text_of(call.told.get("request")), text_of(call.told.get("query"))
        followed_id = self._requests.get(text_of(data.get("event")), "")
        if not followed_id and not is_visitors:
            followed_id = known_id
            if not followed_id:
                return
        try:
            # The query is that of the request that the page knows.
            found = self._found(call, followed_id, query if followed_id == known_id else "")
            async with aclosing(found) as all_updates:
                async for updates in all_updates:
                    yield updates
        except RequestError:
            yield _ended(status.note(i18n.LOST))

    async def stop(self, call: Call) -> None:
        """Stop a request, and tell everybody who follows it."""
        with suppress(RequestError):
            self._generator.cancel(text_of(call.told.get("request")))

    @form.for_programs
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
            image, mask = [await start.content(name, values.pop(name, None)) for name in form.FILES]
            request = form.to_request(
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
        return files, [image.seed for image in images], done.truncated

    def _request(self, fields: Fields, visitor: Visitor, *, blank: bool) -> Request:
        request = form.to_request(
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

    def _fields_of(self, query: str) -> Fields | None:
        """Return the values in the query of an entry in the history; None if it has none."""
        values = dict(parse_qsl(query.removeprefix("?")))
        result = link.from_query(values, self._generator.facts, self._styles)
        if result is None or result[0].randomise:
            return None
        try:
            self._request(result[0], Visitor("", ""), blank=True)
        except RequestError:  # the browser may have kept anything
            return None
        return result[0]

    async def _found(self, call: Call, request_id: str, query: str) -> AsyncGenerator[Updates]:
        """Yield updates of a request that was sent before.

        Raises:
            RequestError: if the request is forgotten.
        """
        try:
            # It may have been stopped because its visitor was away for too long.
            await self._generator.take_up(request_id)
        except RequestError as error:
            if error.kind is ErrorKind.UNKNOWN:
                raise
            yield _refused(error)
            return
        self._note(request_id)
        run = Run(request_id, embeds(call), self._fields_of(query))
        told = {"relay": run.told()}  # once is enough
        async with aclosing(self._follow(run)) as all_updates:
            async for updates in all_updates:
                yield {**told, **updates}
                told = {}

    async def _follow(self, run: Run) -> AsyncGenerator[Updates]:
        """Yield what the page shows of a request until it has ended."""
        async with aclosing(_with_pauses(self._generator.events(run.id))) as events:
            async for event in events:
                match event:
                    case None:
                        yield {}
                    case Queued(position, wait_s):
                        yield _running(
                            status.busy(i18n.text("waiting", position=position, left_s=wait_s))
                        )
                    case Started(attempt):
                        yield _running(status.busy(i18n.text("starting", attempt=attempt)))
                    case Step(done, total):
                        run.step = event
                        left_s = run.time_left.after(done, total)
                        if time.monotonic() - run.moved >= BAR_SECONDS:
                            run.moved = time.monotonic()
                            yield _running(status.progress(done, total, left_s))
                    case Preview(jpegs):
                        run.previews = jpegs
                        yield _running(previews=status.previews(jpegs))
                    case Image():
                        run.images.append(event)
                    case Done():
                        # A thread, so that a slow disk does not hold up others.
                        yield await asyncio.to_thread(self._done, run, event)
                    case Error(kind, message):
                        is_calm = kind in (ErrorKind.CANCELLED, ErrorKind.ABANDONED)
                        strip = (status.note if is_calm else status.error)(i18n.translate(message))
                        unfinished = await asyncio.to_thread(self._unfinished, run)
                        yield _ended(strip, relay=run.told(), **unfinished)

    def _note(self, request_id: str) -> None:
        """Remember which request the event follows that is being answered."""
        event = current_event()
        if event is None:
            return
        self._requests[event] = request_id
        if len(self._requests) > MOST_EVENTS:
            del self._requests[next(iter(self._requests))]

    def _done(self, run: Run, done: Done) -> Updates:
        """Save the finished pictures, and return the last updates."""
        fields, styles = run.fields, self._styles
        pictures = saved_pictures.save(
            run.images,
            styles.values() if fields is None else [styles[fields.style]],
            run.embed,
            form.ALL if fields is None else fields.images,
            run.start,
        )
        seconds = None if run.began is None else time.monotonic() - run.began
        count = i18n.text("pictures", count=len(pictures))
        strip = status.note(i18n.text("finished", pictures=count, seconds=seconds))
        if done.truncated:
            strip += status.warning(i18n.END_LEFT_OUT)
        drawn = history.drawn(run.id, [picture.path for picture in pictures])
        return _ended(strip, relay=run.told(**drawn), **self._in_gallery(pictures))

    def _in_gallery(self, pictures: list[Picture]) -> dict[str, Any]:
        """Return the updates that show pictures in the gallery, and the panel of an opened one."""
        shown = picture_panel.in_gallery(pictures, self._generator.facts)
        return shown | {"panel": gr.Column(visible=True)}

    def _unfinished(self, run: Run) -> dict[str, Any]:
        """Return the latest previews for the gallery; without any, it keeps the older pictures."""
        if not run.previews:
            return {}
        done, total = run.step.done, run.step.total
        paths = saved_pictures.save_previews(run.previews)
        if run.fields is None:  # they cannot be finished
            caption = i18n.text("unfinished", done=done, total=total)
            return self._in_gallery([]) | {"gallery": [(str(path), caption) for path in paths]}
        request = self._request(run.fields, Visitor("", ""), blank=True)
        unfinished = Unfinished(done, total, run.fields, run.start)
        return self._in_gallery(
            saved_pictures.unfinished(paths, request, self._generator.facts, unfinished)
        )

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


def text_of(value: object) -> str:
    """Return a text that a browser sent, or "" for anything else: it may send any JSON."""
    return value if isinstance(value, str) else ""


def embeds(call: Call) -> bool:
    """Return whether the visitor wants settings inside the files of pictures."""
    return not call.told.get("bare")


async def _with_pauses(events: AsyncGenerator[Event]) -> AsyncGenerator[Event | None]:
    """Yield the events, and None after every `PAUSE_SECONDS` without one."""
    following = asyncio.ensure_future(anext(events))
    try:
        while True:
            await asyncio.wait([following], timeout=PAUSE_SECONDS)
            if not following.done():
                yield None
                continue
            try:
                event = following.result()
            except StopAsyncIteration:
                return
            yield event
            following = asyncio.ensure_future(anext(events))
    finally:
        following.cancel()
        await asyncio.wait([following])
        await events.aclose()


def _fitting(fields: Fields, start_picture: Start | None) -> Fields:
    """Return the fields without the settings of a picture that is not there."""
    if start_picture is None:
        return fields._replace(strength=None, padding=None)
    strength = start_picture.strength if fields.strength is None else fields.strength
    padding = None if start_picture.mask is None else fields.padding
    return fields._replace(strength=strength, padding=padding)


def _running(strip: str | None = None, **updates: Any) -> Updates:
    """Return the updates of a request under way, with Stop in the place of Generate."""
    # A button that appears while events stream in must be given its label again.
    buttons = {"generate": gr.Button(visible=False), "stop": gr.Button(i18n.STOP, visible=True)}
    return ({} if strip is None else {"strip": strip}) | buttons | updates


def _ended(strip: str, **updates: Any) -> Updates:
    """Return the last updates of a request; `ui.page` shows Generate again a moment later."""
    return {"strip": strip, "previews": status.EMPTY, **updates}


def _refused(error: RequestError, fields: Fields | None = None) -> Updates:
    """Return the updates with the message of a refusal, which names the field that is wrong."""
    in_prompt = error.field == "loras" and fields and form.has_tags(fields.prompt)
    element = form.element_of("prompt" if in_prompt else error.field)
    return _ended(status.error(i18n.translate(error.message), element))
