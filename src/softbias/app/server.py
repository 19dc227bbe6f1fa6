"""The page's server: small answers in JSON, maps as raw float32, on 127.0.0.1 alone.

    GET  /                      the page, with /page/app.js and the others
    GET  /api/state             models with their checkpoints, and how many pictures there are
    GET  /api/picture/ID        a picture (PNG); ?model=N: as that model sees it
    POST /api/pictures          a picture of one's own, as the body; answers its id
    GET  /api/look?…            prediction, relevance, layers, gates of a model on a picture
    GET  /api/rows?…&query=Q    where every head of every layer looks from patch Q (or "token"): float32, layer by layer
    GET  /api/training?model=N  learning curves, and gates by checkpoint
    GET  /report/N              report.html of a run

A request that makes no sense is answered with 4xx and a sentence; the server lives on.
"""

from __future__ import annotations

import re
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from softbias._version import __version__
from softbias.app.safety import REPORT_POLICY, Guard
from softbias.app.shelf import Absent, Shelf
from softbias.data.decode import BrokenImageError
from softbias.errors import SoftbiasError
from softbias.explanations.explanation import Explanation
from softbias.explanations.figure import TITLES

MAX_UPLOAD = 16 * 2**20  # bytes
PAGE = {"app.js": "text/javascript", "maps.js": "text/javascript", "charts.js": "text/javascript", "style.css": "text/css"}
FOLDER = Path(__file__).parent / "page"
NUMBER = re.compile(r"0|[1-9]\d{0,8}")
Handler = Callable[[Request], Awaitable[Response]]


