"""Serving the page: the socket, connections that do not wait for ever, the address with its token, and the browser.

A client that opens connections and sends nothing, or a byte now and then, must not keep others out. Each wait for a client has
an end, and a client that has too many connections loses the one that has waited longest. A connection whose request is being
answered is never closed.

`Connection` is checked against uvicorn 0.54 with h11 0.16.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from softbias.app.safety import Access
from softbias.app.server import make_app
from softbias.app.state import AppState
from softbias.environment import StopSignal
from softbias.errors import SoftbiasError, in_one_line
from softbias.files import write_text

USUAL_PORT = 8017
HEAD_SECONDS, ANSWER_SECONDS, BODY_SECONDS = 10.0, 30.0, 120.0  # for a request, for taking its answer, for sending a picture
PER_CLIENT, IN_ALL = 48, 128  # connections; a browser opens six
TICK = 0.25  # seconds between two looks at a connection
BUSY = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Connection(H11Protocol):
    """A connection with deadlines. Nonsense is answered by 400 and no traceback, also after an answer has begun."""

    since = 0.0  # when the present wait began
    allowed: float | None = None  # how long it may last
    ticking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.tick()
        for limit, others in ((PER_CLIENT, self.others(same_client=True)), (IN_ALL, self.others())):
            if len(others) >= limit and not transport.is_closing():
                self.make_room(others)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ticking is not None:
            self.ticking.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.ProtocolError:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # its answer, if any, has nowhere to go
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        self.transport.close()

    def shutdown(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self.cycle.keep_alive = False

    # Waiting

    def wait(self) -> float | None:
        """How long the client may keep us waiting now; None while we work for it."""
        if self.flow.write_paused:
            return ANSWER_SECONDS
        if self.cycle is None or self.cycle.response_complete:
            return HEAD_SECONDS
        return BODY_SECONDS if self.cycle.more_body else None

    def tick(self) -> None:
        """End the connection if it has waited too long; else look again soon."""
        now, allowed = self.loop.time(), self.wait()
        if allowed is None or allowed != self.allowed:
            self.since, self.allowed = now, allowed
        elif now - self.since > allowed:
            self.transport.abort()
            return
        self.ticking = self.loop.call_later(TICK, self.tick)

    def others(self, *, same_client: bool = False) -> list[Connection]:
        """The other open connections."""
        mine = self.client and self.client[0]
        found = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        found = [one for one in found if not one.transport.is_closing()]
        return [one for one in found if (one.client and one.client[0]) == mine] if same_client else found

    def make_room(self, others: list[Connection]) -> None:
        """Close the connection that has waited longest for the head of a request, else for something else; or this one."""
        waiting = [(allowed, one.since, one) for one in others if (allowed := one.wait()) is not None]
        if waiting:
            min(waiting, key=lambda each: each[:2])[2].transport.abort()
        else:
            self.transport.write(BUSY)
            self.transport.close()


def bind(port: int | None, host: str = "127.0.0.1") -> socket.socket:
    """A listening socket at the given port; without one at the usual port, or at any free one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        message = f"--host takes an address of this machine, as 127.0.0.1 or 0.0.0.0, but got {host!r}: {in_one_line(error)}"
        raise SoftbiasError(message) from error
    for wanted in [port] if port is not None else [USUAL_PORT, 0]:
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address[0], wanted, *address[2:]))
            listener.listen(1024)  # so that the printed address is never refused
            return listener
        except OSError as error:
            listener.close()
            reason = error
    message = f"port {port or USUAL_PORT} of {host} is not available ({in_one_line(reason)}); choose another --port, or none"
    raise SoftbiasError(message)


def make_server(state: AppState, access: Access) -> uvicorn.Server:
    config = uvicorn.Config(
        make_app(state, access),
        http=Connection,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def addresses(access: Access, port: int) -> list[str]:
    """The addresses of the page with its token: as this machine opens it, then as others do."""
    everywhere = access.host in ("0.0.0.0", "::", "")
    names = ["127.0.0.1", socket.gethostname()] if everywhere else [access.host]
    return [f"http://{f'[{name}]' if ':' in name else name}:{port}/?token={access.token}" for name in names]


def serve(
    state: AppState,
    access: Access | None = None,
    *,
    port: int | None = None,
    browser: bool = True,
    display: Callable[[str], None] = print,
) -> None:
    """Serve until Ctrl-C."""
    access = access or Access()
    listener = bind(port, access.host)
    server = make_server(state, access)
    found = addresses(access, listener.getsockname()[1])
    for address in found:
        display(address)
    who = "only this machine can reach it, and only" if access.local else "other machines can reach it, but only"
    display(f"Ctrl-C ends it; {who} somebody with the token can open it")
    with tempfile.TemporaryDirectory(prefix="softbias-") as folder:  # nobody else may read it
        opening = threading.Timer(0.5, webbrowser.open, [opener(Path(folder), found[0])])
        try:
            if browser:
                opening.start()
            server.run(sockets=[listener])
        except KeyboardInterrupt as stop:  # Ctrl-C is how it ends
            if isinstance(stop, StopSignal) and stop.signal != signal.SIGINT:
                raise
        finally:
            opening.cancel()
            listener.close()


def opener(folder: Path, address: str) -> str:
    """A file that leads to the address: on the browser's command line every user of the machine could read the token."""
    file = folder / "softbias.html"
    link = escape(address, quote=True)
    write_text(file, f'<meta http-equiv="refresh" content="0; url={link}"><a href="{link}">softbias</a>\n')
    return file.as_uri()
