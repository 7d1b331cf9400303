"""Checks of every call to Gradio's routes, made before Gradio sees the call.

Gradio opens the files and fetches the URLs that a call names, remembers every session id that a
client makes up, and logs a traceback for malformed calls. So only calls that its page could have
made are passed on to it.
"""

import json
import logging
import re
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

import gradio as gr
from gradio.block_function import BlockFunction
from starlette import types
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.http.addresses import address_of
from serving.http.auth import ApiKeys
from serving.http.json_tokens import encoded
from serving.http.limits import replayed
from serving.messages import Code, Message
from ui.gradio_compat.sessions import Sessions
from ui.gradio_compat.uploads import Uploads

log = logging.getLogger(__name__)

_CALL = re.compile(r"/gradio_api/((?P<kind>call/v2|call|api|run|queue/join)(/(?P<name>[^/]+))?)/?")
_STREAM = re.compile(
    r"/gradio_api/(heartbeat/(?P<session>[^/]*)|queue/data|call/(v2/)?[^/]+/(?P<event>[^/]*))/?"
)
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FIELDS = {"data", "event_data", "event_id", "fn_index", "session_hash", "trigger_id"}
_FILE_ADDRESS = "/gradio_api/file="
# Most lists and objects inside each other; the page's own calls have fewer.
_MOST_DEPTH = 32
# The answer to a page that follows the events of a session that is gone. Gradio would send the same
# and log a traceback.
_NO_SESSION = Response(
    'data: {"msg": "unexpected_error", "message": "404: Not Found", "success": false, '
    '"session_not_found": true}\n\n',
    media_type="text/event-stream",
)


