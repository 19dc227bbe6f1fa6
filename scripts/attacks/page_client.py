"""The page of `softbias app` without a socket: the application is called as a server would call it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PORT = 8017


class Response:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""


def get(app: Any, target: str, headers: dict[str, str] | None = None) -> Response:
    """The answer to a GET request."""
    path, _, query = target.partition("?")
    sent = {"host": f"127.0.0.1:{PORT}", **(headers or {})}
    encoded = [(name.encode(), value.encode()) for name, value in sent.items()]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "GET",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", PORT), "headers": encoded,
    }  # fmt: skip
    response = Response()

    messages = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.Event().wait()  # the client stays
        return messages.pop()

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            response.status = message["status"]
            response.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            response.body += message.get("body", b"")

    asyncio.run(app(scope, receive, send))
    return response


def ask_page(sources: Sequence[Path]) -> int:
    """Open the page of some runs and ask for all that it shows; answers are printed, refusals are notes."""
    from softbias.app.safety import Access
    from softbias.app.server import make_app
    from softbias.app.state import AppState
    from softbias.cli import in_words
    from softbias.errors import SoftbiasError

    try:
        state = AppState(sources)
    except (SoftbiasError, OSError) as error:
        print(f"softbias: {in_words(error)}", file=sys.stderr)
        return 2
    access = Access()
    app = make_app(state, access)
    cookie = {"cookie": f"softbias-{PORT}={access.cookie}"}
    checkpoints = [f"&checkpoint={number}" for number in range(len(state.models[0].checkpoints))]
    targets = ["/", "/api/state", "/api/training?model=0", "/api/charts", "/api/charts?model=0", "/report/0", "/api/picture/d0"]
    targets += [f"/api/explanation?model=0&picture=d0{each}" for each in ("", *checkpoints)]
    for target in targets:
        response = get(app, target, cookie)
        if response.status >= 500 or response.status == 0:
            raise AssertionError(f"GET {target}: status {response.status}")
        if response.status >= 400:
            print(f"note: {target} {json.loads(response.body)['error']}", file=sys.stderr)
        elif target.startswith("/api/explanation"):
            found = json.loads(response.body)
            print(target, json.dumps([found["label"], found["classes"], found["relevance"]]))
    return 0
