"""Checks of where a request is addressed, where it comes from, and how its body is framed."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.messages import Code, Message

ANY_HOST = "*"

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")
# Names under these cannot be registered, so no page elsewhere can make a browser resolve one of
# them to this server (RFC 6761, RFC 6762, ICANN's reservation of .internal).
_PRIVATE = (".localhost", ".local", ".internal", ".svc", ".cluster.local")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


class AllowedHosts:
    """The host names that a request may be addressed to.

    IP addresses, names without a dot and private names are always allowed: DNS rebinding needs a
    name that an attacker can register.

    Args:
        names: further names; `*.example.org` stands for every name below example.org, `*` for
            every name.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {name.lower() for name in names}

    def allows(self, host: str) -> bool:
        """Return whether `host`, the value of a `Host` header, may be answered."""
        if ANY_HOST in self._names:
            return True
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match["name"].lower().rstrip(".")
        if "." not in name or name.endswith(_PRIVATE) or _is_address(name):
            return True
        parents = (f"*.{name.split('.', n)[-1]}" for n in range(1, name.count(".") + 1))
        return name in self._names or not self._names.isdisjoint(parents)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


_MOST_IN_PART = 255  # bytes


class CheckedRequests:
    """Middleware that refuses requests that a browser or proxy may have been tricked into sending.

    - Requests for a path with control characters, or with a part that no file can have as its name.
      Some route patterns ignore a line break at the end, others do not.
    - Requests to a host that is not allowed, by `Host` or `X-Forwarded-Host`.
    - Requests that change something, sent by a page of another origin that is not in `origins`.
    - Requests framed twice, by `Content-Length` and `Transfer-Encoding` (RFC 9112, 6.1).
    """

    def __init__(self, app: ASGIApp, hosts: AllowedHosts, origins: Sequence[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer with what is wrong and close the connection."""
        if scope["type"] == "http":
            checks: tuple[Callable[[Scope, Headers], None], ...]
            checks = _check_path, self._check_framing, self._check_host, self._check_origin
            try:
                for check in checks:
                    check(scope, Headers(scope=scope))
            except RequestError as error:
                answer = errors.refusal(error, scope)
                answer.headers["Connection"] = "close"
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check_framing(self, _: Scope, headers: Headers) -> None:
        if "transfer-encoding" in headers and "content-length" in headers:
            raise RequestError(Message(Code.TWO_LENGTHS))

    def _check_host(self, _: Scope, headers: Headers) -> None:
        for name in ("host", "x-forwarded-host"):
            for value in headers.getlist(name):
                for host in value.split(","):
                    if not self._hosts.allows(host.strip()):
                        raise RequestError(Message(Code.WRONG_HOST), ErrorKind.MISDIRECTED)

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        origin = headers.get("origin")
        if scope["method"] in _SAFE_METHODS or origin is None or origin in self._origins:
            return
        # Browsers send this header over HTTPS and to localhost, and proxies do not change it.
        if headers.get("sec-fetch-site") == "same-origin":
            return
        hosts = (headers.get("host"), headers.get("x-forwarded-host"))
        if "sec-fetch-site" in headers or origin.partition("://")[2] not in hosts:
            raise RequestError(Message(Code.WRONG_ORIGIN), ErrorKind.FORBIDDEN)


def _check_path(scope: Scope, _: Headers) -> None:
    parts = scope["path"].encode("utf-8", "replace").split(b"/")
    if not scope["path"].isprintable() or max(map(len, parts)) > _MOST_IN_PART:
        raise RequestError(Message(Code.WRONG_PATH), ErrorKind.UNKNOWN)
