"""Bodies of calls with pictures, as JSON or as a form; they are read here rather than by FastAPI.

FastAPI would keep a body until its answer ends, which may take minutes.
"""

import base64
import binascii
import json
import re
from email.message import Message as Headers
from functools import cache
from typing import Annotated, Any, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData, UploadFile
from starlette.requests import ClientDisconnect, Request

from serving.generator import RequestError
from serving.messages import Code, Message

B = TypeVar("B", bound=BaseModel)

FORM = "multipart/form-data"
_MAX_FILES, _MAX_FIELDS = 20, 100  # of a form
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
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
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise _not_a_file() from None


def _not_a_file() -> PydanticCustomError:
    return PydanticCustomError("base64", "expected a file in base64, or a data URL")


File = Annotated[
    bytes,
    BeforeValidator(_content),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]


def description(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the part of a route's OpenAPI description that tells of its body."""
    schema = kind.model_json_schema()
    properties = {
        name: {"type": "string", "format": "binary"} if _is_file(each) else each
        for name, each in schema["properties"].items()
    }
    content = {
        "application/json": {"schema": schema},
        FORM: {"schema": {**schema, "properties": properties}},
    }
    return {"requestBody": {"required": True, "content": content}}


def _is_file(schema: dict[str, Any]) -> bool:
    return any("contentEncoding" in each for each in (schema, *schema.get("anyOf", ())))


async def read(sender: Request, kind: type[B]) -> B:
    """Return the body of a call.

    Raises:
        RequestValidationError: if it is not such a body, or has a wrong value.
        RequestError: if it does not arrive in time.
    """
    try:
        values = await _values(sender, kind)
    except ClientDisconnect:
        raise RequestError(Message(Code.UPLOAD_TOO_SLOW)) from None
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        located = [{**each, "loc": ("body", *each["loc"])} for each in faults]
        raise RequestValidationError(located) from None


async def _values(sender: Request, kind: type[BaseModel]) -> Any:
    headers = Headers()
    headers["content-type"] = sender.headers.get("content-type", "")
    media_type = headers.get_content_type()
    if media_type == FORM:
        async with sender.form(max_files=_MAX_FILES, max_fields=_MAX_FIELDS) as form:
            return await _form_values(form, kind)
    if media_type == "application/json" or re.fullmatch(r"application/.+\+json", media_type):
        return _json_values(b"".join([part async for part in sender.stream()]))
    raise _fault("media_type", f"expected application/json or {FORM}")


def _json_values(content: bytes) -> Any:
    try:
        return json.loads(content)
    except json.JSONDecodeError as error:
        raise _fault("json_invalid", "", error=error.msg) from None
    except (ValueError, RecursionError):
        raise _fault("json_invalid", "", error="it is nested too deeply") from None


def _fault(kind: str, message: str, **context: str) -> RequestValidationError:
    fault = {"type": kind, "loc": ("body",), "msg": message, "ctx": context}
    return RequestValidationError([fault])


async def _form_values(form: FormData, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the values of a form's fields, with the types that the model's fields have.

    Fields such as `loras[pixel]` and `timesteps[]` make up objects and lists, as OpenAI's client
    sends them. A repeated field is a list. Unknown files are not read.
    """
    known = _properties(kind)
    values: dict[str, Any] = {}
    for name, value in form.multi_items():
        parts = _PARTS.fullmatch(name)
        field, keys = parts.groups() if parts else (name, "")
        if isinstance(value, UploadFile):
            found: Any = await value.read() if field in known else None
        else:
            found = _typed(value, known.get(field, {}))
        if (key := keys[1:-1]) and "[" not in key:
            values.setdefault(field, {})
            if isinstance(values[field], dict):
                values[field][key] = found
        elif keys:
            values[field] = [*_listed(values.get(field, [])), found]
        else:
            values[field] = [*_listed(values[field]), found] if field in values else found
    return values


@cache
def _properties(kind: type[BaseModel]) -> dict[str, Any]:
    return kind.model_json_schema()["properties"]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _typed(text: str, schema: dict[str, Any]) -> Any:
    """Return the value of a form's field: the text itself where a text is possible."""
    possible = [each.get("type") for each in schema.get("anyOf", [schema])]
    if "string" in possible and text:
        return text
    if not text:
        return None if "null" in possible else text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
