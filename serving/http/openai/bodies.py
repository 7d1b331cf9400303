"""Bodies of calls of the OpenAI API."""

from collections.abc import Collection
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from pipeline.images import metadata
from serving.http import schemas
from serving.http.bodies import File, Lenient
from serving.logs import loggable
from serving.requests.inputs import Input, Size

MAX_N = 10


def _refuse_transparency(background: Any) -> Any:
    if background == "transparent":
        raise PydanticCustomError(
            "transparent", "transparent is not possible here; use 'opaque' or 'auto'"
        )
    return background


# OpenAI's models whose answers have URLs unless a call says otherwise.
URL_MODELS = ("dall-e-2", "dall-e-3")
# Parameters that change nothing here, and their values that change nothing anywhere.
_AUTO = ("auto",)
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "complexity": _AUTO,
    "frame_count": _AUTO,
    "frame_duration_ms": _AUTO,
    "input_fidelity": _AUTO,
    "moderation": _AUTO,
    "quality": _AUTO,
    "safety_identifier": _AUTO,
    "style": _AUTO,
    "svg": _AUTO,
    "user": _AUTO,
}
Background = Annotated[Literal["auto", "opaque"] | None, BeforeValidator(_refuse_transparency)]


class ImagesBody(Lenient, schemas.Body):
    """OpenAI's parameters, and the settings that every request here can have.

    Every parameter may be null. Unknown ones are ignored, so that newer clients work.
    """

    model_config = ConfigDict(extra="allow")
    neutral = NEUTRAL

    n: int | None = Field(1, ge=1, le=MAX_N, description="Number of pictures.")
    size: str | None = Field(
        "auto",
        pattern=f"^(auto|{schemas.SIZE})$",
        description="Width and height in pixels, such as 1024x1024.",
    )
    response_format: Literal["b64_json", "url"] | None = Field(
        None,
        description="A URL can be fetched for an hour, without a key. The default is b64_json, but "
        f"url for {' and '.join(URL_MODELS)}.",
    )
    output_format: Literal["png", "jpeg", "webp"] | None = "png"
    output_compression: int | None = Field(
        None,
        ge=0,
        le=100,
        description=f"Quality of JPEG and WebP files, {metadata.QUALITY} unless given.",
    )
    background: Background = "auto"
    stream: bool | None = False
    partial_images: int | None = Field(
        0, ge=0, le=3, description="Number of previews to send; needs `stream`."
    )
    model: str | None = Field(
        None, max_length=200, description="One of `/v1/models`; another name is ignored."
    )

    @property
    def wants_urls(self) -> bool:
        """Whether the answer has the files' URLs."""
        default = "url" if self.model in URL_MODELS else "b64_json"
        return (self.response_format or default) == "url"

    @property
    def asked_size(self) -> Size | None:
        """The size that the files get; None for that in which they are drawn."""
        return schemas.parse_size(None if self.size in (None, "auto") else self.size)


def _one_file(value: Any) -> Any:
    """Return the one file of a list, or of OpenAI's object with a URL."""
    if isinstance(value, list):
        if len(value) != 1:
            message = "{count} pictures are sent; exactly one can be used here"
            raise PydanticCustomError("one_picture", message, {"count": len(value)})
        value = value[0]
    return value.get("image_url") if isinstance(value, dict) else value


OneFile = Annotated[File, BeforeValidator(_one_file)]


class VariationBody(ImagesBody):
    """A call for pictures like another one."""

    prompt: schemas.Texts = ""
    image: OneFile = Field(
        description="A PNG, JPEG or WebP file; in JSON as base64 or a data URL.",
        validation_alias=AliasChoices("image", "images"),
        repr=False,
    )

    def take_input(self) -> Input:
        """Return the picture, which the body does not keep."""
        files = replace(super().take_input(), image=self.image, any_size=True)
        self.image = b""
        return files


class EditBody(VariationBody):
    """A call that redraws a picture, or its transparent part."""

    prompt: schemas.Texts
    mask: OneFile | None = Field(
        None,
        description="A file of the image's size; its transparent part is redrawn. Without it, the "
        "image's own transparent part is, or else all of the image.",
        repr=False,
    )

    def take_input(self) -> Input:
        """Return the picture and its mask, which the body does not keep."""
        files = replace(super().take_input(), mask=self.mask, redrawn="transparent")
        self.mask = None
        return files


def ignored(body: ImagesBody, models: Collection[str]) -> list[str]:
    """Return the names of the parameters that change nothing, for the log."""
    names: list[str] = []
    if body.model not in (None, *models):
        names.append("model")
    if body.output_compression is not None and body.output_format in (None, "png"):
        names.append("output_compression")
    if body.partial_images and not body.stream:
        names.append("partial_images")
    return loggable([*names, *body.ignored])
