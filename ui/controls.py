"""Following the picture to start from: what the model's ControlNets can follow, and a preview.

The browser asks for both when it has a picture; its part is in `static/start/follow.js`. The choice
is kept as the text of the setting `controls`, so links, the history and pictures hold it.
"""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import FastAPI
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from pipeline.facts import ControlFacts, Facts
from pipeline.setting_kinds import parse_size
from pipeline.text.controls import Control, format_controls, parse_controls
from serving.generator import Generator
from serving.http import bodies
from serving.http.addresses import address_of
from serving.http.calls import while_connected
from serving.http.limits import CONTROL_MAP_PATH
from serving.requests import inputs
from ui import i18n

PATH = "/controls"


class Kind(NamedTuple):
    """Something in a picture that others can follow.

    Attributes:
        name: the key of its label.
        pattern: finds the networks for it, by their names.
        preprocessor: makes the map of a picture.
        type: what networks of the union kind call it; "" if they do not follow it.
        group: whether it is "found" in any picture, or the picture must be such a map "already".
        differs: whether the map looks different from the picture, so that a preview is of use.
    """

    name: str
    pattern: str
    preprocessor: str = "none"
    type: str = ""
    group: Literal["found", "already"] = "already"
    differs: bool = False


_LINES = r"line|soft_?edge|(?<![a-z])hed(?![a-z])|pidi|mlsd"
_SCRIBBLE = "scribble|sketch"
# In the order of the page.
KINDS = (
    Kind("edges", "canny", "canny", "hard", "found", differs=True),
    Kind("scribble", _SCRIBBLE, "scribble_xdog", "soft", "found", differs=True),
    Kind(
        "brightness",
        "recolou?r|brightness|illumination|gr[ae]y",
        "recolor_luminance",
        group="found",
        differs=True,
    ),
    Kind("blur", "blur", "blur_gaussian", group="found", differs=True),
    Kind("tile", "tile", "tile_resample", "tile", "found"),
    Kind("inpaint", "inpaint|repaint", "inpaint_only", "repaint", "found"),
    Kind("drawing", f"{_LINES}|{_SCRIBBLE}", "invert", "hard", differs=True),
    Kind("lines", _LINES, type="soft"),
    Kind("depth", "depth", type="depth"),
    Kind("pose", "pose", type="openpose"),
    Kind("segmentation", "(?<![a-z])seg", type="segment"),
    Kind("normals", "normal", type="normal"),
)
# What a network follows whose name tells nothing.
_OTHER = Kind("other", "")


def _with_one(text: str) -> str:
    [_] = parse_controls(text)
    return text


class Body(BaseModel):
    """A picture, the control that follows it, and the fields that decide the map's size."""

    model_config = ConfigDict(extra="forbid")

    image: bodies.File = Field(repr=False)
    control: Annotated[str, AfterValidator(_with_one)]
    model: str = ""
    size: str = ""


def connect(app: FastAPI, generator: Generator) -> None:
    """Add the routes that tell what can be followed, and that make the map of a picture."""

    @app.get(PATH, include_in_schema=False)
    async def offered(sender: HttpRequest, model: str = "") -> dict[str, Any]:
        language = i18n.preferred(sender.headers.get("accept-language", ""))
        with i18n.speaking(language):
            return {"texts": i18n.FOLLOW, "choices": choices(generator.facts.for_known(model))}

    @app.post(CONTROL_MAP_PATH, include_in_schema=False)
    async def preview(sender: HttpRequest) -> Response:
        async with bodies.received(sender, Body) as body:
            facts = generator.facts.for_known(body.model)
            size = parse_size(body.size) if body.size in facts.size_names else None
            [control] = parse_controls(body.control)
            work = inputs.shared().map_of(
                address_of(sender), body.image, control, [size] if size else facts.sizes
            )
            png = await while_connected(sender, work)
        return Response(png, headers={"Cache-Control": "no-store"}, media_type="image/png")


def choices(facts: Facts) -> list[dict[str, Any]]:
    """Return what the model's ControlNets can follow, in the order of the page."""
    pairs = [(kind, control) for control in facts.controls for kind in _kinds_of(control)]
    pairs.sort(key=lambda pair: (*KINDS, _OTHER).index(pair[0]))
    counts = Counter(kind for kind, _ in pairs)
    return [
        {
            "control": _text_of(kind, control),
            "label": _label(kind, control, alone=counts[kind] == 1),
            "group": kind.group,
            "differs": kind.differs,
        }
        for kind, control in pairs
    ]


def sketch(facts: Facts) -> str:
    """Return the text of the control that follows a sketch, "" if no network does."""
    kind = next(kind for kind in KINDS if kind.name == "drawing")
    networks = (control for control in facts.controls if kind in _kinds_of(control))
    return next((_text_of(kind, control) for control in networks), "")


def unknown(controls: Iterable[Control], facts: Facts) -> list[str]:
    """Return the names of controls for which the model has no network."""
    names = {control.name for control in facts.controls}
    return [control.name for control in controls if control.name not in names]


def _kinds_of(control: ControlFacts) -> list[Kind]:
    """Return what a network can follow."""
    if control.types:
        return [kind for kind in KINDS if kind.type in control.types]
    name = control.name.lower()
    return [kind for kind in KINDS if re.search(kind.pattern, name)] or [_OTHER]


def _text_of(kind: Kind, control: ControlFacts) -> str:
    kind_type = kind.type if control.types else ""
    return format_controls([Control(control.name, type=kind_type, preprocessor=kind.preprocessor)])


def _label(kind: Kind, control: ControlFacts, *, alone: bool) -> str:
    label = i18n.FOLLOWED[kind.name]
    return label if alone and kind is not _OTHER else f"{label} ({control.name})"
