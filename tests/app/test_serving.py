"""Connections of clients that take their time or send nonsense, and the command as a process of its own: over real sockets."""

import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from softbias.app import serving as module

from .conftest import Access, Address, serving


@pytest.fixture
def quick(app_state, monkeypatch):
    """A server that waits for nobody longer than a moment."""
    for name, value in {"HEAD_SECONDS": 0.5, "ANSWER_SECONDS": 0.6, "BODY_SECONDS": 0.7, "TICK": 0.05}.items():
        monkeypatch.setattr(module, name, value)
    with serving(app_state) as address:
        yield address


def connect(address: Address) -> socket.socket:
    return socket.create_connection(("127.0.0.1", address.port), timeout=20)


def head(address: Address, path="/api/state", method="GET", more="") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{address.port}\r\nCookie: {address.cookie}\r\n{more}\r\n".encode()


def closed_after(line: socket.socket, start: float) -> float:
    """Seconds until the server ends the connection; what it sends until then is read."""
    try:
        while line.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - start


def send_for_ever(line: socket.socket, content: bytes) -> None:
    while True:
        line.sendall(content)


def test_three_hundred_half_open_connections_keep_nobody_out(served, monkeypatch):
    monkeypatch.setattr(module, "HEAD_SECONDS", 1000)  # they are not merely given up in time
    starts = [b"", b"GET / HT", b"GET /api/state HTTP/1.1\r\nHost: 127", b"POST /api/pictures HTTP/1.1\r\n", b"\x16\x03\x01"]
    with ExitStack() as held:
        for number in range(300):
            held.enter_context(connect(served)).sendall(starts[number % len(starts)])
        assert served.get("/api/state")["models"] and served.ask("/")[0] == 200


def test_uploads_that_never_end_keep_nobody_out(served, monkeypatch):
    monkeypatch.setattr(module, "BODY_SECONDS", 2000)
    begun = head(served, "/api/pictures", "POST", "Content-Type: image/png\r\nContent-Length: 90000\r\n") + b"\x89PNG"
    with ExitStack() as held:
        for _ in range(100):
            held.enter_context(connect(served)).sendall(begun)
        assert served.get("/api/state")["models"]


def test_a_request_that_does_not_end_is_given_up_even_if_bytes_drip(quick):
    start = time.monotonic()
    with connect(quick) as silent, connect(quick) as dripping:
        dripping.settimeout(0.1)
        ended = None
        for letter in head(quick):
            try:
                dripping.sendall(bytes([letter]))
                if dripping.recv(10) == b"":
                    ended = time.monotonic() - start
            except TimeoutError:
                continue
            except OSError:
                ended = time.monotonic() - start
            if ended is not None:
                break
        assert ended is not None and ended > 0.4
        assert closed_after(silent, start) < 20


def test_a_body_that_stops_and_an_answer_that_nobody_reads_are_given_up(quick):
    with connect(quick) as sending, connect(quick) as deaf:
        sending.sendall(head(quick, "/api/pictures", "POST", "Content-Type: image/png\r\nContent-Length: 90000\r\n") + b"junk")
        deaf.settimeout(60)
        with pytest.raises(ConnectionError):  # the server stops reading, too, and then ends it
            send_for_ever(deaf, head(quick, "/page/app.js") * 100)
        assert closed_after(sending, time.monotonic()) < 20


def test_an_idle_connection_is_ended_and_a_busy_one_is_not(quick, app_state, monkeypatch):
    real = app_state.png
    monkeypatch.setattr(app_state, "png", lambda *given: time.sleep(1.5) or real(*given))
    with connect(quick) as line:
        line.sendall(head(quick, "/api/picture/d0"))
        assert line.recv(65536).startswith(b"HTTP/1.1 200")  # three times as long as a client may take
        assert closed_after(line, time.monotonic()) < 20


