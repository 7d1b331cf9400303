"""Errors over HTTP, all in the OpenAI API's format: message, field and kind."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from serving import messages
from serving.generator import Error, ErrorKind, RequestError

_STATUS: dict[str, int] = {
    ErrorKind.INVALID: 400,
    ErrorKind.BLOCKED: 400,
    ErrorKind.UNAUTHORISED: 401,
    ErrorKind.FORBIDDEN: 403,
    ErrorKind.UNKNOWN: 404,
    ErrorKind.DUPLICATE: 409,
    ErrorKind.CANCELLED: 409,
    ErrorKind.ABANDONED: 409,
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
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"]
# Default of Retry-After, for errors that end at an unknown time.
_RETRY_AFTER_S = 5


def error_body(kind: str, message: str, field: str | None = None) -> dict[str, Any]:
    """Return the JSON body of an error."""
    status = _STATUS.get(kind, 400)
    blame = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    kinds = {429: "rate_limit_error", 401: "authentication_error"}
    return {
        "error": {
            "message": message,
            "type": kinds.get(status, blame),
            "param": field,
            "code": kind,
        }
    }


def as_refusal(error: Error) -> RequestError:
    """Convert the ending of a request to an exception, so that it can be answered."""
    return RequestError(error.message, error.kind)


def first_fault(faults: Sequence[Mapping[str, Any]]) -> tuple[str, str | None]:
    """Return the first of pydantic's errors as a message and a field, without the value sent."""
    first = faults[0]
    if first["type"] == "json_invalid":
        return f"The body is no JSON: {first['ctx']['error']}", None
    names = [str(part)[:40] for part in first["loc"] if part != "body"]
    field = names[0] if names else None
    return f"{field or 'The body'}: {first['msg']}", field


def install(app: FastAPI) -> None:
    """Answer all errors of an application in this format."""
    app.add_exception_handler(RequestError, _refused)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _plain)
    app.add_exception_handler(Exception, _broken)  # uvicorn logs it too


def router() -> APIRouter:
    """Return the route that answers 404 for unknown paths under /v1."""
    routes = APIRouter()

    @routes.api_route("/v1/{path:path}", methods=_METHODS, include_in_schema=False)
    async def nothing(path: str) -> None:
        raise HTTPException(404)

    return routes


def refusal(error: RequestError) -> JSONResponse:
    """Return the answer to a refused request."""
    status = _STATUS[error.kind]
    headers = {}
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s or _RETRY_AFTER_S)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error.kind, str(error), error.field), status, headers)


def _refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return refusal(error)


def _not_valid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message, field = first_fault(error.errors())
    return JSONResponse(error_body(ErrorKind.INVALID, message, field), 400)


def plain(error: HTTPException) -> JSONResponse:
    """Return the answer for an `HTTPException`, which has a status but no `ErrorKind`."""
    body = error_body(f"http_{error.status_code}", str(error.detail))
    return JSONResponse(body, error.status_code, error.headers)


def too_large(most: int) -> JSONResponse:
    """Return the answer to a body of more than `most` bytes; Gradio's page shows its `detail`."""
    message = messages.too_large(most)
    return JSONResponse(error_body("http_413", message) | {"detail": message}, 413)


def _plain(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return plain(error)


def _broken(_: Request, error: Exception) -> JSONResponse:
    return refusal(RequestError(messages.BROKEN, ErrorKind.FAILED))
