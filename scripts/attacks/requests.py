"""Fuzzed requests to a running page on 127.0.0.1: mangled, huge, half sent, without the token, under foreign names.

No request may give a 5xx, make the server print a traceback, or read anything without the token; a good request is answered
as ever, also while many connections are held half open.
"""

from __future__ import annotations

import re
import socket
import time
from contextlib import suppress
from random import Random
from typing import Any

from attacks.processes import Training
from attacks.verdict import OK, Outcome
from attacks.workshop import SECRET, Workshop

TOKEN = "attack-0123456789"
PATHS = (
    "/",
    "/api/state",
    "/api/explanation",
    "/api/maps",
    "/api/training",
    "/api/charts",
    "/api/pictures",
    "/api/picture/d0",
    "/page/app.js",
    "/report/0",
    "/favicon.ico",
    "/api/picture/",
    "/page/",
    "/api",
    "*",
    "http://127.0.0.1/api/state",
)
TRAVERSALS = (
    "/page/../server.py",
    "/page/%2e%2e/%2e%2e/secret/secret.txt",
    "/page/..%2f..%2f..%2fetc/passwd",
    "/report/../../etc/passwd",
    "/page/....//....//etc/passwd",
    "/page/%252e%252e%252fetc%252fpasswd",
    "//etc/passwd",
    "/page//etc/passwd",
    "/page/%00",
    "/page/..\\..\\etc\\passwd",
    "/api/picture/../../secret/secret.txt",
    "/page/app.js%00.png",
    "/report/0/../../config.yaml",
)
KEYS = ("model", "picture", "checkpoint", "query", "target", "token", "x", "", "model[]", "model%00")
VALUES = (
    "0",
    "1",
    "-1",
    "99",
    "d0",
    "u0",
    "d",
    "9" * 40,
    "1e9",
    "NaN",
    "null",
    "",
    "%00",
    "%ff",
    "../../x",
    "token",
    "0.5",
    "%d9%a3",
    "d0%0a",
    "[]",
    "{}",
    "a" * 3000,
    "%0d%0aSet-Cookie:x=1",
    "'\"><script>",
    "=1+1",
    "0x10",
    " 0",
    "+0",
    "0&model=1",
)
METHODS = (
    "GET",
    "GET",
    "GET",
    "POST",
    "PUT",
    "DELETE",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PATCH",
    "get",
    "FOO",
    "G" * 300,
)
FOREIGN = (
    "evil.example",
    "127.0.0.1.evil.example",
    "localhost:1",
    "",
    "127.0.0.1:99999",
    "[::1",
    "127.0.0.1@evil.example",
    "\x01",
)
HELD = 70  # connections that are kept half open


