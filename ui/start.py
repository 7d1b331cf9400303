"""The picture to start from: its tools in the browser, and its files as a request brings them.

The browser keeps the picture, the marked part and the new sides, and uploads what it makes of them
with every request. The tools are in `static/start`; they are loaded with the first picture.
"""

import asyncio
import json
import math
import re
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr

from pipeline.facts import Facts
from pipeline.request import MAX_PADDING, STRENGTH
from pipeline.resolve import enlarging_strength
from pipeline.setting_kinds import Setting
from serving.generator import ErrorKind, Request, RequestError
from serving.http.limits import MAX_UPLOAD_BYTES
from serving.messages import Code, Message, Param
from serving.requests import inputs
from serving.requests.inputs import Input
from ui import controls, i18n, scripts
from ui.gradio_compat import uploads

# Settings whose components are made here, and the ids of their elements.
FIELDS = {
    "strength": "start-strength",
    "padding": "start-padding",
    "controls": "start-controls",
}
ELEMENTS = {**FIELDS, "image": "start", "mask": "start"}
# Pixels around the marked part, unless the visitor chooses another number.
_PADDING = 32
# Strength with a marked part, which is to become something else.
_MASKED_STRENGTH = 1.0
# The most by which the ratios of width and height of two sizes of one shape differ, as a logarithm.
_SAME_SHAPE = 0.02
_MOST_ADDED = 1024  # pixels at each side
_MOST_OPENED = 2**26  # pixels of a picture that the browser reduces
_ID = re.compile(r"[a-z0-9]{1,32}")
# Reasons why an upload failed, by the status of its answer.
_FAILURES = {
    413: Message(Code.TOO_LARGE, {"kib": MAX_UPLOAD_BYTES // 2**10}),
    429: Message(Code.TOO_MANY_UPLOADS),
    507: Message(Code.NO_ROOM_FOR_UPLOADS),
}


@dataclass(frozen=True, repr=False)
class Start:
    """A picture to start from.

    Attributes:
        id: the browser's own id of it, by which it finds it again.
        image, mask: files, as `serving.requests.inputs.Input` has them.
        strength: the strength of a request that chooses none.
    """

    id: str
    image: bytes
    mask: bytes | None
    strength: float

    async def added(self, request: Request, facts: Facts) -> Request:
        """Return the request with this picture.

        A request without a size gets the size whose shape is nearest to the picture's.

        Raises:
            RequestError: if a file cannot be used, or too many are being opened.
        """
        picture = Input(self.image, self.mask, any_size=True)
        return await inputs.shared().added(request, picture, facts)


def layout(facts: Facts) -> gr.HTML:
    """Return the buttons for a sketch and of the camera, and the texts of the tools.

    The tools come with a picture. A sketch needs a ControlNet that follows drawings.
    """
    texts = escape(json.dumps(_texts(facts)))
    control = escape(controls.sketch(facts))
    button = f'<button type="button" data-sketch="{control}">{escape(i18n.SKETCH)}</button>'
    return gr.HTML(
        f'{button if control else ""}<label class="camera">{escape(i18n.TAKE_PICTURE)}'
        '<input type="file" accept="image/*" capture="environment" data-camera></label>'
        f'<div data-start data-texts="{texts}" hidden></div>',
        js_on_load=scripts.part("start"),
        apply_default_css=False,
        padding=False,
        elem_id="start",
    )


def note(facts: Facts) -> gr.HTML:
    """Return a note for models that need a picture and a mask; it goes when a part is marked."""
    text = f'<p class="note">{escape(i18n.MASK_FIRST)}</p>' if facts.needs_mask else ""
    return gr.HTML(text, padding=False, visible=facts.needs_mask, elem_id="mask-first")


def field(setting: Setting) -> gr.HTML:
    """Return the field that holds a setting as a text, "" for none; not laid out yet."""
    return gr.HTML(
        "",
        html_template="<div data-field hidden></div>",
        js_on_load=scripts.part("field"),
        apply_default_css=False,
        padding=False,
        elem_id=f"{FIELDS[setting.name]}-value",
        elem_classes="start-field",
        render=False,
    )


def _texts(facts: Facts) -> dict[str, Any]:
    """Return the texts of the tools, in the language in use, and their limits."""
    limits = {
        "size": "{}x{}".format(*facts.sizes[0]),
        "added": _MOST_ADDED,
        "opened": _MOST_OPENED,
        "bytes": MAX_UPLOAD_BYTES,
        "padding": MAX_PADDING,
        "usual_padding": _PADDING,
        "strength": STRENGTH,
        "masked_strength": _MASKED_STRENGTH,
    }
    return {
        **i18n.START,
        "name": i18n.SETTINGS["image"].label,
        "restore": i18n.RESTORE_ITS_SETTINGS,
        "strength": i18n.SETTINGS["strength"].label,
        "padding": i18n.SETTINGS["padding"].label,
        "undo": i18n.UNDO,
        "remove_picture": i18n.REMOVE_PICTURE,
        "limits": limits,
    }


async def take(data: object) -> Start | None:
    """Return the picture that a browser sent; its files are deleted. Return None for none.

    A `Start` that was made here is returned as it is.

    Raises:
        RequestError: if the browser could not send it, or sent something else.
    """
    if isinstance(data, Start):
        return data
    if not isinstance(data, dict):
        return None
    if data.get("gone"):
        raise RequestError(Message(Code.INPUT_GONE), ErrorKind.UNKNOWN, field="image")
    if "failed" in data:
        failure = _FAILURES.get(_number(data["failed"]), Message(Code.UPLOAD_TOO_SLOW))
        raise RequestError(failure, field="image")
    image, mask = [await content(name, data.get(name)) for name in ("image", "mask")]
    if image is None:
        return None
    start_id, strength = str(data.get("id")), data.get("strength")
    if not isinstance(strength, int | float) or not 0 < strength <= 1:
        strength = STRENGTH
    return Start(start_id if _ID.fullmatch(start_id) else "", image, mask, strength)


def larger_size(size: tuple[int | None, int | None], facts: Facts) -> tuple[int, int] | None:
    """Return the smallest size of the model that is larger than a picture's and of its shape.

    Return None if there is none, or if the model does not start from pictures alone.
    """
    width, height = size
    if not (width and height) or facts.needs_mask:
        return None
    fitting_sizes = [
        (wide, high)
        for wide, high in facts.sizes
        if wide > width and abs(math.log(wide * height / (high * width))) < _SAME_SHAPE
    ]
    return min(fitting_sizes, default=None)


def to_enlarge(file: Path, steps: int) -> Start:
    """Return a finished picture, which was drawn in `steps` steps, as one to enlarge.

    Raises:
        RequestError: if its file is gone.
    """
    try:
        image = file.read_bytes()
    except OSError as error:
        raise RequestError(Message(Code.PICTURE_GONE), ErrorKind.UNKNOWN) from error
    return Start("", image, None, enlarging_strength(steps))


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


async def content(name: str, file: object) -> bytes | None:
    """Return the content of an uploaded file, which is deleted; None for None.

    Raises:
        RequestError: if it is not an uploaded file; `name` is the field of the request.
    """
    if file is None:
        return None
    path = file.get("path") if isinstance(file, dict) else file
    try:
        return await asyncio.to_thread(uploads.take, str(path))
    except FileNotFoundError:
        params: dict[str, Param] = {"field": name, "reason": "it was not uploaded"}
        raise RequestError(Message(Code.UNUSABLE_PICTURE, params), field=name) from None