def make_app(shelf: Shelf, port: int) -> Any:
    """The ASGI application; `port` is part of the addresses it answers under."""

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, handler, methods=[method])

    async def index(request: Request) -> Response:
        return FileResponse(FOLDER / "index.html", media_type="text/html")

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in PAGE:
            raise HTTPException(404, "there is no such file")
        return FileResponse(FOLDER / name, media_type=PAGE[name])

    async def state(request: Request) -> Response:
        return JSONResponse(describe(shelf))

    async def picture(request: Request) -> Response:
        model = whole(request, "model", optional=True)
        png = await run_in_threadpool(shelf.png, request.path_params["name"], model)
        return Response(png, media_type="image/png")

    async def upload(request: Request) -> Response:
        content = await read_body(request)
        name = await run_in_threadpool(shelf.upload, content)
        return JSONResponse({"id": name}, status_code=201)

    async def look(request: Request) -> Response:
        start = perf_counter()
        seen = await run_in_threadpool(seen_by, request)
        label = shelf.label(request.query_params["picture"])
        return JSONResponse({**describe_look(seen), "truth": label, "ms": round(1000 * (perf_counter() - start), 1)})

    async def rows(request: Request) -> Response:
        seen = await run_in_threadpool(seen_by, request)
        found = shelf.rows(seen, parse_query(request, seen))
        content = b"".join(np.ascontiguousarray(part, np.float32).tobytes() for part in found)
        return Response(content, media_type="application/octet-stream")

    async def training(request: Request) -> Response:
        shown = shelf.model(whole(request, "model"))
        gates = await run_in_threadpool(shown.gates)
        test = shown.summary.get("test") or {}
        score = {key: test[key] for key in ("accuracy", "accuracy_interval", "n") if key in test}
        return JSONResponse({"epochs": shown.rows, "gates": gates, "test": score or None, "report": shown.report is not None})

    async def report(request: Request) -> Response:
        path = shelf.model(checked_number("model", request.path_params["number"])).report
        if path is None:
            raise HTTPException(404, "this model has no report")
        return FileResponse(path, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    def seen_by(request: Request) -> Explanation:
        picture = request.query_params.get("picture", "")
        checkpoint, target = whole(request, "checkpoint", optional=True), whole(request, "target", optional=True)
        return shelf.look(whole(request, "model"), checkpoint, picture, target)

    app = Starlette(
        routes=[
            route("/", index),
            route("/page/{name}", part),
            route("/api/state", state),
            route("/api/picture/{name}", picture),
            route("/api/pictures", upload, "POST"),
            route("/api/look", look),
            route("/api/rows", rows),
            route("/api/training", training),
            route("/report/{number}", report),
        ],
        exception_handlers={
            HTTPException: lambda _, error: refused(error.status_code, error.detail, error.headers),
            BrokenImageError: lambda _, error: refused(422, f"this file cannot be shown: it {tidy(error.reason)}"),
            Absent: lambda _, error: refused(404, str(error)),
            ValueError: lambda _, error: refused(400, str(error)),
            ClientDisconnect: lambda _, error: refused(400, "the upload was not finished"),
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, port)


def refused(status: int, text: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status, headers=headers)


def tidy(reason: str) -> str:
    return reason if reason.split(" ")[0] in ("has", "is", "ends", "needs") else f"could not be decoded ({reason})"


def whole(request: Request, name: str, *, optional: bool = False) -> Any:
    """A parameter that is a whole number; an optional one may be missing."""
    given = request.query_params.getlist(name)
    if len(given) > 1:
        raise SoftbiasError(f"{name} was given {len(given)} times")
    if not given:
        if optional:
            return None
        raise SoftbiasError(f"{name} is missing")
    return checked_number(name, given[0])


def checked_number(name: str, text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise SoftbiasError(f"{name} must be a whole number")
    return int(text)


def parse_query(request: Request, seen: Explanation) -> tuple[int, int] | None:
    if request.query_params.get("query") == "token":
        return None
    number = whole(request, "query")
    if not seen.grids:
        raise Absent("this model has no attention maps")
    grid = next(iter(seen.grids.values()))
    if number >= grid.patches:
        raise Absent(f"there is no patch {number}: there are {grid.patches}")
    return divmod(number, grid.width)


async def read_body(request: Request) -> bytes:
    """The body, as long as it is not too long; an announced length is believed only where it refuses."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(415, "only pictures can be shown: send one as the body, with its type")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > MAX_UPLOAD:
        raise HTTPException(413, f"a picture may have {MAX_UPLOAD // 2**20} MB")
    content = bytearray()
    async for block in request.stream():
        content += block
        if len(content) > MAX_UPLOAD:
            raise HTTPException(413, f"a picture may have {MAX_UPLOAD // 2**20} MB")
    return bytes(content)


def describe(shelf: Shelf) -> dict[str, Any]:
    return {
        "version": __version__,
        "data": {"name": shelf.data.name, "pictures": len(shelf.order)},
        "models": [
            {
                "name": name,
                "architecture": getattr(shown.classifier.model, "name", None) or type(shown.classifier.model).__name__,
                "weights": shown.classifier.weights,
                "img_size": shown.classifier.img_size,
                "run": shown.run is not None,
                "finished": shown.run is None or shown.run.finished,
                "checkpoints": shown.steps(),
                "report": shown.report is not None,
            }
            for name, shown in zip(shelf.names, shelf.models, strict=True)
        ],
    }


def describe_look(seen: Explanation) -> dict[str, Any]:
    """All about an explanation but its maps."""
    grid = next(iter(seen.grids.values()), None)
    order = np.argsort(-seen.probabilities, kind="stable")[:10]
    return {
        "label": seen.label,
        "target": seen.target,
        "target_name": seen.class_names[seen.target],
        "classes": [{"number": int(k), "name": seen.class_names[k], "p": float(seen.probabilities[k])} for k in order],
        "size": list(seen.picture.shape[:2]),
        "grid": None if grid is None else [grid.height, grid.width],
        "layers": [
            {
                "layer": layer,
                "kind": seen.mechanisms.get(layer, ""),
                "heads": len(found),
                "signed": seen.signed(layer),
                "token": seen.grids[layer].prefix > 0,
                "gates": seen.gates[layer].tolist() if layer in seen.gates else None,
                "bias": layer in seen.bias,
            }
            for layer, found in seen.maps.items()
        ],
        "relevance": [
            {"method": name, "title": TITLES.get(name, name), "shape": list(found.shape), "values": finite(found)}
            for name, found in seen.relevance.items()
        ],
        "notes": list(seen.notes),
        "weights": seen.weights,
    }


def finite(found: Any) -> list[float]:
    return np.nan_to_num(found.astype(np.float64), posinf=0, neginf=0).round(7).flatten().tolist()


# Serving


def bind(port: int | None) -> socket.socket:
    """A socket on 127.0.0.1: at the port asked for, or at the usual one, or at any that is free."""
    usual = 8017
    for wanted in [port] if port is not None else [usual, 0]:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wanted))
            return listener
        except OSError as error:
            listener.close()
            reason = error
    raise SoftbiasError(f"port {port} cannot be had ({reason.strerror}); choose another --port, or none")


def make_server(shelf: Shelf, port: int) -> uvicorn.Server:
    config = uvicorn.Config(
        make_app(shelf, port),
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        limit_concurrency=64,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def serve(shelf: Shelf, *, port: int | None = None, browser: bool = True, say: Callable[[str], None] = print) -> None:
    """Serve until Ctrl-C."""
    listener = bind(port)
    number = listener.getsockname()[1]
    server = make_server(shelf, number)
    address = f"http://127.0.0.1:{number}/"
    say(f"{address}  (Ctrl-C ends it; only this machine can open it)")
    if browser:
        threading.Timer(0.5, webbrowser.open, [address]).start()
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        listener.close()
