"""Requests and events as JSON, for clients over HTTP and between instances."""

import base64
import dataclasses
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    create_model,
    model_validator,
)

from pipeline.facts import Facts
from pipeline.request import MAX_IMAGES, SETTINGS, with_own_names
from pipeline.schedulers.config import MAX_INFERENCE_STEPS
from pipeline.setting_kinds import (
    SIZE,
    VARIATIONS,
    Choice,
    Controls,
    Loras,
    Number,
    Setting,
    Timesteps,
    Variations,
    parse_size,
    parse_timesteps,
)
from pipeline.text.controls import (
    DEFAULTS,
    MAX_CONTROLS,
    Control,
    checked,
    format_controls,
    parse_controls,
)
from pipeline.text.loras import LORA_NAME, MAX_LORAS, MAX_WEIGHT, is_lora_name
from pipeline.text.prompt_syntax import PLAIN, SYNTAXES
from serving.generator import (
    MAX_CHARACTERS,
    Done,
    Error,
    Event,
    Image,
    Preview,
    Queued,
    Request,
    Started,
    Step,
    new_id,
)
from serving.http.bodies import File
from serving.messages import Message, untranslated
from serving.requests.inputs import ControlFiles, Input

ID = r"^[A-Za-z0-9_-]{16,64}$"  # of a request
MAX_NAME = 100  # characters; the longest is far shorter
_EVENTS: dict[str, type[Event]] = {
    "queued": Queued,
    "started": Started,
    "step": Step,
    "preview": Preview,
    "image": Image,
    "done": Done,
    "error": Error,
}
# Made once for each kind: making a reader takes far longer than reading an event with it.
_READERS = {name: TypeAdapter[Event](kind) for name, kind in _EVENTS.items()}
_MESSAGE = TypeAdapter(Message)
_FILES = {"png", "jpegs", "unblurred"}
_NAMES = {kind: name for name, kind in _EVENTS.items()}

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Texts = Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_IMAGES)]
_Weight = Annotated[float, Field(ge=-MAX_WEIGHT, le=MAX_WEIGHT)]
_Weights = _Weight | Annotated[list[_Weight], Field(min_length=2, max_length=2)]
_Name = Annotated[str, Field(max_length=MAX_NAME)]
_Timestep = Annotated[int, Field(ge=0)]


def _lora_name(name: str) -> str:
    if not is_lora_name(name):  # a pattern cannot tell which characters are printable
        raise ValueError("a name has printable characters alone")
    return name


_LoraName = Annotated[str, Field(pattern=f"^{LORA_NAME}$"), AfterValidator(_lora_name)]
_LoraWeights = dict[_LoraName, _Weights]


# By the type of a value's default.
_CONTROL_TYPES: dict[Any, Any] = {str: _Name, type(None): float | None}
_CONTROL_FIELDS: Any = {
    name: (_CONTROL_TYPES.get(type(default), type(default)), default)
    for name, default in DEFAULTS.items()
}
_ControlValues: Any = create_model("_ControlValues", **_CONTROL_FIELDS)


class ControlBody(_ControlValues):
    """A picture to follow through a ControlNet; see `pipeline.text.controls.Control`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: _LoraName
    image: File | None = Field(
        None, description="The picture to follow; that to start from if None.", repr=False
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        checked(self.control)
        return self

    @property
    def control(self) -> Control:
        """The control without its picture."""
        return Control(**self.model_dump(exclude={"image"}))


def _field(setting: Setting) -> tuple[Any, Any]:
    """Return the type and the field of a setting in the body of a request."""
    kind: Any = Texts
    limits: dict[str, Any] = {}
    nullable = bool(setting.absent_note) or setting.default is None
    if isinstance(setting, Number):
        kind, limits = setting.kind, {"ge": setting.low, "le": setting.any_high or setting.high}
    if isinstance(setting, Variations):
        kind, limits = setting.kind, {"pattern": f"^{VARIATIONS}$"}
    if isinstance(setting, Loras):
        kind, limits, nullable = _LoraWeights, {"max_length": MAX_LORAS}, True
    if isinstance(setting, Controls):
        kind, limits, nullable = list[ControlBody], {"max_length": MAX_CONTROLS}, True
    if isinstance(setting, Choice):
        kind, limits = _Name, {"examples": [*setting.choices]}
    if isinstance(setting, Timesteps):
        kind, limits, nullable = list[_Timestep], {"max_length": MAX_INFERENCE_STEPS}, True
    return kind | None if nullable else kind, Field(
        None if nullable else setting.default,
        description=f"{setting.description} {setting.absent_note}".strip(),
        **limits,
    )


_FIELDS: Any = {name: _field(setting) for name, setting in SETTINGS.items()}
_Settings: Any = create_model("_Settings", **_FIELDS)


class Body(_Settings):
    """Fields that all requests for pictures have; an unknown field is an error.

    It has a field for each of `pipeline.request.SETTINGS`.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def take_input(self) -> Input:
        """Return the files, which the body does not keep."""
        controls = self.controls or []
        pictures = (
            None if control.image is None else ControlFiles(control.image) for control in controls
        )
        files = Input(followed=tuple(pictures))
        for control in controls:
            control.image = None
        return files


class FromPictureBody(Body):
    """Fields of requests that may start from a picture."""

    image: File | None = Field(
        None, description="Picture to start from: a PNG, JPEG or WebP file.", repr=False
    )
    mask: File | None = Field(
        None, description="Part of `image` to redraw, in white; of the same size.", repr=False
    )

    def take_input(self) -> Input:
        """Return the files, which the body does not keep."""
        files = dataclasses.replace(super().take_input(), image=self.image, mask=self.mask)
        self.image = self.mask = None
        return files


