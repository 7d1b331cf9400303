"""Errors over HTTP, all in the OpenAI API's format: message, field and kind."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Scope

from serving.generator import Error, ErrorKind, RequestError
from serving.messages import Code, Message, untranslated

# Returns a message in the language of an Accept-Language header.
Translate: TypeAlias = Callable[[Message, str], str]

_STATUS: dict[str, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.BLOCKED: 400,
    ErrorKind.UNAUTHORISED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.UNKNOWN: 404,
    ErrorKind.DUPLICATE: 409,
    ErrorKind.CANCELLED: 409,
    ErrorKind.ABANDONED: 409,
    ErrorKind.HTTP_413: 413,
    ErrorKind.MISDIRECTED: 421,
    ErrorKind.FULL: 429,
    ErrorKind.TOO_MANY: 429,
    ErrorKind.FAILED: 500,
    ErrorKind.OUT_OF_MEMORY: 503,
    ErrorKind.STOPPING: 503,
    ErrorKind.UNAVAILABLE: 503,
    ErrorKind.DEADLINE: 504,
    ErrorKind.LOOP: 508,
}
# Paths of AUTOMATIC1111's API and its ControlNet extension; clients send keys as passwords.
A1111_PATHS = "/sdapi/", "/controlnet/"
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
# Default of Retry-After, for errors that end at an unknown time.
_RETRY_AFTER_S = 5


def error_body(kind: str, message: Message, field: str | None = None) -> dict[str, Any]:
    """Return the JSON body of an error."""
    status = _STATUS.get(kind, 400)
    blame = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    kinds = {429: "rate_limit_error", 401: "authentication_error"}
    return {
        "error": {
            "message": str(message),
            "type": kinds.get(status, blame),
            "param": field,
            "code": kind,
            "message_code": message.code,
            "message_params": dict(message.params),
        }
    }


def as_refusal(error: Error) -> RequestError:
    """Convert the ending of a request to an exception, so that it can be answered."""
    return RequestError(error.message, error.kind)


def first_fault(faults: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Return the first of pydantic's errors as a message and a field, without the value sent."""
    fault = faults[0]
    if fault["type"] == "json_invalid":
        return f"The body is not JSON: {fault['ctx']['error']}", None
    names = [str(part)[:40] for part in fault["loc"] if part != "body"]
    field = names[0] if names else None
    return f"{field or 'The body'}: {fault['msg']}", field


def install(app: FastAPI) -> None:
    """Answer all errors of an application in this format, with texts in English."""
    app.state.translate = _in_english
    # Asynchronous, because others would need one of the threads that work of strangers may fill.
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(Exception, _broken)  # uvicorn logs it too


def router() -> APIRouter:
    """Return the routes that answer 404 for unknown paths of the APIs."""
    routes = APIRouter()

    @routes.api_route("/v1/{path:path}", methods=_METHODS, include_in_schema=False)
    async def nothing(path: str) -> None:
        raise HTTPException(404)

    async def nothing_there(path: str) -> JSONResponse:
        return JSONResponse({"detail": "Not Found"}, 404)

    for root in A1111_PATHS:
        routes.api_route(root + "{path:path}", methods=_METHODS, include_in_schema=False)(
            nothing_there
        )

    return routes


def translated(message: Message, scope: Scope) -> str:
    """Return a message in the language of the visitor whose browser sent the request of `scope`.

    The page puts its translation into the application's state (`Translate`).
    """
    app = scope.get("app")  # missing if the middleware is used by itself
    translate: Translate = app.state.translate if app else _in_english
    return translate(message, Headers(scope=scope).get("accept-language", ""))


def refusal(error: RequestError, scope: Scope) -> Response:
    """Return the answer to the refused request of `scope`: words for visitors, else JSON."""
    status, headers = status_of(error, scope)
    if "text/html" in Headers(scope=scope).get("accept", ""):
        return PlainTextResponse(translated(error.message, scope), status, headers)
    body = error_body(error.kind, error.message, error.field) | _detail(error.message, scope)
    return JSONResponse(body, status, headers)


def status_of(error: RequestError, scope: Scope) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of the answer to the refused request of `scope`."""
    status = _STATUS[error.kind]
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or _RETRY_AFTER_S)))
    if status == 401:
        headers["WWW-Authenticate"] = "Basic" if scope["path"].startswith(A1111_PATHS) else "Bearer"
    return status, headers


def _detail(message: Message, scope: Scope) -> dict[str, str]:
    """Return the field that Gradio's page shows to visitors; the API's answers have none."""
    return {} if scope["path"].startswith("/v1/") else {"detail": translated(message, scope)}


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return refusal(error, request.scope)


async def _not_valid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message, field = first_fault(error.errors())
    return JSONResponse(error_body(ErrorKind.INVALID, untranslated(message), field), 400)


def plain(error: HTTPException) -> JSONResponse:
    """Return the answer for an `HTTPException`, which has a status but no `ErrorKind`."""
    body = error_body(f"http_{error.status_code}", untranslated(str(error.detail)))
    return JSONResponse(body, error.status_code, error.headers)


async def _plain(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return plain(error)


async def _broken(request: Request, error: Exception) -> Response:
    return refusal(RequestError(Message(Code.BROKEN), ErrorKind.FAILED), request.scope)


def _in_english(message: Message, _accept_language: str) -> str:
    return str(message)
