"""From final latents to pictures: decoding, moderation, the settings inside; and previews."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jax import Array
from PIL import Image

from pipeline.drawing.drawing import Drawing, Evaluated, Picture
from pipeline.errors import NotFiniteError
from pipeline.images import inputs, metadata, moderation
from pipeline.images.preview import Colours
from pipeline.images.screen import Screen, verdicts
from pipeline.models.clip_config import SafetyCheckerConfig
from pipeline.request import TINY, Request
from pipeline.runtime.compiled import CompiledSampler
from pipeline.runtime.slots import slot_mask


@dataclass(frozen=True)
class Final:
    """Final latents of some pictures of a drawing, and these pictures once they are decoded.

    Attributes:
        slots: the slot of each picture, by index.
        latents: the latents of all slots, `[B, h, w, C]`.
        decoded: the pictures of all slots as `CompiledSampler.decode` returns them; None for
            results that are latents.
    """

    slots: Mapping[int, int]
    latents: Array
    decoded: tuple[Array, Array] | None


class Finisher:
    """Makes results from latents, and previews from unfinished pictures.

    A worker makes the results, one after the other, so that `screen` is never called twice at once.

    Args:
        checker: the configuration of the safety checker; None without one.
        screen: the operator's check of finished pictures; None without one.
        colours: the map from latents to colours, for previews without a tiny VAE.
        describe: returns the settings of a picture, from the request as its pictures name it, the
            picture's index and the size in which it was drawn, (width, height).
    """

    def __init__(
        self,
        checker: SafetyCheckerConfig | None,
        screen: Screen | None,
        colours: Colours,
        describe: Callable[[Request, int, tuple[int, int]], metadata.Settings],
    ):
        self._checker = checker
        self._screen = screen
        self._colours = colours
        self._describe = describe
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="finishing")

    def decode(self, drawing: Drawing, slots: Mapping[int, int], latents: Array) -> Final:
        """Queue the decoding of the pictures in some slots, whose latents are final."""
        if drawing.output_type == "latent" or drawing.then is not None:
            return Final(slots, latents, None)
        run = drawing.run
        wanted = slot_mask(run.shapes.images, slots.values())
        decode = run.tiny_decode if drawing.request.decoder == TINY else run.decode
        return Final(slots, latents, decode(latents, wanted))

    def begin(self, drawing: Drawing, final: Final) -> Future[list[Picture]]:
        """Let the worker `finish` pictures; latents, which need no check, are finished at once."""
        if final.decoded is not None:
            return self._worker.submit(self.finish, drawing, final)
        finished: Future[list[Picture]] = Future()
        try:
            finished.set_result(self.finish(drawing, final))
        except NotFiniteError as error:
            finished.set_exception(error)
        return finished

    def finish(self, drawing: Drawing, final: Final) -> list[Picture]:
        """Return finished pictures; wait for their decoding.

        Raises:
            NotFiniteError: if their latents are no finite numbers.
            ScreenError: if `screen` fails.
        """
        indices, slots = [*final.slots.keys()], [*final.slots.values()]
        latents = np.asarray(final.latents)[slots]
        if not np.isfinite(latents).all():
            raise NotFiniteError(
                "the latents are no finite numbers, and pictures of them would be black; lower the"
                " weights of the LoRAs, or the guidance scale"
            )
        if final.decoded is None:
            return [Picture(*each) for each in zip(indices, latents, strict=True)]
        pixels, floats = _pixels(drawing, indices, slots, final.decoded)
        by_checker = self._flagged(drawing.run, pixels, slots)
        by_screen = [False] * len(slots) if self._screen is None else verdicts(self._screen, pixels)
        return [
            self._picture(drawing, *each)
            for each in zip(indices, pixels, floats, by_checker, by_screen, strict=True)
        ]

    def look(self, drawing: Drawing, newest: Evaluated) -> dict[int, np.ndarray]:
        """Return previews `[h, w, 3]` uint8 of a drawing's unfinished pictures, by index.

        They are the pictures that the newest evaluation predicts.
        """
        slots = {i: slot for i, slot in newest.slots.items() if not drawing.has_left(i)}
        if not slots:
            return {}
        rows = {i: drawing.schedule.pred_x0[newest.evaluations[i]] for i in slots}
        before, after, run = newest.before.latents, newest.after, drawing.run
        if not run.has_tiny_vae:
            latents, values = np.asarray(before), np.asarray(after.history)[0]
            return {
                i: self._colours.of(a * latents[slots[i]] + b * values[slots[i]])
                for i, (a, b) in rows.items()
            }
        wanted = slot_mask(run.shapes.images, slots.values())
        coefficients = np.zeros((len(wanted), 2))
        for i, row in rows.items():
            coefficients[slots[i]] = row
        found = run.preview(before, after, coefficients, wanted)
        return {i: found[slot] for i, slot in slots.items()}

    def _flagged(
        self, run: CompiledSampler, pixels: Sequence[np.ndarray], slots: Sequence[int]
    ) -> list[bool]:
        """Return for each picture `[H, W, 3]` uint8 whether the safety checker flags it."""
        if self._checker is None:
            return [False] * len(pixels)
        prepared = moderation.prepare(pixels, self._checker)
        placed = np.zeros((run.shapes.images, *prepared.shape[1:]), prepared.dtype)
        placed[slots] = prepared
        return run.check(placed, slot_mask(len(placed), slots))[slots].tolist()

    def _picture(
        self,
        drawing: Drawing,
        index: int,
        pixels: np.ndarray,
        as_float: np.ndarray | None,
        by_checker: bool,
        by_screen: bool,
    ) -> Picture:
        flagged = by_checker or by_screen
        visible = moderation.blur(pixels) if flagged else pixels
        if as_float is not None:
            blurred = visible / np.float32(255)
            return Picture(index, blurred if flagged else as_float, flagged)
        image = self._described(drawing, index, visible, flagged)
        reveals = by_screen and not by_checker
        unblurred = self._described(drawing, index, pixels, flagged=False) if reveals else None
        return Picture(index, image, flagged, unblurred)

    def _described(
        self, drawing: Drawing, index: int, pixels: np.ndarray, flagged: bool
    ) -> Image.Image:
        """Return a picture `[H, W, 3]` uint8 as a PIL picture with its settings attached."""
        image, request = Image.fromarray(pixels), drawing.named
        prompts = request.prompts[index], request.negative_prompts[index]
        settings = replace(
            self._describe(request, index, (drawing.run.shapes.width, drawing.run.shapes.height)),
            safety_checker=metadata.BLURRED if flagged else None,
            lora_hashes=drawing.lora_hashes,
            ti_hashes=drawing.placement.hashes(*prompts),
        )
        metadata.attach(image, settings)
        return image


def _pixels(
    drawing: Drawing, indices: Sequence[int], slots: Sequence[int], decoded: tuple[Array, Array]
) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
    """Return pictures `[H, W, 3]` as uint8, and as float32 in 0..1, or None where not needed."""
    as_float, as_bytes = decoded
    needed, nothing = drawing.output_type == "np", [None] * len(slots)
    if not drawing.frames:
        floats = np.asarray(as_float)[slots] if needed else nothing
        return [*np.asarray(as_bytes)[slots]], [*floats]
    parts = zip(indices, np.asarray(as_float)[slots], strict=True)
    whole = [drawing.frames[i].filled(part) for i, part in parts]
    return [inputs.to_bytes(each) for each in whole], whole if needed else nothing
