"""The page's requests and their answers: small ones in JSON, maps as raw float32.

    GET  /                      the page, with /page/app.js and the others
    GET  /api/state             models with their checkpoints, the number of pictures, notes
    GET  /api/picture/ID        a picture (PNG); ?model=N: as the input of that model
    POST /api/pictures          a picture of the user, as the body; answers its id
    GET  /api/explanation?…     prediction, relevance, layers, gates of a model on a picture
    GET  /api/maps?…&query=Q    attention of every head of every layer from patch Q (or "token"): float32, layer by layer
    GET  /api/training?model=N  learning curves, and gates by checkpoint
    GET  /api/charts            loss and accuracy of all runs as HTML; ?model=N&checkpoint=K: the gates of one
    GET  /report/N              report.html of a run

An error is answered by its type, with a sentence that the page shows: 400 for a request that makes no sense, 404 for
something that is not there, 409 for files that cannot be read (a damaged checkpoint), 422 for a broken upload.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from softbias.app.answers import describe_explanation, describe_state, maps_of
from softbias.app.charts import gates_chart, training_charts
from softbias.app.safety import PAGE_POLICY, Access, Guard
from softbias.app.state import AppState, NotFoundError, RequestError
from softbias.data.decode import BrokenImageError
from softbias.errors import SoftbiasError, in_one_line
from softbias.explanations.explanation import Explanation
from softbias.pages.html import render, script, style

MAX_UPLOAD = 16 * 2**20  # bytes
PAGE = {"app.js": "text/javascript", "maps.js": "text/javascript", "style.css": "text/css"}
FOLDER = Path(__file__).parent / "page"
NUMBER = re.compile(r"0|[1-9]\d{0,8}")
Handler = Callable[[Request], Awaitable[Response]]


def make_app(state: AppState, access: Access) -> Any:
    """The ASGI application."""

    gates_read: dict[int, tuple[list[dict[str, Any]], int]] = {}  # of each model, once they have been drawn

    def route(path: str, handler: Handler, method: str = "GET") -> Route:
        return Route(path, handler, methods=[method])

    async def index(request: Request) -> Response:
        return FileResponse(FOLDER / "index.html", media_type="text/html")

    async def part(request: Request) -> Response:
        name = request.path_params["name"]
        if name == "theme.css":
            return Response(style(), media_type="text/css")
        if name == "page.js":
            return Response(script(), media_type="text/javascript")
        if name not in PAGE:
            raise NotFoundError("there is no such file")
        return FileResponse(FOLDER / name, media_type=PAGE[name])

    async def describe(request: Request) -> Response:
        return JSONResponse(describe_state(state))

    async def picture(request: Request) -> Response:
        model = whole(request, "model")
        png = await run_in_threadpool(state.png, request.path_params["name"], model)
        return Response(png, media_type="image/png")

    async def upload(request: Request) -> Response:
        content = await read_body(request)
        name = await run_in_threadpool(state.upload, content)
        return JSONResponse({"id": name}, status_code=201)

    async def explain(request: Request) -> Response:
        start = perf_counter()
        found = await run_in_threadpool(explained, request)
        label = state.label(request.query_params["picture"])
        return JSONResponse({**describe_explanation(found), "truth": label, "ms": round(1000 * (perf_counter() - start), 1)})

    async def maps(request: Request) -> Response:
        found = await run_in_threadpool(explained, request)
        content = b"".join(
            np.ascontiguousarray(one, np.float32).tobytes() for one in maps_of(found, parse_query(request, found))
        )
        return Response(content, media_type="application/octet-stream")

    async def training(request: Request) -> Response:
        model = state.model(needed(request, "model"))
        gates, damaged = await run_in_threadpool(model.gates)
        test = model.summary.get("test") or {}
        score = {key: test[key] for key in ("accuracy", "accuracy_interval", "n") if key in test}
        found = {"epochs": model.epochs, "gates": gates, "damaged": damaged, "test": score or None}
        return JSONResponse({**found, "report": model.report is not None})

    async def charts(request: Request) -> Response:
        number, damaged = whole(request, "model"), 0
        if number is None:
            runs = {name: model.epochs for name, model in zip(state.names, state.models, strict=True) if model.run}
            found = training_charts(runs)
        else:
            model, checkpoint = state.model(number), whole(request, "checkpoint")
            if number not in gates_read:
                gates_read[number] = await run_in_threadpool(model.gates)
            step = model.steps()[checkpoint] if checkpoint is not None and checkpoint < len(model.checkpoints) else None
            rows, damaged = gates_read[number]
            gates = gates_chart(state.names[number], rows, step)
            found = [] if gates is None else [gates]
        return Response(render("charts.html.jinja", charts=found, damaged=damaged), media_type="text/html")

    async def report(request: Request) -> Response:
        path = state.model(checked_number("model", request.path_params["number"])).report
        if path is None:
            raise NotFoundError("this model has no report")
        return FileResponse(path, media_type="text/html", headers={"content-security-policy": PAGE_POLICY})

    def explained(request: Request) -> Explanation:
        picture = request.query_params.get("picture", "")
        checkpoint, target = whole(request, "checkpoint"), whole(request, "target")
        return state.explain(needed(request, "model"), checkpoint, picture, target)

    app = Starlette(
        routes=[
            route("/", index),
            route("/page/{name}", part),
            route("/api/state", describe),
            route("/api/picture/{name}", picture),
            route("/api/pictures", upload, "POST"),
            route("/api/explanation", explain),
            route("/api/maps", maps),
            route("/api/training", training),
            route("/api/charts", charts),
            route("/report/{number}", report),
        ],
        exception_handlers={
            HTTPException: lambda _, error: refused(error.status_code, error.detail, error.headers),
            ClientDisconnect: lambda _, error: refused(400, "the upload was not finished"),
            RequestError: lambda _, error: refused(400, str(error)),
            NotFoundError: lambda _, error: refused(404, str(error)),
            BrokenImageError: lambda _, error: refused(422, f"this file cannot be shown: it {error.reason}"),
            SoftbiasError: lambda _, error: refused(409, str(error)),
            OSError: lambda _, error: refused(409, f"a file cannot be read: {in_one_line(error)}"),
        },
    )
    app.router.redirect_slashes = False
    return Guard(app, access)


def refused(status: int, text: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": text}, status_code=status, headers=headers)


def whole(request: Request, name: str) -> int | None:
    """A parameter that is a whole number; None if it is missing."""
    given = request.query_params.getlist(name)
    if len(given) > 1:
        raise RequestError(f"{name} was given {len(given)} times")
    return checked_number(name, given[0]) if given else None


def needed(request: Request, name: str) -> int:
    number = whole(request, name)
    if number is None:
        raise RequestError(f"{name} is missing")
    return number


def checked_number(name: str, text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise RequestError(f"{name} must be a whole number")
    return int(text)


def parse_query(request: Request, explanation: Explanation) -> tuple[int, int] | None:
    """The patch (row, column), or None for the class token."""
    if request.query_params.get("query") == "token":
        return None
    number = needed(request, "query")
    if not explanation.grids:
        raise NotFoundError("this model has no attention maps")
    grid = next(iter(explanation.grids.values()))
    if number >= grid.patches:
        raise NotFoundError(f"there is no patch {number}: there are {grid.patches}")
    return divmod(number, grid.width)


async def read_body(request: Request) -> bytes:
    """The body, up to the limit. A stated length over the limit is refused at once; the real length is counted anyway."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not kind.startswith("image/") and kind != "application/octet-stream":
        raise HTTPException(415, "only pictures can be shown: send one as the body, with its type")
    stated = request.headers.get("content-length", "")
    if stated.isdigit() and int(stated) > MAX_UPLOAD:
        raise HTTPException(413, f"a picture may have {MAX_UPLOAD // 2**20} MB")
    content = bytearray()
    async for block in request.stream():
        content += block
        if len(content) > MAX_UPLOAD:
            raise HTTPException(413, f"a picture may have {MAX_UPLOAD // 2**20} MB")
    return bytes(content)
