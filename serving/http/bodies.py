"""Bodies of calls with pictures, as JSON or as a form; they are read here rather than by FastAPI.

FastAPI would keep a body until its answer ends, which may take minutes.
"""

import base64
import binascii
import json
import re
import string
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from email.message import Message as Headers
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Self, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from serving.http.addresses import address_of
from serving.http.json_tokens import JsonTokens
from serving.http.limits import BoundedBody, body_of
from serving.requests import readers

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")

FORM = "multipart/form-data"
_MAX_FILES, _MAX_FIELDS = 20, 100  # of a form
_MOST_IGNORED, _MAX_NAME = 100, 100  # names of unknown fields that are kept, and their characters
MOST_FAULTS = 10  # of a body that are reported
IN_A_THREAD = 2**20  # bytes of a body from which on it is parsed beside the event loop
_URL = re.compile(r"[a-z][a-z0-9+.-]{0,20}://", re.IGNORECASE)
_SPACES = string.whitespace.encode()
_JSON = re.compile(r"application/.+\+json")
_PARTS = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")  # a field's name: loras[pixel], image[]


def _content(value: Any) -> Any:
    """Return the bytes of a file that is given as base64 or as a data URL."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _not_a_file()
    if _URL.match(value):
        raise PydanticCustomError("url", "URLs are not fetched; send the file itself in base64")
    head, comma, data = value.partition(",")
    if head.startswith("data:") and not (comma and head.endswith(";base64")):
        raise PydanticCustomError("data_url", "expected a data URL such as data:image/png;base64,…")
    text = data if comma else value
    try:
        return base64.b64decode(text.encode("ascii").translate(None, _SPACES), validate=True)
    except (binascii.Error, ValueError):
        raise _not_a_file() from None


def _not_a_file() -> PydanticCustomError:
    return PydanticCustomError("base64", "expected a file in base64, or a data URL")


File = Annotated[
    bytes,
    BeforeValidator(_content),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


class Lenient(BaseModel):
    """Fields of a body whose unknown fields are ignored: only their names are kept.

    A value may be large, and a call may wait for minutes.
    """

    model_config = ConfigDict(extra="allow")

    # Fields that may be sent, with the values that change nothing. A null changes nothing anywhere.
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    _ignored: list[str] = PrivateAttr(default_factory=list)

    @model_validator(mode="after")
    def _drop_unknown(self) -> Self:
        """Keep the values that change nothing, and the names of the others."""
        extra = self.model_extra
        assert extra is not None
        for name in [*extra]:
            changes = extra[name] is not None and extra[name] not in self.neutral.get(name, ())
            if changes and len(self._ignored) < _MOST_IGNORED:
                self._ignored.append(name[:_MAX_NAME])
            if changes or name not in self.neutral:
                del extra[name]
        return self

    @property
    def ignored(self) -> list[str]:
        """The names of the unknown fields whose values may change something elsewhere."""
        return self._ignored


def description(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a route's OpenAPI description that tells of its body."""
    schema = kind.model_json_schema()
    properties = {
        name: {"type": "string", "format": "binary"} if _is_file(field) else field
        for name, field in schema["properties"].items()
    }
    content = {
        "application/json": {"schema": schema},
        FORM: {"schema": {**schema, "properties": properties}},
    }
    return {"requestBody": {"required": True, "content": content}}


def _is_file(schema: dict[str, Any]) -> bool:
    return any("contentEncoding" in variant for variant in (schema, *schema.get("anyOf", ())))


async def read(sender: Request, kind: type[B]) -> B:
    """Return the fields of a call's body, which has no files; see `parse`."""
    async with received(sender, kind) as body:
        return body


@asynccontextmanager
async def received(sender: Request, kind: type[B]) -> AsyncGenerator[B]:
    """Have the fields of a call's body, whose files count until the block ends; see `parse`."""
    with body_of(sender) as body:
        yield await parse(sender, body, kind)


