"""The guard of the page: it answers requests with its token, under its own address, and allows no code from elsewhere.

Other users of the same machine can reach 127.0.0.1. So every request needs the token, which stands in the address that is
printed, or the cookie that the page sets when it is opened with the token.

A page of another site, open in the same browser, can send requests to 127.0.0.1, too. It cannot read the answers, because no
header allows its origin. With a host name of its own that points at 127.0.0.1 (DNS rebinding) it could read them, so only our
own names are served. A request with a foreign Origin, or a cross-site fetch, is refused before any work is done. One thing is
allowed: a link to the address with its token, because somebody who makes such a link knows the token.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from softbias.errors import SoftbiasError
from softbias.pages.html import policy, render

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NAMES = ("127.0.0.1", "localhost", "::1")
TOKEN = re.compile(r"[A-Za-z0-9._~-]{8,200}")
ADDRESS = re.compile(r"(?:\[(?P<six>[0-9a-f:.]+)\]|(?P<name>[^:\[\]]+))(?::(?P<port>\d{1,5}))?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
PAGE_POLICY = f"{policy()}; frame-ancestors 'none'; sandbox allow-scripts allow-downloads allow-modals"  # of a page in one file
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
ASK_FOR_TOKEN = "this page needs its token: open the whole address that softbias app has printed, with its ?token=… at the end"


@dataclass(frozen=True)
class Access:
    """Who is served, and under which names.

    token    what a request must know
    host     the address that the server listens at; beyond loopback, any address of this machine and its own name are served
    cookie   what the browser is given for the token; it ends with the server
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    host: str = "127.0.0.1"
    cookie: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)

    def __post_init__(self) -> None:
        if not TOKEN.fullmatch(self.token):
            raise SoftbiasError("a token has 8 to 200 letters, digits and . _ ~ -, without spaces; without --token one is made")

    @property
    def local(self) -> bool:
        """Whether nobody outside this machine can reach the server."""
        return self.host in NAMES

    def has_name(self, name: str) -> bool:
        """Whether the page answers under a name. Every address is fine beyond loopback: rebinding needs a name."""
        if name in NAMES:
            return True
        return not self.local and (name in (self.host.lower(), socket.gethostname().lower()) or is_address(name))

    def refusal(self, request: Request) -> str | None:
        """Why a request is refused, or None."""
        headers = request.headers
        hosts = headers.getlist("host")
        match = ADDRESS.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if match is None or not self.has_name(match["six"] or match["name"]):
            return "this page answers under its own address alone"
        origins = {f"{scheme}://{hosts[0].lower()}" for scheme in ("http", "https")}
        if any(origin.lower() not in origins for origin in headers.getlist("origin")):
            return "this page does not answer other sites"
        link = request.method == "GET" and headers.getlist("sec-fetch-mode") in ([], ["navigate"])
        foreign = any(site not in ("same-origin", "none") for site in headers.getlist("sec-fetch-site"))
        if foreign and not (link and self.names_token(request)):
            return "this page does not answer other sites"
        if not self.names_token(request) and not same(request.cookies.get(cookie_name(request)), self.cookie):
            return ASK_FOR_TOKEN
        return None

    def names_token(self, request: Request) -> bool:
        given = parse_qs(request.scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and same(given[0], self.token)


class Guard:
    """Refuses foreign requests, and adds the headers that every answer has."""

    def __init__(self, app: Any, access: Access) -> None:
        self.app = app
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # there are no web sockets here
        request = Request(scope)
        more = {name.encode(): value.encode() for name, value in HEADERS.items()}
        refusal = self.access.refusal(request)
        if refusal is None and self.access.names_token(request):
            cookie = f"{cookie_name(request)}={self.access.cookie}; HttpOnly; SameSite=Strict; Path=/"
            more[b"set-cookie"] = cookie.encode()

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *((name, value) for name, value in more.items() if name not in have)]
            await send(message)

        answer = self.app if refusal is None else refused(request, refusal)
        await answer(scope, receive, send_with_headers)


def refused(request: Request, text: str) -> Response:
    """A page for somebody who opened one, and JSON for our own script."""
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": text}, status_code=403)
    return HTMLResponse(render("refused.html.jinja", text=text), 403, {"content-security-policy": PAGE_POLICY})


def cookie_name(request: Request) -> str:
    """Cookies do not know ports, so their names do: two servers on one machine keep theirs apart, also behind a tunnel."""
    match = ADDRESS.fullmatch(request.headers.get("host", "").lower())
    return f"softbias-{match['port'] if match and match['port'] else 80}"


def same(given: str | None, wanted: str) -> bool:
    """Whether two secrets are equal, in a time that tells nothing about where they differ."""
    return secrets.compare_digest((given or "").encode(), wanted.encode())


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
