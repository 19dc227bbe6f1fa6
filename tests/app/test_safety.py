"""The page's server keeps to its own page and to pictures: foreign hosts, code from elsewhere, and uploads that are traps."""

import json
import socket
import struct
import zlib

import pytest

from softbias.app import server as module
from softbias.app.server import bind


def test_every_answer_forbids_code_from_elsewhere(served):
    for path in ("/", "/api/state", "/page/app.js", "/nothing", "/api/picture/d0"):
        _, headers, _ = served.ask(path)
        assert "default-src 'none'" in headers["content-security-policy"] and "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    _, headers, body = served.ask("/report/0")
    assert b"softbias" in body and "sandbox" in headers["content-security-policy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1.evil.example:{port}"},
        {"Host": "127.0.0.1:1"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_foreign_hosts_and_origins_are_refused(served, png, headers):
    given = {name: value.format(port=served.port) for name, value in headers.items()}
    for path in ("/", "/api/state"):
        assert served.ask(path, headers=given)[0] == 403
    assert served.upload(png(), **given)[0] == 403


def test_the_pages_own_host_and_origin_are_served(served):
    for host in (f"127.0.0.1:{served.port}", f"localhost:{served.port}"):
        assert (
            served.ask("/api/state", headers={"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"})[0]
            == 200
        )


def test_it_listens_on_loopback_alone():
    listener = bind(0)
    assert listener.getsockname()[0] == "127.0.0.1"
    listener.close()


def bomb(width=60_000, height=60_000):
    """A PNG of a few hundred bytes that says it has 3.6 billion pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("make", "kind", "status"),
    [
        (lambda png: b"", "image/png", 422),
        (lambda png: b"junk" * 99, "image/png", 422),
        (lambda png: b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml", 422),
        (lambda png: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/x-eps", 422),
        (lambda png: png[:60], "image/png", 422),
        (lambda png: bomb(), "image/png", 422),
        (lambda png: bomb(8000, 8000), "image/png", 422),
        (lambda png: png, "text/html", 415),
        (lambda png: png, "", 415),
        (lambda png: bytes(16 * 2**20 + 1), "image/png", 413),
    ],
)  # fmt: skip
def test_only_images_of_a_decent_size_are_taken(served, png, make, kind, status):
    found, _, body = served.upload(make(png()), kind)
    assert found == status and json.loads(body)["error"]
    assert served.get("/api/state")


def test_a_body_without_an_announced_length_is_cut_off_at_the_limit(served, monkeypatch):
    monkeypatch.setattr(module, "MAX_UPLOAD", 1000)
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as line:
        head = ["POST /api/pictures HTTP/1.1", f"Host: 127.0.0.1:{served.port}", "Content-Type: image/png"]
        head += ["Transfer-Encoding: chunked"]
        line.sendall("\r\n".join([*head, "", ""]).encode() + b"800\r\n" + bytes(0x800) + b"\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 413")
    assert served.get("/api/state")
