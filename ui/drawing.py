"""What happens between Generate and the pictures, for the page and for programs."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import gradio as gr
from gradio.data_classes import FileData

from serving.generator import Generator, Pictures, Request, RequestError
from ui import files, inputs, status, words
from ui.kinds import Kind
from ui.styles import NONE, styles_for

# The bar moves at most this often. Faster, and the browser would still be moving it after a stop.
BAR_SECONDS = 0.1

# The strip, the gallery and the seed, as they are to be shown; `gr.skip()` leaves one as it is.
Shown = tuple[Any, Any, Any]


class Drawing:
    """Runs requests on a generator and puts what comes back into the page's terms."""

    def __init__(self, generator: Generator, kind: Kind) -> None:
        self._generator = generator
        self._styles = styles_for(kind)

    async def for_page(
        self,
        prompt: str,
        style: str,
        negative_prompt: str,
        guidance_scale: float,
        steps: int,
        randomise: bool,
        seed: int | None,
    ) -> AsyncGenerator[Shown]:
        """Draws for a visitor. Whatever goes wrong ends as a message in the strip."""
        started = time.monotonic()
        try:
            request = self._request(
                prompt=prompt,
                style=style,
                negative_prompt=negative_prompt,
                guidance_scale=guidance_scale,
                steps=steps,
                seed=None if randomise else seed,
            )
            yield status.progress(0, request.num_inference_steps), gr.skip(), request.seed
            moved = started
            async with aclosing(self._generator.run(request)) as events:
                async for event in events:
                    now = time.monotonic()
                    if isinstance(event, Pictures):
                        yield _ending(event, now - started), _gallery(event, prompt), gr.skip()
                    elif now - moved >= BAR_SECONDS:
                        moved = now
                        yield status.progress(event.done, event.total), gr.skip(), gr.skip()
        except RequestError as error:
            yield status.error(str(error)), gr.skip(), gr.skip()
        except Exception:  # the generator has logged it; the visitor is spared the details
            yield status.error(words.FAILED), gr.skip(), gr.skip()

    async def for_programs(
        self,
        prompt: str,
        negative_prompt: str = "",
        style: str = NONE,
        guidance_scale: float = 5.0,
        steps: int | None = None,
        seed: int | None = None,
    ) -> tuple[list[dict[str, Any]], list[int], str]:
        """Draws pictures from a description.

        Args:
            prompt: what the pictures should show; at most 2000 characters.
            negative_prompt: what they should not show.
            style: the name of one of the page's styles, or "(none)".
            guidance_scale: how closely to follow the prompt, 0 to 50; 1 and below: no guidance.
            steps: denoising steps, 1 to 50; the page's own number if left out.
            seed: 0 to 4294967295; picture i uses seed + i. A random one if left out.

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
            )
            pictures = await self._finished(request)
        except RequestError as error:
            raise gr.Error(str(error), print_exception=False) from None
        except Exception as error:
            raise gr.Error(words.FAILED, print_exception=False) from error
        paths = files.save(pictures.pngs, pictures.seeds, prompt)
        found = [FileData(path=str(path), orig_name=path.name).model_dump() for path in paths]
        return found, list(pictures.seeds), pictures.truncated

    def _request(self, *, steps: int | None, **values: object) -> Request:
        model = self._generator.model
        steps = model.num_inference_steps if steps is None else steps
        return inputs.to_request(model, self._styles, steps=steps, **values)

    async def _finished(self, request: Request) -> Pictures:
        progress = gr.Progress()
        async with aclosing(self._generator.run(request)) as events:
            async for event in events:
                if isinstance(event, Pictures):
                    return event
                progress((event.done, event.total), unit="steps")
        raise RuntimeError("the generator ended without pictures")


def _ending(pictures: Pictures, seconds: float) -> str:
    ending = status.note(words.finished(len(pictures.pngs), seconds))
    if pictures.truncated:
        ending += status.warning(words.truncated(pictures.truncated))
    return ending


def _gallery(pictures: Pictures, prompt: str) -> list[tuple[str, str]]:
    paths = files.save(pictures.pngs, pictures.seeds, prompt)
    return [
        (str(path), words.caption(prompt.strip(), seed))
        for path, seed in zip(paths, pictures.seeds, strict=True)
    ]
