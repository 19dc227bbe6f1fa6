"""A Hugging Face hub on this machine, for tests of the real client: one file in every repository, and mishaps on demand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class SmallHub:
    """What the hub answers.

    files      by name; their content lies on another host, as that of the real hub does
    size       that the hub states for them, where it is not the true one
    status     401, 403 or 404 for every file, with the hub's code for the reason
    breaks     downloads that end in the middle: the next ones are whole
    silence    seconds before a question about a file is answered
    """

    files: dict[str, bytes]
    address: str = ""
    size: int | None = None
    status: int = 200
    code: str = ""
    breaks: int = 0
    silence: float = 0.0
    asked: list[str] = field(default_factory=list)

    def asked_for_content(self) -> bool:
        return any(line.startswith("GET /content/") for line in self.asked)


@contextmanager
def small_hub(**files: bytes) -> Iterator[SmallHub]:
    """A running hub; a file's name is given with _ for its dot: model_safetensors=b"…"."""
    hub = SmallHub({name.replace("_", "."): content for name, content in files.items()})

    class Answers(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def answer(self) -> None:
            hub.asked.append(f"{self.command} {self.path}")
            content = hub.files.get(self.path.rpartition("/")[2])
            if self.path == "/":
                self.send({})
            elif hub.status != 200 or content is None:
                refused = {"X-Error-Code": hub.code or "EntryNotFound", "X-Repo-Commit": COMMIT}
                self.send(refused, hub.status if hub.status != 200 else 404)
            elif self.path.startswith("/content/"):
                self.send_content(content)
            else:
                time.sleep(hub.silence)
                etag, size = hashlib.sha256(content).hexdigest(), len(content) if hub.size is None else hub.size
                about = {"X-Repo-Commit": COMMIT, "X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(size)}
                content_address = hub.address.replace("127.0.0.1", "localhost")
                self.send({**about, "Location": f"{content_address}/content/{self.path.rpartition('/')[2]}"}, 302)

        def send_content(self, content: bytes) -> None:
            first = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            rest = content[first:]
            self.send({"Content-Length": str(len(rest))}, 206 if first else 200)
            if hub.breaks:
                hub.breaks -= 1
                rest = rest[: len(rest) // 2]
            self.wfile.write(rest)

        def send(self, headers: dict[str, str], status: int = 200) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": "0"} | headers).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
