"""Errors in the formats of AUTOMATIC1111's API."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.http.bodies import MOST_FAULTS

_INVALID = (ErrorKind.INVALID, ErrorKind.BLOCKED)


class PythonError(Exception):
    """An error that AUTOMATIC1111 answers with the name of an exception in its own code."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


class A1111Route(APIRoute):
    """A route whose errors have AUTOMATIC1111's formats."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the function that answers a call."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await handler(request)
            except RequestValidationError as error:
                return _not_valid(error)
            except PythonError as error:
                return _problem(500, error.name, "", str(error))
            except HTTPException as error:
                text = f"{error.status_code}: {error.detail}"
                return _problem(error.status_code, "HTTPException", error.detail, text)
            except RequestError as error:
                return _refused(error, request)

        return handle


def _refused(error: RequestError, request: Request) -> Response:
    """Return the answer to a refused request, with this program's message."""
    status, headers = errors.status_of(error, request.scope)
    if error.kind in _INVALID:
        status = 422
    answer = _problem(status, "HTTPException", str(error.message), f"{status}: {error.message}")
    answer.headers.update(headers)
    return answer


def _problem(status: int, name: str, detail: str, text: str) -> JSONResponse:
    return JSONResponse({"error": name, "detail": detail, "body": "", "errors": text}, status)


def _not_valid(error: RequestValidationError) -> JSONResponse:
    """Return FastAPI's own answer to a wrong body, without the values sent."""
    faults = [
        {key: fault[key] for key in ("type", "loc", "msg")}
        for fault in error.errors()[:MOST_FAULTS]
    ]
    for fault in faults:
        fault["loc"] = [part if isinstance(part, int) else str(part)[:40] for part in fault["loc"]]
    return JSONResponse({"detail": faults}, 422)
