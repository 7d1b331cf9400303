"""The addresses that requests come from, as limits count them."""

import ipaddress

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

_MOST_FORWARDED = 2000  # characters at the end of the header that are read
UNKNOWN = "unknown"  # the address of all hosts without an IP address


class ClientAddress:
    """Middleware that sets a request's address to the visitor's own, as limits count it.

    See `network_of`. Each of the `trusted_proxies` proxies appends the address that it was called
    from to `X-Forwarded-For`. So the entry that counts is that many places from the end. The client
    may have written the entries before it.
    """

    def __init__(self, app: ASGIApp, trusted_proxies: int) -> None:
        self._app = app
        self._proxies = trusted_proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with the visitor's `scope["client"]` and `scope["scheme"]`."""
        if scope["type"] == "http" and scope.get("client"):
            host, port = scope["client"]
            scope = {**scope, "client": (network_of(host), port)}
        if scope["type"] == "http" and self._proxies:
            headers = Headers(scope=scope)
            if headers.get("x-forwarded-proto", "").rpartition(",")[2].strip() == "https":
                scope = {**scope, "scheme": "https"}
            lines = ",".join(headers.getlist("x-forwarded-for"))
            hops = [hop.strip() for hop in lines[-_MOST_FORWARDED:].split(",") if hop.strip()]
            if len(hops) >= self._proxies:
                scope = {**scope, "client": (network_of(hops[-self._proxies]), 0)}
        await self._app(scope, receive, send)


class RootPath:
    """Middleware for a server under a path of a proxy's, which removes it from the addresses.

    It tells Starlette and FastAPI the path for the addresses that they make. `root_path` in the
    scope would also take it from the beginning of those that come in, after they were checked.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on with the path in its scope."""
        await self._app({**scope, "app_root_path": self._root_path}, receive, send)


def address_of(request: Request) -> str:
    """Return the address that a request comes from, or ""."""
    return request.client.host if request.client else ""


def network_of(host: str) -> str:
    """Return the address under which limits count a host, as a proxy or the system writes it.

    A port, brackets, quotes and an IPv6 zone do not count. One customer of a provider has 2^64 or
    more IPv6 addresses, which count as one network. An IPv4 address within IPv6 counts as itself.
    All hosts without an IP address count as one, `UNKNOWN`.
    """
    host = host.strip(" \t\"'")
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") == 1:
        host = host.partition(":")[0]
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
