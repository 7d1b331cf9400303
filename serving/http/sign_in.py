"""The entrance of a page that not everybody may open: signing in and out, and what is closed."""

import re
from pathlib import Path

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import RedirectResponse
from starlette.templating import Jinja2Templates

from serving.generator import ErrorKind, RequestError
from serving.http import errors
from serving.http.addresses import address_of
from serving.http.auth import SIGNED_IN_S, ApiKeys, Users
from serving.http.limits import MCP_PATH, body_of
from serving.http.origin import check_origin
from serving.messages import Code, Message
from serving.requests.rate_limits import RateLimits
from serving.requests.workers import Workers, once_per_loop

ENTRANCE = SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
# Paths that are open to everybody: checks of the process, the APIs, which have keys of their own,
# and files that are the same on every server. All others are closed but for the entrance itself.
OPEN = re.compile(
    rf"""/(healthz | readyz | metrics | favicon\.ico | manifest\.json | pwa_icon | robots\.txt)
    | /(queue/status | internal/ping)
    | /(v1 | sdapi | controlnet | assets | static | scripts)/.+ | /gradio\.js | {MCP_PATH}/?""",
    re.VERBOSE,
)
# Attempts to sign in per minute, and those that are being checked or wait for that, one at a time:
# of one address and of all.
ATTEMPTS_EACH, ATTEMPTS, AT_A_TIME_EACH, AT_A_TIME = 20, 200, 4, 32
_COOKIE = "sdxl-session"
_TEMPLATES = Jinja2Templates(Path(__file__).parent)
_checking = once_per_loop(lambda: Workers(1, AT_A_TIME, AT_A_TIME_EACH, Code.CROWDED))


def check_signed_in(users: Users, keys: ApiKeys, request: Request) -> None:
    """Refuse requests for what is closed, but for those of signed-in visitors and with an API key.

    Raises:
        RequestError: if it is refused, as is what another site's page sends with the cookie.
        HTTPException: if it should be sent to the form to sign in.
    """
    path = request.scope["path"]
    if OPEN.fullmatch(path):
        return
    if path in ENTRANCE or users.has_token(request.cookies.get(_COOKIE, "")):
        # Another site's page must neither use the cookie nor change it.
        check_origin((), request)
    elif keys.owner(request) is None:
        if path == "/" and "text/html" in request.headers.get("accept", ""):
            raise HTTPException(303, headers={"Location": SIGN_IN[1:] + _query(request)})
        raise RequestError(Message(Code.SIGN_IN_NEEDED), ErrorKind.UNAUTHORISED)


def router(users: Users, *, is_framed: bool) -> APIRouter:
    """Return the routes by which visitors sign in and out.

    Args:
        users: those who may sign in.
        is_framed: whether pages of other sites may show this one in a frame.
    """
    routes = APIRouter(include_in_schema=False)
    attempts = RateLimits(ATTEMPTS_EACH, ATTEMPTS)

    def form(request: Request, error: RequestError | None = None, name: str = "") -> Response:
        status, headers = errors.status_of(error, request.scope) if error else (200, {})
        return _TEMPLATES.TemplateResponse(
            request,
            "sign_in.html",
            {
                "text": lambda code: errors.translated(Message(Code(code)), request.scope),
                "error": error and errors.translated(error.message, request.scope),
                "name": name[:64],
                "has_names": users.have_names,
                # In a frame the browser may refuse the cookie.
                "is_framed": is_framed and request.headers.get("sec-fetch-dest") != "document",
                "query": _query(request),
            },
            status,
            headers | {"Cache-Control": "no-store"},
        )

    @routes.get(SIGN_IN)
    async def enter(request: Request) -> Response:
        return form(request)

    @routes.post(SIGN_IN)
    async def sign_in(request: Request) -> Response:
        with body_of(request) as body:
            async with body.form(max_files=0, max_fields=4) as fields:
                name, password = (str(fields.get(key, "")) for key in ("name", "password"))
        name, address = name.strip(), address_of(request)
        try:
            attempts.admit(address, "all")
            await _checking().run(address, lambda: users.check(name, password))
        except RequestError as error:
            return form(request, error, name)
        return RedirectResponse(
            "./" + _query(request), 303, _cookie(request, users.token(name), is_framed)
        )

    @routes.post(SIGN_OUT)
    async def sign_out(request: Request) -> Response:
        return RedirectResponse(SIGN_IN[1:], 303, _cookie(request, "", is_framed, life_s=0))

    return routes


def _cookie(
    request: Request, token: str, is_framed: bool, life_s: int = SIGNED_IN_S
) -> dict[str, str]:
    """Return the header that sets the cookie with a token."""
    kind = "SameSite=Lax"
    # A proxy that ends HTTPS may not say so, but browsers do.
    if "https" in (request.scope["scheme"], request.headers.get("origin", "").partition(":")[0]):
        # Each site that shows the page in a frame then has a cookie of its own.
        kind = f"Secure; {'SameSite=None; Partitioned' if is_framed else kind}"
    return {"Set-Cookie": f"{_COOKIE}={token}; Path=/; Max-Age={life_s}; HttpOnly; {kind}"}


def _query(request: Request) -> str:
    """Return the query, which fills in the fields of the page once the visitor has signed in."""
    query = request.scope["query_string"].decode("latin-1")
    return f"?{query}" if query else ""
