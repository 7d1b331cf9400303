"""Requests for pictures, from a press of Generate to their end, for the page and for programs."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Any, NamedTuple

import gradio as gr
from gradio.data_classes import FileData

from pipeline.images.metadata import Settings
from serving.generator import (
    MAX_CHARACTERS,
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
    random_seed,
)
from serving.messages import Code, Message
from serving.requests.eta import TimeLeft
from ui import form, history, i18n, settings, sizes, status
from ui.form import Visitor
from ui.model_kind import Kind
from ui.pictures import files
from ui.pictures import saved as saved_pictures
from ui.settings import Fields
from ui.styles import NONE, styles_for

# Shortest time between two updates of the bar. With more, the browser would lag behind a stop.
BAR_SECONDS = 0.1

# Gradio notices only by sending that a visitor has left: send an empty update after such a pause.
PAUSE_SECONDS = 5.0

_LEAVE = gr.skip()
_BROKEN = Message(Code.BROKEN)

log = logging.getLogger(__name__)


class Shown(NamedTuple):
    """An update of the page's components; a component without a value stays as it is."""

    strip: Any = _LEAVE
    looks: Any = _LEAVE
    gallery: Any = _LEAVE
    pictures: Any = _LEAVE  # the `ui.pictures.saved.Picture`s in the gallery
    panel: Any = _LEAVE
    seed: Any = _LEAVE
    request_id: Any = _LEAVE
    history: Any = _LEAVE
    generate: Any = _LEAVE
    stop: Any = _LEAVE


_UNCHANGED = Shown()


