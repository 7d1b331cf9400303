"""The addresses that requests come from, as limits count them."""

import ipaddress

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

_MOST_FORWARDED = 2000  # characters at the end of the header that are read
UNKNOWN = "unknown"  # the address of all hosts without an IP address


def of_client(trusted_proxies: int, scope: Scope) -> Scope:
    """Return the scope of a request with the visitor's own address and scheme.

    The address is the one that limits count, see `network_of`. Each of the trusted proxies appends
    the address that it was called from to `X-Forwarded-For`. So the entry that counts is that many
    places from the end. The client may have written the entries before it.
    """
    if scope.get("client"):
        host, port = scope["client"]
        scope = {**scope, "client": (network_of(host), port)}
    if trusted_proxies:
        headers = Headers(scope=scope)
        if headers.get("x-forwarded-proto", "").rpartition(",")[2].strip() == "https":
            scope = {**scope, "scheme": "https"}
        lines = ",".join(headers.getlist("x-forwarded-for"))
        hops = [hop.strip() for hop in lines[-_MOST_FORWARDED:].split(",") if hop.strip()]
        if len(hops) >= trusted_proxies:
            scope = {**scope, "client": (network_of(hops[-trusted_proxies]), 0)}
    return scope


def under(root_path: str, scope: Scope) -> Scope:
    """Return the scope of a request to a server under a path of a proxy's, which removes the path.

    Starlette and FastAPI make addresses with it. `root_path` in the scope would also take it from
    the beginning of those that come in, after they were checked.
    """
    return {**scope, "app_root_path": root_path}


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
