"""Requests for pictures, from a press of Generate to their end, for the page and for programs."""

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
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
from ui.styles import Style, styles_for

# Shortest time between two updates of the bar. With more, the browser would lag behind a stop.
BAR_SECONDS = 0.1

# Gradio notices a visitor's departure only when it sends: send an empty update after such a pause.
PAUSE_SECONDS = 5.0

# Events whose request is remembered.
MOST_EVENTS = 10_000

_LEAVE = gr.skip()
_BROKEN = Message(Code.BROKEN)

log = logging.getLogger(__name__)


class Update(NamedTuple):
    """An update of the page's components; a component without a value stays as it is."""

    strip: Any = _LEAVE
    previews: Any = _LEAVE
    gallery: Any = _LEAVE
    pictures: Any = _LEAVE  # the `ui.pictures.saved.Picture`s in the gallery
    panel: Any = _LEAVE
    texts: Any = _LEAVE  # of these pictures, for the panel
    seed: Any = _LEAVE
    request_id: Any = _LEAVE
    history: Any = _LEAVE
    generate: Any = _LEAVE
    stop: Any = _LEAVE


_UNCHANGED = Update()


class Drawing:
    """The handlers of the page: they send requests to a generator and yield updates of the page."""

    def __init__(self, generator: Generator, kind: Kind) -> None:
        self._generator = generator
        self._styles = styles_for(kind)
        self._requests: dict[str, str] = {}  # the id that each event follows, oldest first

    async def for_page(
        self, sender: gr.Request, files: str | None, start_data: Any, *values: Any
    ) -> AsyncGenerator[Update]:
        """Draw pictures for a visitor, and yield updates; an error becomes a message in the strip.

        If `files` is `saved_pictures.BARE`, the files have no settings inside. `start_data` is the
        picture to start from, as `start.take` reads it. The `values` are those of the components
        of `Fields`.
        """
        async with aclosing(self._draw(sender, files, start_data, Fields.sent(values))) as updates:
            async for update in updates:
                yield update

    async def _draw(
        self, sender: gr.Request, files: str | None, start_data: Any, fields: Fields
    ) -> AsyncGenerator[Update]:
        began = time.monotonic()
        try:
            request_id, request_fields, start_id = await self._submitted(sender, start_data, fields)
            entry = history.asked(request_id, request_fields)
            yield _running(
                status.busy(i18n.starting()),
                gallery=gr.Gallery(selected_index=None),
                seed=request_fields.seed,
                request_id=request_id,
                history=entry,
            )
            following = self._follow(
                request_id, files, request_fields, began=began, entry=entry, start_id=start_id
            )
            async with aclosing(following) as updates:
                async for update in updates:
                    yield update
        except RequestError as error:
            yield _refused(error, fields)
        except Exception as error:
            log.error("A request could not be shown", exc_info=error)
            yield _ended(status.error(i18n.translate(_BROKEN)))

    async def _submitted(
        self, sender: gr.Request, start_data: Any, fields: Fields
    ) -> tuple[str, Fields, str]:
        """Submit a request; return its id, the values that ask for it, and its picture's id.

        Raises:
            RequestError: if it is refused.
        """
        model = self._generator.facts
        start_picture = await start.take(start_data)
        fields = _fitting(fields, start_picture)
        request = self._request(
            fields._replace(seed=None) if fields.randomise else fields,
            Visitor.behind(sender),
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
        request_fields = fields._replace(**numbers, randomise=False)
        return request.id, request_fields, "" if start_picture is None else start_picture.id

    async def waited(
        self,
        sender: gr.Request,
        event: gr.EventData,
        files: str | None,
        start_data: Any,
        *values: Any,
    ) -> AsyncGenerator[Update]:
        """Draw the prompt that waited for the end of a drawing, with the settings of the fields."""
        fields = Fields.sent(values)._replace(prompt=event._data)
        async with aclosing(self._draw(sender, files, start_data, fields)) as updates:
            async for update in updates:
                yield update

    async def variations(
        self,
        sender: gr.Request,
        key: str | None,
        start_data: Any,
        pictures: list[Picture],
        strength: float,
        files: str | None = None,
    ) -> AsyncGenerator[Update]:
        """Draw variations of the picture with this key; the page's fields do not change.

        `start_data` is the picture that it began with, if any.
        """

        def varied(picture: Picture) -> Fields:
            fields, _ = form.as_fields(picture.settings, self._generator.facts, picture.typed)
            earlier_variations = fields.variation_of
            if fields.variation_strength > 0:
                earlier_variations = add_variation(
                    earlier_variations, fields.variation_seed, fields.variation_strength
                )
            return fields._replace(
                variation_of=earlier_variations,
                variation_strength=strength,
                variation_seed=random_seed(),
            )

        async with aclosing(
            self._from_picture(sender, key, start_data, pictures, files, varied)
        ) as updates:
            async for update in updates:
                yield update

    async def larger(
        self,
        sender: gr.Request,
        key: str | None,
        pictures: list[Picture],
        files: str | None = None,
    ) -> AsyncGenerator[Update]:
        """Draw the picture with this key again, from itself, in the next larger size."""
        model = self._generator.facts
        yield _UNCHANGED
        try:
            picture = pictures[saved_pictures.find(pictures, key)]
            steps = picture.settings.num_inference_steps or model.num_inference_steps
            start_picture = await asyncio.to_thread(start.to_enlarge, picture.path, steps)
        except RequestError as error:
            yield _ended(status.error(i18n.translate(error.message)))
            return

        def enlarged(picture: Picture) -> Fields | None:
            size = picture.larger_size(model)
            if size is None:
                return None
            fields, _ = form.as_fields(picture.settings, model, picture.typed)
            return fields._replace(
                size=form.size_of(size, model),
                images=1,
                strength=None,
                enlarge="",
                randomise=False,
            )

        async with aclosing(
            self._from_picture(sender, key, start_picture, pictures, files, enlarged)
        ) as updates:
            async for update in updates:
                yield update

    async def finish(
        self,
        sender: gr.Request,
        key: str | None,
        start_data: Any,
        pictures: list[Picture],
        files: str | None = None,
    ) -> AsyncGenerator[Update]:
        """Draw the request of the unfinished picture again, with all its pictures."""

        def whole(picture: Picture) -> Fields | None:
            return picture.unfinished and picture.unfinished.asked

        async with aclosing(
            self._from_picture(sender, key, start_data, pictures, files, whole)
        ) as updates:
            async for update in updates:
                yield update

    async def _from_picture(
        self,
        sender: gr.Request,
        key: str | None,
        start_data: Any,
        pictures: list[Picture],
        files: str | None,
        ask: Callable[[Picture], Fields | None],
    ) -> AsyncGenerator[Update]:
        """Draw the pictures that `ask` makes of the picture with this key."""
        yield _UNCHANGED
        try:
            picture = pictures[saved_pictures.find(pictures, key)]
        except RequestError as error:
            yield _ended(status.error(i18n.translate(error.message)))
            return
        fields = ask(picture)
        if fields is None:
            return
        async with aclosing(self._draw(sender, files, start_data, fields)) as updates:
            async for update in updates:
                yield update

    async def again(
        self, request_id: str | None, files: str | None = None, query: str | None = None
    ) -> AsyncGenerator[Update]:
        """Show a request that this page followed before, and follow it again.

        The `query` is that of the request's entry in the history.
        """
        # If a handler yields nothing, Gradio clears all components that it could have updated.
        yield _UNCHANGED
        if not _sent_text(request_id):
            return
        with suppress(RequestError):  # the request is forgotten: no error for the visitor
            async with aclosing(self._found(_sent_text(request_id), files, query)) as updates:
                async for update in updates:
                    yield update

    async def resume(
        self,
        event: gr.EventData,
        request_id: str | None,
        files: str | None = None,
        query: str | None = None,
    ) -> AsyncGenerator[Update]:
        """Follow the request again that the page followed when the connection broke.

        If there is none, and the visitor was waiting for one, the strip says so. The page may not
        know of the request whose event broke off. It then still has the id of an older request,
        which must not be shown in its place.
        """
        yield _UNCHANGED
        data = event._data if isinstance(event._data, dict) else {}
        is_visitors = data.get("visitors") is not False
        followed_id = self._requests.get(_sent_text(data.get("event")), "")
        if not followed_id and not is_visitors:
            followed_id = _sent_text(request_id)
            if not followed_id:
                return
        if followed_id != request_id:
            query = None  # it is that of the older request
        try:
            async with aclosing(self._found(followed_id, files, query)) as updates:
                async for update in updates:
                    yield update
        except RequestError:
            yield _ended(status.note(i18n.LOST))

    async def stop(self, request_id: str | None) -> None:
        """Stop a request, and tell everybody who follows it."""
        with suppress(RequestError):
            self._generator.cancel(_sent_text(request_id))

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

    def _asked(self, query: str | None) -> Fields | None:
        """Return the values in the query of an entry in the history; None if it has none."""
        values = dict(parse_qsl(_sent_text(query).removeprefix("?")))
        result = link.from_query(values, self._generator.facts, self._styles)
        if result is None or result[0].randomise:
            return None
        try:
            self._request(result[0], Visitor("", ""), blank=True)
        except RequestError:  # the browser may have kept anything
            return None
        return result[0]

    async def _found(
        self, request_id: str, files: str | None, query: str | None
    ) -> AsyncGenerator[Update]:
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
        async with aclosing(self._follow(request_id, files, self._asked(query))) as updates:
            async for update in updates:
                yield update._replace(request_id=request_id)

    async def _follow(
        self,
        request_id: str,
        files: str | None,
        request_fields: Fields | None,
        *,
        began: float | None = None,
        entry: dict[str, Any] | None = None,
        start_id: str = "",
    ) -> AsyncGenerator[Update]:
        """Yield what the page shows of a request until it has ended.

        Args:
            request_id: the request's id.
            files: `saved_pictures.BARE` to leave the settings out of the pictures' files.
            request_fields: the values of the page's fields that ask for it, if they are known.
            began: the `time.monotonic` at which the visitor asked; None to show no duration.
            entry: the request's entry in the history. It is sent again at the end, because Gradio
                drops a value that is replaced before the browser has rendered it.
            start_id: the browser's id of the picture that the request starts from, "" for none.
        """
        images: list[Image] = []
        previews: Sequence[bytes] = ()
        step = Step(0, 0)
        time_left, moved = TimeLeft(), -math.inf  # the first step is shown at once
        async with aclosing(_with_pauses(self._generator.events(request_id))) as events:
            async for event in events:
                match event:
                    case None:
                        yield _UNCHANGED
                    case Queued(position, wait_s):
                        yield _running(status.busy(i18n.waiting(position, wait_s)))
                    case Started(attempt):
                        yield _running(status.busy(i18n.starting(attempt)))
                    case Step(done, total) as step:
                        left_s = time_left.after(done, total)
                        if time.monotonic() - moved >= BAR_SECONDS:
                            moved = time.monotonic()
                            yield _running(status.progress(done, total, left_s))
                    case Preview(previews):
                        yield _running(previews=status.previews(previews))
                    case Image():
                        images.append(event)
                    case Done():
                        # A thread, so that a slow disk does not hold up others.
                        embed = files != saved_pictures.BARE
                        styles = self._styles_of(request_fields)
                        count = form.ALL if request_fields is None else request_fields.images
                        pictures = await asyncio.to_thread(
                            saved_pictures.save, images, styles, embed, count, start_id
                        )
                        yield _ended(
                            _ending(event, images, began),
                            **self._in_gallery(pictures),
                            history=(entry or {})
                            | history.drawn(request_id, [picture.path for picture in pictures]),
                        )
                    case Error(kind, message):
                        is_calm = kind in (ErrorKind.CANCELLED, ErrorKind.ABANDONED)
                        strip = (status.note if is_calm else status.error)(i18n.translate(message))
                        unfinished = await asyncio.to_thread(
                            self._unfinished, previews, step, request_fields, start_id
                        )
                        yield _ended(strip, history=entry or _LEAVE, **unfinished)

    def _note(self, request_id: str) -> None:
        """Remember which request the event follows that is being answered."""
        event = current_event()
        if event is None:
            return
        self._requests[event] = request_id
        if len(self._requests) > MOST_EVENTS:
            del self._requests[next(iter(self._requests))]

    def _styles_of(self, request_fields: Fields | None) -> list[Style]:
        """Return the style that was asked for; all styles if that is not known."""
        return (
            list(self._styles.values())
            if request_fields is None
            else [self._styles[request_fields.style]]
        )

    def _in_gallery(self, pictures: list[Picture]) -> dict[str, Any]:
        """Return the parts of an update that show these pictures in the gallery."""
        return {
            "gallery": saved_pictures.for_gallery(pictures),
            "pictures": pictures,
            "panel": gr.Column(visible=True),
            "texts": picture_panel.texts(pictures, self._generator.facts),
        }

    def _unfinished(
        self, previews: Sequence[bytes], step: Step, request_fields: Fields | None, start_id: str
    ) -> dict[str, Any]:
        """Return the latest previews for the gallery; without any, it keeps the older pictures."""
        if not previews:
            return {}
        paths = saved_pictures.save_previews(previews)
        if request_fields is None:  # they cannot be finished
            caption = i18n.unfinished(step.done, step.total)
            return self._in_gallery([]) | {"gallery": [(str(path), caption) for path in paths]}
        request = self._request(request_fields, Visitor("", ""), blank=True)
        unfinished = Unfinished(step.done, step.total, request_fields, start_id)
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


def _sent_text(value: object) -> str:
    """Return a text that a browser sent, or "" for anything else: it may send any JSON."""
    return value if isinstance(value, str) else ""


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


def _running(strip: Any = _LEAVE, **parts: Any) -> Update:
    """Return an update for a request under way, with Stop in the place of Generate."""
    # A button that appears while events stream in must be given its label again.
    generate, stop = gr.Button(visible=False), gr.Button(i18n.STOP, visible=True)
    return Update(strip, generate=generate, stop=stop, **parts)


def _ended(strip: str, **parts: Any) -> Update:
    """Return the last update of a request; `ui.page` shows Generate again a moment later."""
    return Update(strip, status.EMPTY, **parts)


def _refused(error: RequestError, fields: Fields | None = None) -> Update:
    """Return the update with the message of a refusal, which names the field that is wrong."""
    in_prompt = error.field == "loras" and fields and form.has_tags(fields.prompt)
    field = form.element_of("prompt" if in_prompt else error.field)
    return _ended(status.error(i18n.translate(error.message), field))


def _ending(done: Done, images: list[Image], began: float | None) -> str:
    seconds = None if began is None else time.monotonic() - began
    ending = status.note(i18n.finished(len(images), seconds))
    if done.truncated:
        ending += status.warning(i18n.END_LEFT_OUT)
    return ending
