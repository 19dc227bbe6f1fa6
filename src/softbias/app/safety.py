"""The guard of the page: it serves this machine alone, under its own address, and allows no code from elsewhere.

A page of another site, open in the same browser, can send requests to 127.0.0.1. It cannot read the answers, because no header
allows its origin. With a host name of its own that points at 127.0.0.1 (DNS rebinding) it could read them, so only our own
names are served. A request with a foreign Origin, or a cross-site fetch, is refused before any work is done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from softbias.pages.html import policy

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

NAMES = ("127.0.0.1", "localhost", "[::1]")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
REPORT_POLICY = f"{policy()}; frame-ancestors 'none'; sandbox allow-scripts allow-downloads allow-modals"
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Refuses foreign requests, and adds the headers that every answer has."""

    def __init__(self, app: Any, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            given.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in have]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        refusal = self.refusal(given)
        if refusal is not None:
            await answer(send_with_headers, 403, refusal)
            return
        await self.app(scope, receive, send_with_headers)

    def refusal(self, given: dict[str, list[str]]) -> str | None:
        """Why a request is refused, or None."""
        hosts = given.get("host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            return "this page answers under its own address alone"
        if any(origin.lower() not in self.origins for origin in given.get("origin", [])):
            return "this page does not answer other sites"
        if any(site not in ("same-origin", "none") for site in given.get("sec-fetch-site", [])):
            return "this page does not answer other sites"
        return None


async def answer(send: Send, status: int, text: str) -> None:
    body = text.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
