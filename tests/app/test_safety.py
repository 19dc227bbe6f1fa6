"""The page's server keeps to its own page and to pictures: it refuses foreign hosts, foreign code and harmful uploads."""

import json
import socket
import struct
import zlib

import pytest

from softbias.app import server as module
from softbias.app.safety import Access
from softbias.app.serving import bind
from softbias.cli import main
from softbias.errors import SoftbiasError


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


def test_it_listens_on_loopback_unless_another_address_is_given():
    for host, found in (
        ((), "127.0.0.1"),
        (("127.0.0.1",), "127.0.0.1"),
        (("localhost",), "127.0.0.1"),
        (("0.0.0.0",), "0.0.0.0"),
    ):
        listener = bind(0, *host)
        assert listener.getsockname()[0] == found
        listener.close()
    for host in ("no.such.host.invalid", "192.0.2.1", "a..b"):  # unknown, and not of this machine
        with pytest.raises(SoftbiasError, match=r"--host|not available"):
            bind(0, host)


def test_nothing_is_answered_without_the_token(served, png):
    paths = ("/", "/page/app.js", "/api/state", "/api/picture/d0", "/api/explanation?model=0&picture=d0", "/api/charts")
    paths += ("/api/training?model=0", "/api/maps?model=0&picture=d0&query=0", "/report/0", "/nothing")
    for cookie in ("", f"softbias-{served.port}=wrong", f"softbias-{served.port}={served.access.token}", "softbias-1=x; é=ü"):
        for path in paths:
            for wrong in ("", "token=", "token=wrong", f"token={served.access.token}&token=x", "token=%ff%00"):
                status, headers, body = served.ask_bare(
                    f"{path}{'&' if '?' in path else '?'}{wrong}", headers={"Cookie": cookie}
                )
                assert status == 403 and "set-cookie" not in headers, path
                assert "token" in (json.loads(body)["error"] if path.startswith("/api") else body.decode())
    assert served.ask_bare("/api/pictures", "POST", png(), {"Content-Type": "image/png"})[0] == 403
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Key": "x" * 22 + "==",
        "Sec-WebSocket-Version": "13",
    }
    assert served.ask_bare("/api/state", headers=upgrade)[0] == 403


def test_the_token_in_the_address_gives_a_cookie_that_scripts_and_other_sites_cannot_use(served):
    status, headers, _ = served.ask_bare(f"/?token={served.access.token}")
    value, *rules = headers["set-cookie"].split("; ")
    assert status == 200 and set(rules) == {"HttpOnly", "SameSite=Strict", "Path=/"} and served.access.token not in value
    assert served.ask_bare("/api/state", headers={"Cookie": f"a=b; {value}; c=d"})[0] == 200
    assert served.ask_bare(f"/api/state?token={served.access.token}")[0] == 200  # for curl


def test_a_link_with_the_token_opens_the_page_from_any_site_and_fetches_nothing_else(served):
    link = f"/?token={served.access.token}"
    assert served.ask_bare(link, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 200
    assert served.ask_bare(link, headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"})[0] == 403
    assert served.ask_bare(link, headers={"Origin": "https://evil.example"})[0] == 403
    assert served.ask("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})[0] == 403


def test_a_tunnel_may_end_at_another_port(served):
    cookie = {"Cookie": f"softbias-9000={served.access.cookie}"}
    assert (
        served.ask_bare("/api/state", headers={"Host": "localhost:9000", "Origin": "http://localhost:9000", **cookie})[0] == 200
    )
    assert (
        served.ask_bare("/api/state", headers={"Host": "localhost:9000", "Origin": "http://localhost:9001", **cookie})[0] == 403
    )


def test_beyond_loopback_addresses_and_the_own_name_are_served_and_no_other_name():
    everywhere, here = Access(host="0.0.0.0"), Access()
    for name in ("192.0.2.7", "2001:db8::1", socket.gethostname().lower()):
        assert everywhere.has_name(name) and not here.has_name(name)
    assert not everywhere.has_name("evil.example") and everywhere.has_name("localhost")
    assert here.local and not everywhere.local


@pytest.mark.parametrize("token", ["", "short", "with space", "a" * 201, "ümlaut-token", "a&b=c;ddd", "line\nbreak"])
def test_a_token_that_an_address_cannot_hold_is_refused(token, capsys):
    with pytest.raises(SoftbiasError):
        Access(token)
    assert main(["app", "ibit_nano", "--no-browser", "--token", token]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_tokens_are_new_each_time_and_not_printed_by_accident():
    one, two = Access(), Access()
    assert one.token != two.token and one.cookie != two.cookie and one.cookie != one.token and len(one.token) >= 32
    assert one.token not in repr(one) and one.cookie not in repr(one)


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
        head += [f"Cookie: {served.cookie}", "Transfer-Encoding: chunked"]
        line.sendall("\r\n".join([*head, "", ""]).encode() + b"800\r\n" + bytes(0x800) + b"\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 413")
    assert served.get("/api/state")