def test_connections_of_a_busy_client_are_refused_politely(app_state, monkeypatch):
    monkeypatch.setattr(module, "PER_CLIENT", 2)
    real = app_state.png
    monkeypatch.setattr(app_state, "png", lambda *given: time.sleep(1) or real(*given))
    with serving(app_state) as address, connect(address) as one, connect(address) as two:
        for line in (one, two):
            line.sendall(head(address, "/api/picture/d0"))
        time.sleep(0.3)
        with connect(address) as third:
            assert third.recv(100).startswith(b"HTTP/1.1 503")
        assert one.recv(100).startswith(b"HTTP/1.1 200") and two.recv(100).startswith(b"HTTP/1.1 200")


# The command

POST = b"POST /api/pictures HTTP/1.1\r\nHost: {host}\r\n{cookie}Content-Type: image/png\r\n"
JUNK = [
    b"\x16\x03\x01\x02\x00\x01\x00", b"\r\n" * 50, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x00" * 400, b"G" * 70_000,
    b"{head}{head}\x00\x01garbage\r\n\r\n",  # after a whole request, while it is answered
    POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\n4\r\njunk\r\nZZ\r\n\r\n",
    POST.replace(b"{cookie}", b"") + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\nZZ\r\n",
    POST + b"Content-Length: 5\r\n\r\nab",
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    POST + b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello world, and more",
    b"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"HEAD / HTTP/1.0\r\n\r\nGET", b"GET /?\xff HTTP/1.1\r\n\r\n",
]  # fmt: skip


@pytest.fixture(scope="module")
def command():
    """`softbias app` as a user starts it: what it printed, where it listens, and the process."""
    words = ["-m", "softbias", "app", "ibit_nano", "--data", "fashion", "--no-browser", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], **pipes) as process:
        printed = process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]{32,})", printed)
        assert found, (printed, process.stderr.read() if process.poll() is not None else "")
        yield printed, Address(int(found[1]), Access(found[2])), process
        if process.poll() is None:
            process.kill()


def test_the_printed_address_opens_the_page_in_a_browser_and_the_bare_one_does_not(command, browser):
    printed, address, _ = command
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(address.url)
    assert answer.status == 403 and "token" in page.inner_text("main")
    page.goto(printed)
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    assert "token" not in page.url and page.locator(".cells canvas").count() > 4
    assert page.evaluate("document.cookie") == ""  # scripts cannot read it
    page.reload()
    page.wait_for_selector("html[data-ready]", timeout=30_000)  # by the cookie alone
    second = browser.new_context().new_page()
    assert second.goto(address.url).status == 403
    context.close()
    second.context.close()


def test_a_file_that_leads_to_the_address_opens_the_page_too(command, browser, tmp_path):
    """The browser is started with such a file, because every user of a machine can read command lines."""
    printed, _, _ = command
    file = module.opener(tmp_path, printed)
    assert "token" not in file
    page = browser.new_page()
    page.goto(file)
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    page.reload()
    page.wait_for_selector("html[data-ready]", timeout=30_000)
    page.close()


def test_nonsense_leaves_no_trace_on_the_console_and_ctrl_c_ends_it(command):
    _, address, process = command
    _, headers, _ = address.ask_bare(f"/?token={address.access.token}")
    address.cookie = headers["set-cookie"].split(";")[0]
    values = {b"{host}": f"127.0.0.1:{address.port}".encode(), b"{cookie}": f"Cookie: {address.cookie}\r\n".encode()}
    values[b"{head}"] = head(address, "/api/explanation?model=0&picture=d0")
    for junk in JUNK:
        for name, value in values.items():
            junk = junk.replace(name, value)
        for pieces in ([junk], [junk[:40], junk[40:]], [junk, b"\x00more\r\n\r\n", b"more"]):
            with connect(address) as line:
                try:
                    for piece in pieces:
                        line.sendall(piece)
                        time.sleep(0.01)
                    line.shutdown(socket.SHUT_WR)
                    assert not line.recv(100).startswith(b"HTTP/1.1 5")
                except OSError:  # it was ended already
                    pass
    assert address.get("/api/state")["models"]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert errors == "" and process.returncode == 0
