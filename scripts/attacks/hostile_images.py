"""Hostile pictures: broken, huge, of rare kinds, under hostile names, or no files at all, beside one good picture.

The good picture must get the same answer as ever. The hostile one is classified, or named and counted. A name must not reach
a terminal or a table as it is, if it holds control characters or begins like a formula.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import socket
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from attacks.verdict import OK, Answer, Outcome, judge
from attacks.workshop import TRAINING, Workshop

COMMANDS = ("predict", "predict-csv", "explain", "data check", "fit", "evaluate")
NAMES: dict[str, bytes] = {
    "plain": b"hostile",
    "newline": b"two\nlines",
    "escape": b"\x1b[31mred\x1b[2J",
    "latin-1": b"caf\xe9",
    "bytes": b"\xff\xfe",
    "formula": b"=HYPERLINK(1)",
    "at": b"@SUM(1)",
    "dash": b"-rf",
    "marker": b"@@PLOTLY@@",
    "script": b"<script>alert(1)",
    "template": b"{{7*7}}{% raw %}",
    "quote": b"a'b\"c",
    "long": b"x" * 240,
    "tab": b"a\tb",
    "right-to-left": "\u202egnp".encode(),
    "emoji": "🐈".encode(),
    "dots": b"..",
    "percent": b"%s%n%00",
    "carriage return": b"a\rb",
    "c1": "\u009b31m".encode(),
}


def encoded(kind: str, **options: object) -> Callable[[Path, Random], None]:
    """A real picture in a rare format."""

    def write(path: Path, rng: Random) -> None:
        from PIL import Image

        mode = str(options.get("mode", "RGB"))
        image = Image.frombytes("RGB", (40, 30), rng.randbytes(3600)).convert(mode)
        more = {name: value for name, value in options.items() if name != "mode"}
        if kind in ("GIF", "TIFF", "WEBP", "PNG") and more.pop("frames", False):
            frames = [Image.frombytes("RGB", (40, 30), rng.randbytes(3600)) for _ in range(3)]
            image.save(path, kind, save_all=True, append_images=frames, **more)
        else:
            image.save(path, kind, **more)

    return write


def content(make: Callable[[Random], bytes]) -> Callable[[Path, Random], None]:
    return lambda path, rng: path.write_bytes(make(rng)) and None


def png(width: int, height: int, data: bytes, bits: int = 8, kind: int = 2, extra: bytes = b"") -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + extra + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def damaged(kind: str) -> Callable[[Path, Random], None]:
    """A picture with some of its bytes changed, or cut off."""

    def write(path: Path, rng: Random) -> None:
        stream = io.BytesIO()
        from PIL import Image

        Image.frombytes("RGB", (40, 30), rng.randbytes(3600)).save(stream, kind)
        data = bytearray(stream.getvalue())
        if rng.random() < 0.4:
            del data[rng.randrange(len(data)) :]
        for _ in range(rng.randint(0, 20)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data))

    return write


def turned(number: int) -> Callable[[Path, Random], None]:
    def write(path: Path, rng: Random) -> None:
        from PIL import Image

        image = Image.frombytes("RGB", (40, 30), rng.randbytes(3600))
        exif = Image.Exif()
        exif[0x0112] = number
        image.save(path, "JPEG", exif=exif)

    return write


def bind_socket(path: Path, rng: Random) -> None:
    """A socket; its short name is bound first, because names of sockets may have only 107 bytes."""
    short = path.parent / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(short))
    short.rename(path)


def unreadable(path: Path, rng: Random) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


def loop(path: Path, rng: Random) -> None:
    path.symlink_to(path.name)


MODES = ("L", "LA", "P", "RGBA", "1", "I;16")
IMAGES: dict[str, Callable[[Path, Random], None]] = {
    **{f"{mode} png": encoded("PNG", mode=mode) for mode in MODES},
    **{f"{mode} tiff": encoded("TIFF", mode=mode) for mode in ("CMYK", "F", "LAB", "I;16", "YCbCr")},
    "CMYK jpeg": encoded("JPEG", mode="CMYK"),
    "animated gif": encoded("GIF", frames=True),
    "pages": encoded("TIFF", frames=True),
    "animated webp": encoded("WEBP", frames=True),
    "animated png": encoded("PNG", frames=True),
    "bmp": encoded("BMP"),
    "icon": encoded("ICO"),
    "eps": content(lambda rng: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"),
    "svg": content(lambda rng: b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'),
    "pdf": content(lambda rng: b"%PDF-1.4\n" + rng.randbytes(200)),
    "html": content(lambda rng: b"<html><body>404</body></html>"),
    "zero bytes": content(lambda rng: b""),
    "noise": content(lambda rng: rng.randbytes(5000)),
    "one by one": content(lambda rng: png(1, 1, b"\0\1\2\3")),
    "zero by zero": content(lambda rng: png(0, 0, b"")),
    "thin": content(lambda rng: png(20000, 1, b"\0" + b"\7" * 60000)),
    "bomb": content(lambda rng: png(50000, 50000, b"\0" * 10**6)),
    "bomb in bits": content(lambda rng: png(60000, 60000, b"\0" * 9**6, 1, 0)),
    "largest header": content(lambda rng: png(2**31 - 1, 2**31 - 1, b"")),
    "no pixels": content(lambda rng: png(64, 64, b"")),
    "text bomb": content(lambda rng: png(4, 4, b"\0" * 52, extra=text_bomb())),
    "huge gif": content(
        lambda rng: b"GIF89a" + b"\xff" * 4 + b"\x80\0\0" + b"\0" * 6 + b"," + b"\0" * 4 + b"\xff" * 4 + b"\0\2;"
    ),
    "huge jpeg": content(lambda rng: b"\xff\xd8\xff\xc0\0\x11\x08" + b"\xff" * 4 + b"\3\1\x11\0\2\x11\0\3\x11\0\xff\xda"),
    "huge bmp": content(lambda rng: b"BM" + struct.pack("<IHHIIiiHH", 99, 0, 0, 54, 40, 2**30, -(2**30), 1, 24) + b"\0" * 24),
    "tiff loop": content(lambda rng: b"II*\0\x08\0\0\0\0\0\x08\0\0\0"),
    "tiff far": content(lambda rng: b"II*\0\xff\xff\xff\x7f"),
    **{f"damaged {kind}": damaged(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP")},
    **{f"exif {number}": turned(number) for number in (0, 2, 3, 6, 8, 9, 65535)},
    "fifo": lambda path, rng: os.mkfifo(path),
    "socket": bind_socket,
    "dangling link": lambda path, rng: path.symlink_to("nothing"),
    "link loop": loop,
    "link to itself": lambda path, rng: path.symlink_to("."),
    "folder": lambda path, rng: path.mkdir(),
    "device": lambda path, rng: path.symlink_to("/dev/zero"),
    "unreadable": unreadable,
}


def text_bomb() -> bytes:
    """A compressed text chunk that grows to 64 MB."""
    body = b"Comment\0\0" + zlib.compress(b"A" * (64 << 20))
    return struct.pack(">I", len(body)) + b"zTXt" + body + struct.pack(">I", zlib.crc32(b"zTXt" + body))


class HostileImages:
    def __init__(self, shop: Workshop, cases: int = 500) -> None:
        self.shop = shop
        self.run_folder = shop.finished_run()
        rng = shop.rng("hostile images")
        every = [(image, name, command) for image in IMAGES for name in NAMES for command in COMMANDS]
        rng.shuffle(every)
        self.cases = every[:cases]
        self.expected: str | None = None

    def __len__(self) -> int:
        return len(self.cases)

    def title(self, number: int) -> str:
        image, name, command = self.cases[number]
        return f"{command}: {image}, name {name}"

    def run(self, number: int) -> Outcome:
        image, name, command = self.cases[number]
        case = self.shop.root / "case"
        shutil.rmtree(case, ignore_errors=True)
        folder = self.folder(case, command)
        os.chdir(case)
        good = folder / "good.png"
        shutil.copy(self.shop.images() / "blue/blue0.png", good)
        suffix = b".jpg" if image.endswith("jpeg") or "JPEG" in image else b".png"
        hostile = folder / os.fsdecode(NAMES[name] + suffix)
        IMAGES[image](hostile, self.shop.rng("hostile image", number))
        answer = self.shop.call(self.words(command, case, folder))
        found = judge(answer)
        return found if found is not OK else self.check(answer, command, hostile)

    def folder(self, case: Path, command: str) -> Path:
        """Where the hostile picture goes: a folder of its own, or one of the classes of a set."""
        if command in ("predict", "predict-csv", "explain"):
            (case / "in").mkdir(parents=True)
            return case / "in"
        shutil.copytree(self.shop.images(), case / "set")
        return case / "set" / "blue"

    def words(self, command: str, case: Path, folder: Path) -> list[str | Path]:
        run = self.run_folder
        return {
            "predict": ["predict", run, folder],
            "predict-csv": ["predict", run, folder, "--out", "rows.csv"],
            "explain": ["explain", run, folder, "--json"],
            "data check": ["data", "check", case / "set"],
            "fit": ["fit", case / "set", "--skip-broken", "--out", case / "run", *TRAINING, "--epochs", "1", "--no-baseline",
                    "--model", "deit_nano", "--model-option", "width=16", "--model-option", "depth=1", "--img-size", "32"],
            "evaluate": ["evaluate", run, "--data", case / "set", "--skip-broken", "--json"],
        }[command]  # fmt: skip

    def check(self, answer: Answer, command: str, hostile: Path) -> Outcome:
        if command == "predict-csv" and answer.status in (0, 1):
            with open("rows.csv", newline="", encoding="utf-8", errors="surrogateescape") as stream:
                rows = list(csv.reader(stream))
            formulas = [cell for row in rows for cell in row if cell[:1] in ("=", "@", "+", "\t", "\r")]
            formulas += [cell for row in rows for cell in row[:2] if cell[:1] == "-"]
            if formulas:
                return Outcome("leak", f"a formula in the table: {formulas[0][:60]!r}")
            return self.compare_good([row for row in rows if row and row[0].endswith("good.png")], answer)
        if command == "predict" and answer.status in (0, 1):
            return self.compare_good([line.split("\t") for line in answer.out.splitlines() if "good.png\t" in line], answer)
        return OK

    def compare_good(self, rows: list[list[str]], answer: Answer) -> Outcome:
        if self.expected is None:
            words = ["predict", self.run_folder, self.shop.images() / "blue/blue0.png"]
            self.expected = "\t".join(self.shop.call(words).out.split("\t")[1:]).strip()
        label, confidence = self.expected.split("\t")[:2]
        if len(rows) != 1:
            return Outcome("lost artefact", f"the good picture has {len(rows)} rows; {answer.last_line()[:200]}")
        if rows[0][1] != label or abs(float(rows[0][2]) - float(confidence)) > 0.0006:
            return Outcome("silent wrong number", f"the good picture is {rows[0][1:3]} instead of {[label, confidence]}")
        return OK
