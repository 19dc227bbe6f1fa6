"""Requests that make no sense get a sentence, and junk never stops the server."""

import json
import random
import socket
from urllib.parse import quote

import pytest
from attacks.requests import VALUES


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/explanation", 400), ("/api/explanation?model=0", 400), ("/api/explanation?model=9&picture=d0", 404),
        ("/api/explanation?model=-1&picture=d0", 400), ("/api/explanation?model=0&model=1&picture=d0", 400),
        ("/api/explanation?model=0&picture=/etc/passwd", 400),
        ("/api/explanation?model=0&picture=d99999", 404), ("/api/explanation?model=0&picture=d0&checkpoint=99", 404),
        ("/api/explanation?model=0&picture=d0&target=99", 404), ("/api/explanation?model=1&picture=d0&checkpoint=0", 404),
        ("/api/maps?model=0&picture=d0", 400), ("/api/maps?model=0&picture=d0&query=64", 404),
        ("/api/maps?model=0&picture=d0&query=²", 400), ("/api/picture/..%2f..%2fetc%2fpasswd", 404), ("/api/picture/x", 400),
        ("/page/../server.py", 404), ("/page/%2e%2e/server.py", 404), ("/page/index.html", 404), ("/report/1", 404),
        ("/report/x", 400), ("/api/training", 400), ("/api/training?model=1e3", 400), ("/api/state/", 404),
        ("/favicon.ico", 404),
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_get_a_sentence(served, path, status):
    found, _, body = served.ask(quote(path, safe="/?&=%.+-~"))
    assert found == status and json.loads(body)["error"]


def test_other_methods_are_refused(served):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert served.ask("/api/state", method)[0] == 405
    assert served.ask("/api/pictures")[0] == 405


def test_the_server_survives_six_hundred_malformed_requests_without_a_5xx(served, png):
    """A seeded loop: mangled paths, parameters, headers, methods and bodies, and raw bytes that are no HTTP at all."""
    rng = random.Random(0)
    paths = [
        "/",
        "/api/state",
        "/api/explanation",
        "/api/maps",
        "/api/training",
        "/api/pictures",
        "/api/picture/",
        "/page/",
        "/report/",
    ]
    names = ["model", "picture", "checkpoint", "query", "target", "x", "", "model[]", "model%00"]
    values = [value for value in VALUES if " " not in value]  # which the client itself refuses to send
    bodies = [
        b"",
        b"{}",
        b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
        b"GIF89a" + b"\xff" * 30,
        b"\xff\xd8\xff" + b"\0" * 50,
        png()[:45],
        bytes(rng.randbytes(300)),
    ]
    kinds = ["image/png", "image/", "application/octet-stream", "multipart/form-data; boundary=x", "text/plain", "\xff", ""]
    seen: dict[int, int] = {}
    for _ in range(450):
        path = rng.choice(paths) + rng.choice(["", "", rng.choice(values), "%2e%2e%2f", "//"])
        query = "&".join(f"{rng.choice(names)}={rng.choice(values)}" for _ in range(rng.randrange(5)))
        headers = {"Content-Type": rng.choice(kinds)} if rng.random() < 0.5 else {}
        if rng.random() < 0.2:
            headers[
                rng.choice(["Range", "If-None-Match", "Accept-Encoding", "Content-Encoding", "Cookie", "If-Modified-Since"])
            ] = rng.choice(values)
        if rng.random() < 0.1:
            headers["Range"] = rng.choice(["bytes=5-1", "bytes=0-,0-,0-", "bytes=-", "bytes=99999999-", "lines=1"])
        method = rng.choice(["GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "OPTIONS", "BREW"])
        target = "".join(letter if ord(letter) < 128 else f"%{ord(letter) & 255:02x}" for letter in f"{path}?{query}")
        status, _, _ = served.ask(target, method, rng.choice(bodies), headers)
        seen[status] = seen.get(status, 0) + 1
    assert max(seen) < 500 and seen.get(400, 0) > 30, seen
    for _ in range(150):
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as line:
            start = rng.choice(
                [
                    b"",
                    b"GET / HTTP/1.1\r\n",
                    b"POST /api/pictures HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999\r\n\r\n",
                    b"\x16\x03\x01",
                ]
            )
            line.sendall(start + rng.randbytes(rng.randrange(60)) + rng.choice([b"", b"\r\n\r\n"]))
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(64)
            assert not answer.startswith(b"HTTP/1.1 5"), (start, answer)
    assert served.get("/api/state")["models"]