class Drawing:
    """The handlers of the page: they send requests to a generator and yield updates of the page."""

    def __init__(self, generator: Generator, kind: Kind) -> None:
        self._generator = generator
        self._styles = styles_for(kind)

    async def for_page(
        self,
        sender: gr.Request,
        prompt: str,
        style: str,
        negative_prompt: str,
        guidance_scale: float,
        steps: int,
        randomise: bool,
        seed: int | None,
        several: bool,
        guidance_until: float,
        variation_strength: float,
        variation_seed: int | None,
        size: str,
        files: str | None = None,
    ) -> AsyncGenerator[Shown]:
        """Draw pictures for a visitor, and yield updates; an error becomes a message in the strip.

        With `files` as `saved_pictures.BARE`, the files have no settings inside.
        """
        began = time.monotonic()
        try:
            request = self._request(
                prompt=prompt,
                style=style,
                negative_prompt=negative_prompt,
                guidance_scale=guidance_scale,
                steps=steps,
                seed=None if randomise else seed,
                several=several,
                guidance_until=guidance_until,
                variation_strength=variation_strength,
                variation_seed=variation_seed,
                size=size,
                visitor=Visitor.behind(sender),
                keep=True,
                previews=True,
                unblurred=True,
            )
            await self._generator.submit(request)
            asked = Fields(
                prompt=prompt,
                style=style,
                negative_prompt=negative_prompt,
                guidance_scale=request.guidance_scale,
                steps=request.num_inference_steps,
                randomise=False,
                seed=request.seed,
                several=several,
                guidance_until=guidance_until,
                variation_strength=variation_strength,
                variation_seed=request.variation_seed,
                size=size,
            )
            entry = history.asked(request.id, asked)
            yield _running(
                status.busy(i18n.starting()),
                gallery=gr.Gallery(selected_index=None),
                panel=gr.Column(visible=False),
                seed=request.seed,
                request_id=request.id,
                history=entry,
            )
            following = self._follow(
                request.id,
                files,
                caption="" if several else prompt.strip(),
                began=began,
                entry=entry,
            )
            async with aclosing(following) as updates:
                async for update in updates:
                    yield update
        except RequestError as error:
            yield _ended(status.error(i18n.translate(error.message)))
        except Exception as error:
            log.error("A request could not be shown", exc_info=error)
            yield _ended(status.error(i18n.translate(_BROKEN)))

    async def variations(
        self,
        sender: gr.Request,
        chosen: Settings | None,
        strength: float,
        files: str | None = None,
    ) -> AsyncGenerator[Shown]:
        """Draw variations of the picture with these settings; the page's fields do not change."""
        yield _UNCHANGED
        if chosen is None:  # the picture's panel is closed
            return
        fields, _ = settings.as_fields(chosen, self._generator.model)
        fields = fields._replace(variation_strength=strength, variation_seed=random_seed())
        async with aclosing(self.for_page(sender, *fields, files)) as updates:
            async for update in updates:
                yield update

    async def again(
        self, request_id: str | None, files: str | None = None
    ) -> AsyncGenerator[Shown]:
        """Show a request again that this page followed before, and follow it from now on."""
        # If a handler yields nothing, Gradio clears all components that it could have updated.
        yield _UNCHANGED
        if not request_id:
            return
        with suppress(RequestError):  # the request is forgotten: no error for the visitor
            async with aclosing(self._found(request_id, files)) as updates:
                async for update in updates:
                    yield update

    async def resume(
        self, broken: gr.EventData, request_id: str | None, files: str | None = None
    ) -> AsyncGenerator[Shown]:
        """Follow the request again that the page followed when the connection broke.

        If there is none, the strip says so, unless the visitor was not waiting for anything.
        """
        yield _UNCHANGED
        if not request_id and broken._data == {"visitors": False}:
            return
        try:
            async with aclosing(self._found(request_id or "", files)) as updates:
                async for update in updates:
                    yield update
        except RequestError:
            yield _ended(status.note(i18n.LOST))

    async def length(self, prompt: str, style: str, several: bool) -> str:
        """Return HTML with the token count of the longest prompt, including its style."""
        if style not in self._styles or len(prompt) > MAX_CHARACTERS:
            return status.EMPTY
        prompts = form.split(prompt, several)[: self._generator.model.images_per_request]
        styled = [self._styles[style].apply(each, "")[0] for each in prompts]
        found = [await self._generator.measure(each) for each in styled]
        return status.length(max(filter(None, found), key=lambda each: each.tokens, default=None))

    async def stop(self, request_id: str | None) -> None:
        """Stop a request, and tell everybody who follows it."""
        with suppress(RequestError):
            self._generator.cancel(request_id or "")

    async def for_programs(
        self,
        sender: gr.Request,
        prompt: str,
        negative_prompt: str = "",
        style: str = NONE,
        guidance_scale: float = 5.0,
        steps: int | None = None,
        seed: int | None = None,
        guidance_until: float = 1.0,
        variation_strength: float = 0.0,
        variation_seed: int | None = None,
        size: str = sizes.USUAL,
    ) -> tuple[list[dict[str, Any]], list[int], str]:
        """Draw pictures from a description.

        Args:
            prompt: what the pictures should show; at most 2000 characters.
            negative_prompt: what they should not show.
            style: the name of one of the page's styles, or "(none)".
            guidance_scale: how closely to follow the prompt, 0 to 50; 1 and below: no guidance.
            steps: denoising steps, 1 to 50; the page's own number if left out.
            seed: 0 to 4294967295; picture i uses seed + i. A random one if left out.
            guidance_until: the share of the steps with guidance, 0 to 1; less is quicker.
            variation_strength: 0 to 1; above 0, the pictures are variations of those that `seed`
                alone gives, and differ from them by this much.
            variation_seed: what variations lean towards; picture i uses variation_seed + i. A
                random one if left out.
            size: width and height such as "1024x1024", one of the sizes that the page offers; the
                page's own if left out.

        Returns:
            The PNG files with their settings inside; the seed of each; and the part of the
            prompt that was too long for the model to read, or "".
        """
        try:
            request = self._request(
                prompt=prompt,
                style=style,
                negative_prompt=negative_prompt,
                guidance_scale=guidance_scale,
                steps=steps,
                seed=seed,
                guidance_until=guidance_until,
                variation_strength=variation_strength,
                variation_seed=variation_seed,
                size=size,
                visitor=Visitor.behind(sender),
            )
            await self._generator.submit(request)
            images, done = await self._finished(request.id)
            saved = await asyncio.to_thread(saved_pictures.save, images, prompt, embed=True)
            paths = [each.path for each in saved]
        except RequestError as error:
            raise gr.Error(i18n.translate(error.message), print_exception=False) from None
        except Exception as error:
            log.error("A request could not be answered", exc_info=error)
            raise gr.Error(i18n.translate(_BROKEN), print_exception=False) from None
        found = [FileData(path=str(path), orig_name=path.name).model_dump() for path in paths]
        return found, [image.seed for image in images], done.truncated

    def _request(self, *, steps: int | None, **values: Any) -> Request:
        model = self._generator.model
        steps = model.num_inference_steps if steps is None else steps
        return form.to_request(model, self._styles, steps=steps, **values)

    async def _found(self, request_id: str, files: str | None) -> AsyncGenerator[Shown]:
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
            yield _ended(status.error(i18n.translate(error.message)))
            return
        async with aclosing(self._follow(request_id, files)) as updates:
            async for update in updates:
                yield update._replace(request_id=request_id)

    async def _follow(
        self,
        request_id: str,
        files: str | None,
        *,
        caption: str = "",
        began: float | None = None,
        entry: dict[str, Any] | None = None,
    ) -> AsyncGenerator[Shown]:
        """Yield what the page shows of a request until it has ended.

        Args:
            request_id: the request's id.
            files: `saved_pictures.BARE` to leave the settings out of the pictures' files.
            caption: the caption of all pictures; if empty, each picture's own prompt.
            began: the `time.monotonic` at which the visitor asked; None to show no duration.
            entry: the request's entry in the history. It is sent again at the end, because Gradio
                drops a value that is replaced before the browser has rendered it.
        """
        images: list[Image] = []
        looks: Sequence[bytes] = ()
        step = Step(0, 0)
        time_left, moved = TimeLeft(), time.monotonic()
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
                    case Preview(looks):
                        yield _running(looks=status.previews(looks))
                    case Image():
                        images.append(event)
                    case Done():
                        # A thread, so that a slow disk does not hold up others.
                        embed = files != saved_pictures.BARE
                        saved = await asyncio.to_thread(saved_pictures.save, images, caption, embed)
                        yield _ended(
                            _ending(event, images, began),
                            gallery=saved_pictures.for_gallery(saved),
                            pictures=saved,
                            history=(entry or {})
                            | history.drawn(request_id, [each.path for each in saved]),
                        )
                    case Error(kind, message):
                        calm = kind in (ErrorKind.CANCELLED, ErrorKind.ABANDONED)
                        strip = (status.note if calm else status.error)(i18n.translate(message))
                        unfinished = await asyncio.to_thread(_unfinished, looks, step)
                        yield _ended(strip, history=entry or _LEAVE, **unfinished)

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


def _running(strip: Any = _LEAVE, **others: Any) -> Shown:
    """Return an update of a request that is under way: Stop takes the place of Generate."""
    # A button that appears while events stream in must be given its label again.
    generate, stop = gr.Button(visible=False), gr.Button(i18n.STOP, visible=True)
    return Shown(strip, generate=generate, stop=stop, **others)


def _ended(strip: str, **others: Any) -> Shown:
    """Return the last update of a request; `ui.page` shows Generate again a moment later."""
    return Shown(strip, status.EMPTY, **others)


def _ending(done: Done, images: list[Image], began: float | None) -> str:
    seconds = None if began is None else time.monotonic() - began
    ending = status.note(i18n.finished(len(images), seconds))
    if done.truncated:
        ending += status.warning(i18n.truncated(done.truncated))
    return ending


def _unfinished(looks: Sequence[bytes], step: Step) -> dict[str, Any]:
    """Return the latest previews for the gallery; without any, it keeps the older pictures."""
    if not looks:
        return {}
    paths = files.save({f"unfinished-{i}.jpg": jpeg for i, jpeg in enumerate(looks, start=1)})
    caption = i18n.unfinished(step.done, step.total)
    return {"gallery": [(str(path), caption) for path in paths], "pictures": []}
