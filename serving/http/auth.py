"""API keys."""

import base64
import hashlib
import hmac
import re
from collections.abc import Iterable

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.http.addresses import address_of
from serving.messages import Code, Message


class ApiKeys:
    """The accepted API keys. If there are none, no key is needed."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def visitor(self, request: Request) -> str:
        """Return the visitor that a request comes from: the owner of its key, or its address.

        Raises:
            RequestError: if a key is needed, and the request has none or a wrong one.
        """
        if not self._digests:
            return address_of(request)
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            key = _password(key)
        digest = _digest(key.strip())
        # Compare with every key in constant time: the time of the answer must tell nothing.
        matches = [hmac.compare_digest(digest, known_digest) for known_digest in self._digests]
        if scheme.lower() not in ("bearer", "basic") or not any(matches):
            raise RequestError(Message(Code.KEY_NEEDED), ErrorKind.UNAUTHORISED)
        return f"key {digest[:8].hex()}"


class KeyCheck:
    """Middleware that refuses calls to `paths` without a valid API key, before reading the body."""

    def __init__(self, app: ASGIApp, keys: "ApiKeys", paths: re.Pattern[str]) -> None:
        self._app = app
        self._keys = keys
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or answer 401."""
        if scope["type"] == "http" and self._paths.match(scope["path"]):
            try:
                self._keys.visitor(Request(scope))
            except RequestError as error:
                await errors.refusal(error, scope)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _password(credentials: str) -> str:
    """Return the password of credentials in the scheme "Basic" (RFC 7617); "" if there is none.

    Clients of AUTOMATIC1111's API send a key so, with any name of a user.
    """
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except ValueError:
        return ""
    return text.partition(":")[2]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
