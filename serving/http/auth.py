"""API keys."""

import base64
import hashlib
import hmac
from collections.abc import Iterable

from starlette.requests import Request

from serving.generator import ErrorKind, RequestError
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