class CheckedCalls:
    """Middleware that passes only calls with known functions, short ids and uploaded files."""

    def __init__(
        self,
        app: ASGIApp,
        page: gr.Blocks,
        sessions: Sessions,
        uploads: Uploads,
        keys: ApiKeys,
    ) -> None:
        self._app = app
        # Functions of the browser alone have no `fn`: the page never calls them here.
        self._functions = {
            index: function for index, function in page.fns.items() if function.fn is not None
        }
        self._public = {
            function.api_name: function
            for function in page.fns.values()
            if function.api_visibility == "public"
        }
        endpoints = page.get_api_info()["named_endpoints"]
        self._parameters = {
            name: {
                parameter["parameter_name"]: parameter
                for parameter in endpoints[f"/{name}"]["parameters"]
            }
            for name in self._public
        }
        self._sessions = sessions
        self._uploads = uploads
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or answer it with an error that says what is wrong."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._pass_on(scope, receive, send)
        except RequestError as error:
            await errors.refusal(error, scope)(scope, receive, send)
        except HTTPException as error:
            answer = JSONResponse({"detail": error.detail}, error.status_code)
            await answer(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        sender = Request(scope)
        address = address_of(sender)
        if method == "POST" and (call := _CALL.fullmatch(path)):
            content = await Request(scope, receive).body()  # `Guard` has read all of it
            fields = self._checked(call, _parsed(content), sender)
            checked = encoded(fields)
            inner = _with_body(scope, checked), replayed(checked, receive)
            await self._app(*inner, self._noting(address, send))
        elif method == "GET" and (stream := _STREAM.fullmatch(path)):
            query = QueryParams(scope["query_string"])
            session = stream["session"] or stream["event"] or query.get("session_hash", "")
            self._check_session(session, address)
            if path.rstrip("/").endswith("/queue/data") and not self._sessions.has_events(session):
                await _NO_SESSION(scope, receive, send)
                return
            with self._sessions.held(session):
                await self._stream(scope, receive, send)
        elif method not in ("GET", "HEAD", "OPTIONS"):
            _refuse(404, "Nothing can be sent to this path.")
        else:
            await self._app(scope, receive, send)

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a stream of events on; end it where Gradio breaks it off with an error.

        Gradio does so if another stream of the same session has ended.
        """
        has_started = False

        async def send_noting(message: types.Message) -> None:
            nonlocal has_started
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception as error:
            if not has_started:
                raise
            log.info("A stream of events broke off: %r", error)
            await send({"type": "http.response.body", "body": b""})

    def _checked(self, call: re.Match[str], body: Any, sender: Request) -> dict[str, Any]:
        """Check a call's body, and return those of its fields that Gradio may see."""
        address = address_of(sender)
        if not isinstance(body, dict):
            _refuse(400, "The body must be a JSON object.")
        if call["kind"] == "call/v2":
            self._check_key(self._named(call["name"]), sender)
            self._check_crowd("", address)
            self._check_arguments(call["name"], body)
            self._check_files(body)
            return body
        fields = {name: body[name] for name in _FIELDS & body.keys()}
        _check_ids(fields)
        if call["kind"] == "call":
            fields.pop("fn_index", None)  # Gradio goes by the name there
        # The page names a function by its number, programs by its name.
        if call["kind"] == "queue/join" or "fn_index" in fields:
            function = self._functions.get(fields.get("fn_index", -1))
            if function is None:
                _refuse(404, "There is no function with this number.")
        else:
            function = self._named(call["name"])
        self._check_key(function, sender)
        if (session := fields.get("session_hash")) is not None:
            self._check_session(session, address)
        self._check_crowd(session or "", address)
        _check_count(fields, function)
        self._check_files(fields["data"])
        for value in _objects(fields.get("event_data")):
            value.pop("path", None)
        return fields

    def _check_key(self, function: BlockFunction, sender: Request) -> None:
        """Refuse a program's call without a key, if there are keys."""
        if function.api_visibility == "public":
            self._keys.visitor(sender)

    def _check_session(self, session: Any, address: str) -> None:
        if not isinstance(session, str) or not _ID.fullmatch(session):
            _refuse(400, "session_hash must be 1 to 64 letters, digits, '-' or '_'.")
        if not self._sessions.admit(session, address):
            raise RequestError(Message(Code.TOO_MANY_PAGES), ErrorKind.TOO_MANY)

    def _check_crowd(self, session: str, address: str) -> None:
        if self._sessions.is_crowded(session, address):
            raise RequestError(Message(Code.TOO_MANY_CALLS), ErrorKind.TOO_MANY)

    def _named(self, name: str) -> BlockFunction:
        if name not in self._public:
            _refuse(404, "There is no function with this name.")
        return self._public[name]

    def _check_arguments(self, name: str, body: dict[str, Any]) -> None:
        parameters = self._parameters[name]
        for argument in body:
            if argument not in parameters:
                names = ", ".join(parameters)
                _refuse(422, f"{argument[:40]!r} is not a parameter; expected {names}.")
        for parameter, description in parameters.items():
            if parameter not in body and not description.get("parameter_has_default"):
                _refuse(422, f"{parameter!r} is missing.")

    def _check_files(self, data: Any) -> None:
        """Remove the URLs of files that were uploaded to this page, and refuse all other files.

        `event_data`, which describes an event of the browser, names files as well, such as the
        gallery's. No function of the page reads them, so they are removed instead.
        """
        for value in _objects(data):
            if not value.keys() & {"path", "url"}:
                continue
            path, url = value.get("path"), value.get("url")
            is_known = isinstance(path, str) and self._uploads.owns(path)
            if not is_known or (url is not None and not _is_address_of(url, str(path))):
                _refuse(403, "Only files that were uploaded to this page can be named.")
            value.pop("url", None)

    def _noting(self, address: str, send: Send) -> Send:
        """Return a `send` that notes the session which Gradio makes up for a call without one."""

        async def send_noting(message: types.Message) -> None:
            content = message.get("body", b"")
            if content.startswith(b'{"event_id"'):
                self._sessions.admit_event(str(json.loads(content)["event_id"]), address)
            await send(message)

        return send_noting


def _refuse(status: int, message: str) -> NoReturn:
    raise HTTPException(status, message)


def _check_ids(fields: dict[str, Any]) -> None:
    for name in ("fn_index", "trigger_id"):
        if fields.get(name) is not None and type(fields[name]) is not int:
            _refuse(422, f"{name} must be a whole number.")
    event = fields.get("event_id")
    if event is not None and not (isinstance(event, str) and _ID.fullmatch(event)):
        _refuse(422, "event_id must be 1 to 64 letters, digits, '-' or '_'.")


def _check_count(fields: dict[str, Any], function: BlockFunction) -> None:
    data, max_count = fields.get("data"), len(function.inputs)
    # Programs may leave out the values that Gradio keeps for them.
    min_count = sum(not block.skip_api for block in function.inputs)
    if not isinstance(data, list) or len(data) not in (min_count, max_count):
        _refuse(422, f"data must be a list of {max_count} values.")


def _objects(value: Any, depth: int = 0) -> list[dict[str, Any]]:
    """Return every object in a JSON value, itself included."""
    if depth > _MOST_DEPTH:
        _refuse(400, "The body is nested too deeply.")
    if isinstance(value, dict):
        return [value, *(item for part in value.values() for item in _objects(part, depth + 1))]
    if isinstance(value, list):
        return [item for part in value for item in _objects(part, depth + 1)]
    return []


def _is_address_of(url: Any, path: str) -> bool:
    """Return whether a URL's path is the one under which this server serves an uploaded file."""
    try:
        return isinstance(url, str) and unquote(urlsplit(url).path) == f"{_FILE_ADDRESS}{path}"
    except ValueError:  # such as "http://["
        return False


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        _refuse(400, "The body is not JSON.")


def _with_body(scope: Scope, body: bytes) -> Scope:
    """Return the scope with headers for `body`."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    del headers["transfer-encoding"]
    headers["content-length"] = str(len(body))
    headers["content-type"] = "application/json"
    return {**scope, "headers": headers.raw}