class GenerateBody(FromPictureBody):
    """A request for pictures, which is answered with a stream of events."""

    images: int | None = Field(
        None,
        ge=1,
        le=MAX_IMAGES,
        description="Number of pictures; if None, as many as are drawn at once.",
    )
    size: str | None = Field(
        None, pattern=f"^{SIZE}$", description="Width and height in pixels, such as 1024x1024."
    )
    id: str | None = Field(
        None,
        pattern=ID,
        description="The request's id; clients that know it can follow and stop the request.",
    )
    keep: bool = Field(False, description="Go on for a while after the last client disconnects.")
    previews: bool = Field(False, description="Send `preview` events as well.")
    unblurred: bool = Field(
        False, description="Send a blurred picture's original with it, if it may be shown."
    )
    live: bool = Field(
        False,
        description="Draw one picture in few steps, after all other requests, and send it as a "
        "`preview`. The next one of the same client replaces it.",
    )


class LengthBody(BaseModel):
    """A prompt whose tokens are to be counted, and the settings that decide how it is read."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: Text
    prompt_syntax: _Name = Field(PLAIN, examples=[*SYNTAXES], description="Its syntax.")
    num_inference_steps: int | None = Field(
        None,
        ge=1,
        le=MAX_INFERENCE_STEPS,
        description="The steps of the run; the model's default if None.",
    )


def to_request(body: Body, facts: Facts, *, visitor: str, address: str, **fields: Any) -> Request:
    """Return the request of a body; a seed that is None is chosen at random."""
    values = {}
    for name, setting in SETTINGS.items():
        value: Any = getattr(body, name)
        if isinstance(setting, Loras):
            value = setting.checked(value)
        if isinstance(setting, Controls):
            value = format_controls([entry.control for entry in value or ()])
        if isinstance(setting, Timesteps):
            value = ",".join(map(str, value or ()))  # `admission` checks their order
        values[name] = setting.absent_value() if value is None else _frozen(value)
    return Request(**with_own_names(values), visitor=visitor, address=address, **fields)


def generate_fields(body: GenerateBody) -> dict[str, Any]:
    """Return the fields of a request that only a `GenerateBody` has."""
    return {
        "images": body.images,
        "size": parse_size(body.size),
        "id": body.id or new_id(),
        "keep": body.keep,
        "previews": body.previews,
        "unblurred": body.unblurred,
        "live": body.live,
    }


def from_request(request: Request) -> dict[str, Any]:
    """Return the JSON body that asks another instance for this request's pictures.

    Settings that change nothing are left out, because older instances may not know them.
    """
    fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    del fields["visitor"], fields["address"], fields["digest"]
    for name in ("image", "mask"):
        file = fields.pop(name)
        if file is not None:
            fields[name] = _encoded(file)
    controls, files = parse_controls(request.controls), fields.pop("followed")
    fields["controls"] = [
        {**_control_values(control), "image": file and _encoded(file)}
        for control, file in zip_longest(controls, files)
    ]
    fields["loras"] = request.lora_weights
    fields["timesteps"] = parse_timesteps(request.timesteps)
    fields["size"] = None if request.size is None else "{}x{}".format(*request.size)
    without_effect = [
        name
        for name, setting in SETTINGS.items()
        if setting.optional and getattr(request, name) == setting.default
    ]
    if not request.live:
        without_effect.append("live")
    return {name: value for name, value in fields.items() if name not in without_effect}


def _control_values(control: Control) -> dict[str, Any]:
    return {name: getattr(control, name) for name in ("name", *DEFAULTS)}


def from_event(event: Event) -> tuple[str, dict[str, Any]]:
    """Return an event's name and its JSON fields; files are in base64."""
    fields = asdict(event)
    if isinstance(event, Error):
        fields |= {"message": str(event.message), **asdict(event.message)}
    for name in _FILES & fields.keys():
        fields[name] = _map_files(_encoded, fields[name])
    return _NAMES[type(event)], fields


def to_event(name: str, data: str) -> Event:
    """Return the event from the name and the JSON that `from_event` made of it.

    Raises:
        ValueError: if they are not a valid event.
    """
    if name not in _READERS:
        raise ValueError(f"the event {name[:40]!r} is unknown")
    fields = json.loads(data)
    if not isinstance(fields, dict):
        raise ValueError(f"the event {name!r} has no fields")
    for field in _FILES & fields.keys():
        fields[field] = _map_files(partial(base64.b64decode, validate=True), fields[field])
    if name == "error" and "message" in fields:
        code, params = fields.pop("code", None), fields.pop("params", None)
        fields["message"] = to_message(str(fields["message"]), code, params)
    return _READERS[name].validate_python(fields)


def to_message(text: str, code: object, params: object) -> Message:
    """Rebuild the message that another instance sent as its text, its code and its parameters.

    If this version does not know the code, or expects other parameters, the result has the English
    text alone.
    """
    try:
        message = _MESSAGE.validate_python({"code": code, "params": params})
        str(message)  # fails if a parameter is missing or of a wrong type
    except (ValueError, KeyError, TypeError, OverflowError):
        return untranslated(text)
    return message


def _map_files(change: Callable[[Any], Any], files: Any) -> Any:
    """Apply `change` to one file, or to each of several; return None for None."""
    if files is None:
        return None
    return [change(file) for file in files] if isinstance(files, list | tuple) else change(files)


def _encoded(file: bytes) -> str:
    return base64.b64encode(file).decode()


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
