"""Checks of where a request is addressed, where it comes from, and how its body is framed.

A browser or a proxy may have been tricked into sending a request that fails one.
"""

import ipaddress
import logging
import re
from collections.abc import Collection, Iterable

from starlette.requests import Request

from serving.generator import ErrorKind, RequestError
from serving.messages import Code, Message

log = logging.getLogger(__name__)

ANY_HOST = "*"
_MOST_LOGGED = 100  # names

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
        self._refused: set[str] = set()

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

    def log_refused(self, host: str) -> None:
        """Log a name that is not allowed once, for the operator who forgot it."""
        if host not in self._refused and len(self._refused) < _MOST_LOGGED:
            self._refused.add(host)
            log.warning("Refused a request to %.80r; ALLOWED_HOSTS names this server's hosts", host)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


_MOST_IN_PART = 255  # bytes


def check_path(request: Request) -> None:
    """Refuse a path with control characters, or with a part too long for the name of a file.

    Control characters are refused because some route patterns ignore a line break at the end.
    """
    path = request.scope["path"]
    parts = path.encode("utf-8", "replace").split(b"/")
    if not path.isprintable() or max(map(len, parts)) > _MOST_IN_PART:
        raise RequestError(Message(Code.WRONG_PATH), ErrorKind.UNKNOWN)


def check_framing(request: Request) -> None:
    """Refuse a body framed by both `Content-Length` and `Transfer-Encoding` (RFC 9112, 6.1)."""
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        raise RequestError(Message(Code.TWO_LENGTHS))


def check_host(allowed: AllowedHosts, request: Request) -> None:
    """Refuse a request to a host that is not allowed, by `Host` or `X-Forwarded-Host`."""
    values = [*request.headers.getlist("host"), *request.headers.getlist("x-forwarded-host")]
    hosts = (host.strip() for value in values for host in value.split(","))
    for host in hosts:
        if not allowed.allows(host):
            allowed.log_refused(host)
            raise RequestError(Message(Code.WRONG_HOST), ErrorKind.MISDIRECTED)


def check_origin(origins: Collection[str], request: Request) -> None:
    """Refuse a request that changes something, sent by a page of another origin than these."""
    headers = request.headers
    origin = headers.get("origin")
    if request.method in _SAFE_METHODS or origin is None or origin in origins:
        return
    # Browsers send this header over HTTPS and to localhost, and proxies do not change it.
    if headers.get("sec-fetch-site") == "same-origin":
        return
    hosts = (headers.get("host"), headers.get("x-forwarded-host"))
    if "sec-fetch-site" in headers or origin.partition("://")[2] not in hosts:
        raise RequestError(Message(Code.WRONG_ORIGIN), ErrorKind.FORBIDDEN)