class Requests:
    def __init__(self, shop: Workshop, cases: int = 3000) -> None:
        self.shop, self.cases = shop, cases
        run = shop.finished_run()
        self.log = shop.root / "app.log"
        words = ["app", str(run), "--no-browser", "--port", "0", "--token", TOKEN]
        self.server = shop.once("server", lambda: start(words, self.log, shop))
        self.port = self.wait_for_port()
        self.held: list[socket.socket] = []
        self.expected = self.good()
        if '"label"' not in self.expected:
            raise SystemExit(f"the page does not answer a good request: {self.expected!r}")
        self.read = 0

    def wait_for_port(self) -> int:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", self.log.read_text() if self.log.exists() else "")
            if found:
                return int(found[1])
            time.sleep(0.05)
        raise SystemExit(f"the page did not start: {self.log.read_text()}")

    def __len__(self) -> int:
        return self.cases

    def title(self, number: int) -> str:
        return f"{self.generate(number)[0][:160]!r}"

    def generate(self, number: int) -> tuple[bytes, str]:
        """The bytes of a request, and what is special about it: "known" and well formed, "foreign", "broken" or "half"."""
        rng = self.shop.rng("requests", number)
        kind = rng.choices(("known", "foreign", "broken", "half"), (5, 4, 4, 2))[0]
        path = rng.choice(TRAVERSALS) if rng.random() < 0.2 else rng.choice(PATHS)
        query = "&".join(f"{rng.choice(KEYS)}={rng.choice(VALUES)}" for _ in range(rng.randint(0, 4)))
        method = rng.choice(METHODS)
        body = rng.choice((b"", b"{}", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, b"GIF89a" + b"\xff" * 30, rng.randbytes(3000)))
        headers = {"Host": f"127.0.0.1:{self.port}", "Cookie": "", "Connection": "close", "Content-Length": str(len(body))}
        headers["Content-Type"] = rng.choice(("image/png", "application/octet-stream", "text/html", "", "image/" + "x" * 200))
        target = f"{path}{'?' + query if query else ''}"
        if kind == "foreign":
            self.make_foreign(rng, headers)
        else:
            target += f"{'&' if '?' in target else '?'}token={TOKEN}"
        request = write(method, target, headers, body)
        if kind == "broken":
            request = mangle(request, rng)
        elif kind == "half":
            request = request[: rng.randrange(1, len(request))]
        return request, kind

    def make_foreign(self, rng: Random, headers: dict[str, str]) -> None:
        """No token, or a wrong one; sometimes also a foreign name or origin."""
        headers["Cookie"] = rng.choice(("", f"softbias-{self.port}=x", f"token={TOKEN}", f"softbias-{self.port}={'a' * 5000}"))
        if rng.random() < 0.5:
            headers["Host"] = rng.choice(FOREIGN)
        if rng.random() < 0.5:
            headers["Origin"] = rng.choice(("http://evil.example", "null", f"http://127.0.0.1:{self.port}"))
        if rng.random() < 0.3:
            headers["Authorization"] = rng.choice(("token x", "Bearer ", "Basic " + "A" * 4000))

    def run(self, number: int) -> Outcome:
        request, kind = self.generate(number)
        answer = self.send(request, kind)
        found = self.judge(answer, kind, request)
        if found is OK and number % 25 == 0 and self.good() != self.expected:
            return Outcome("hang", f"a good request is not answered as before, with {len(self.held)} connections held")
        return found

    def judge(self, answer: bytes | None, kind: str, request: bytes) -> Outcome:
        printed = self.log.read_text(errors="replace")
        if "Traceback" in printed[self.read :]:
            last = printed.strip().splitlines()[-1]
            self.read = len(printed)
            return Outcome("traceback", last[:200])
        self.read = len(printed)
        if answer is None:
            return Outcome("hang", "no answer in 20 s")
        status = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
        if SECRET.encode() in answer or b"root:x:" in answer or b"def make_app" in answer:
            return Outcome("leak", "a file was read through the page")
        if status is None:
            return OK if kind in ("broken", "half") or not answer else Outcome("unclear", f"no HTTP: {answer[:60]!r}")
        code = int(status[1])
        if code >= 500 and code != 501:
            return Outcome("traceback", f"status {code}")
        if kind == "foreign" and code < 400:
            return Outcome("leak", f"status {code} without the token")
        if b"\r\nset-cookie: x" in answer.lower():
            return Outcome("leak", "a header was injected")
        return OK

    def send(self, request: bytes, kind: str = "known") -> bytes | None:
        """The answer, empty where the connection is closed without one; None where nothing comes."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        with suppress(OSError):
            connection.sendall(request)
        if kind == "half":
            self.held.append(connection)
            if len(self.held) > HELD:
                self.held.pop(0).close()
            return b""
        with connection:
            if kind == "broken":  # the server may wait for more of it: after a while there is no more
                connection.settimeout(0.3)
                answer = receive(connection)
                if answer is not None:
                    return answer
                connection.settimeout(20)
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_WR)
            return receive(connection)

    def good(self) -> str:
        """The answer to a request that makes sense."""
        headers = {"Host": f"127.0.0.1:{self.port}", "Connection": "close"}
        answer = self.send(write("GET", f"/api/explanation?model=0&picture=d0&token={TOKEN}", headers, b"")) or b""
        return re.sub(r'"ms":[\d.]+', "", answer.partition(b"\r\n\r\n")[2].decode(errors="replace"))


def receive(connection: socket.socket) -> bytes | None:
    """All that comes until the connection is closed; None where nothing comes in time."""
    answer = b""
    try:
        while block := connection.recv(65536):
            answer += block
    except TimeoutError:
        return answer or None
    except OSError:  # the server closed it
        pass
    return answer


def start(words: list[str], log: Any, shop: Workshop) -> Training:
    server = Training(words, log)
    shop.at_end.append(server.end)
    return server


def write(method: str, target: str, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


def mangle(request: bytes, rng: Random) -> bytes:
    """A request as no client sends it."""
    way = rng.randrange(8)
    if way == 0:
        return rng.randbytes(rng.randint(1, 4000))
    if way == 1:
        return request.replace(b"HTTP/1.1", rng.choice((b"HTTP/9.9", b"HTTP/2.0", b"", b"HTTP/1.1\0", b"HTTP/1.0")), 1)
    if way == 2:
        return request.replace(b"\r\n", rng.choice((b"\n", b"\r", b"\r\n\r\n", b"\r\n ")))
    if way == 3:
        return request.replace(b"\r\n\r\n", b"\r\nX: " + b"a" * rng.choice((9000, 70_000, 300_000)) + b"\r\n\r\n", 1)
    if way == 4:
        more = b"".join(b"X-%d: y\r\n" % number for number in range(rng.choice((100, 3000))))
        return request.replace(b"\r\n\r\n", b"\r\n" + more + b"\r\n", 1)
    if way == 5:
        wrong = rng.choice((b"-1", b"1e9", b"99999999999999999999", b"5, 6", b"\xff", b"0x5"))
        return re.sub(rb"Content-Length: \d+", b"Content-Length: " + wrong, request)
    if way == 6:
        return request.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length", 1) + b"zz\r\nx\r\n"
    data = bytearray(request)
    for _ in range(rng.randint(1, 30)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)