async def parse(sender: Request, body: BoundedBody, kind: type[B]) -> B:
    """Read the body of a call as the fields of a model.

    Raises:
        RequestValidationError: if it is not such a body, or has a wrong value.
        RequestError: if it is too large or too slow, or too many are being read.
    """
    headers = Headers()
    # Some clients leave it out; FastAPI, which other servers use, then reads JSON.
    headers["content-type"] = sender.headers.get("content-type") or "application/json"
    media_type = headers.get_content_type()
    if media_type == FORM:
        async with body.form(_MAX_FILES, _MAX_FIELDS) as form:
            return validated(kind, await _form_values(form, kind))
    if media_type != "application/json" and not _JSON.fullmatch(media_type):
        raise _fault("media_type", f"expected application/json or {FORM}")
    content = await body.read_json()
    return await in_turn(sender, content, partial(_from_json, kind))


async def in_turn(sender: Request, content: bytes, work: Callable[[bytes], T]) -> T:
    """Return what `work` makes of a body; a large one is parsed beside the event loop.

    Raises:
        RequestError: if too many are being parsed.
    """
    if len(content) < IN_A_THREAD:
        return work(content)
    return await readers.of_bodies().run(address_of(sender), partial(work, content))


def _from_json(kind: type[B], content: bytes) -> B:
    return validated(kind, _json_values(content))


def validated(kind: type[B], values: Any) -> B:
    """Return the fields of a model.

    Raises:
        RequestValidationError: if a value is wrong; without the values sent.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)[:MOST_FAULTS]
        errors = [{**fault, "loc": ("body", *fault["loc"])} for fault in faults]
        raise RequestValidationError(errors) from None


def _json_values(content: bytes) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise _fault("json_invalid", "", error=error.msg) from None
    except UnicodeDecodeError:
        raise _fault("json_invalid", "", error="it is not in UTF-8") from None
    except RecursionError:
        raise _fault("json_invalid", "", error="it is nested too deeply") from None
    except ValueError:  # Python's limit on the digits of an integer
        raise _fault("json_invalid", "", error="a number in it has too many digits") from None


def _fault(kind: str, message: str, **context: str) -> RequestValidationError:
    fault = {"type": kind, "loc": ("body",), "msg": message, "ctx": context}
    return RequestValidationError([fault])


async def _form_values(form: FormData, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the values of a form's fields, with the types that the model's fields have.

    Fields such as `loras[pixel]` and `timesteps[]` make up objects and lists, as OpenAI's client
    sends them. A repeated field is a list. Unknown files are not read.
    """
    schemas = _properties(kind)
    values: dict[str, Any] = {}
    tokens = JsonTokens()
    for name, value in form.multi_items():
        parts = _PARTS.fullmatch(name)
        field, keys = parts.groups() if parts else (name, "")
        if isinstance(value, UploadFile):
            content: Any = await value.read() if field in schemas else ""
        else:
            content = _typed(value, schemas.get(field, {}), tokens)
        if (key := keys[1:-1]) and "[" not in key:
            values.setdefault(field, {})
            if isinstance(values[field], dict):
                values[field][key] = content
        elif keys:
            values[field] = [*_listed(values.get(field, [])), content]
        else:
            values[field] = [*_listed(values[field]), content] if field in values else content
    return values


@cache
def _properties(kind: type[BaseModel]) -> dict[str, Any]:
    return kind.model_json_schema().get("properties", {})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _typed(text: str, schema: dict[str, Any], tokens: JsonTokens) -> Any:
    """Return the value of a form's field: the text itself where a text is possible.

    Raises:
        RequestError: if the form has too many tokens of JSON, which `tokens` counts.
    """
    types = [variant.get("type") for variant in schema.get("anyOf", [schema])]
    if "string" in types and text:
        return text
    if not text:
        return None if "null" in types else text
    tokens.add(text.encode("utf-8", "surrogatepass"))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
