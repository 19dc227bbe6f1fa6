"""`softbias explain` and `softbias app`: why a model decided as it did, in a figure and a page per picture, or on a
local page where you click a patch and see the attention of every head."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from softbias.bounds import FilePath, Port, ShortText
from softbias.cli.parsing import flag, switch
from softbias.errors import SoftbiasError
from softbias.terminal import cells, echo


def explain(
    model: Annotated[
        ShortText,
        tyro.conf.Positional,
        flag("MODEL", "A run's or a saved model's folder, timm:NAME, hf:FOLDER, or a model's name."),
    ],
    images: Annotated[tuple[FilePath, ...], tyro.conf.Positional, flag("IMAGE", "Pictures, or folders of them.")],
    /,
    out: Annotated[FilePath | None, flag("DIR", "The folder for the files; explanations/ if not given.")] = None,
    query: Annotated[
        ShortText | None,
        flag("ROW,COLUMN", "The patch whose attention is shown, from 0,0 at the top left; the middle one if not given."),
    ] = None,
    target: Annotated[
        ShortText | None, flag("CLASS", "The class that gradients are about; the predicted one if not given.")
    ] = None,
    methods: Annotated[
        ShortText | None,
        flag(
            "NAMES",
            "Ways to explain, separated by commas (docs/explaining.md); if not given rollout, gradient-rollout and gradients; "
            "grad-cam and gradients for a model without attention.",
        ),
    ] = None,
    png: Annotated[bool, switch("Only figures (*.png).")] = False,
    html: Annotated[bool, switch("Only pages (*.html).")] = False,
    json: Annotated[bool, switch("Print one array of JSON; files are then written only with --out, --png or --html.")] = False,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> int:
    """Show why a model decides as it does: prediction, rollout, the attention of every head, gates and masks.

    A file that cannot be read is named and skipped; the exit status is then 1 instead of 0.

    Args:
        device: Where to compute.
    """
    if not images:
        raise SoftbiasError("which pictures? softbias explain MODEL IMAGE…")
    missing = [str(path) for path in images if not path.exists()]
    if missing:
        raise SoftbiasError(f"{', '.join(missing)} cannot be found: give pictures, or folders of them")
    patch = parse_query(query)
    from softbias.data.decode import BrokenImageError
    from softbias.environment import find_device
    from softbias.explanations.explanation import explain as explain_one
    from softbias.runs.inference import find_image_files
    from softbias.runs.opening import open_classifier

    classifier = open_classifier(model, device=find_device(device))
    chosen = methods.split(",") if methods else None
    kinds = [kind for kind, wanted in (("png", png), ("html", html)) if wanted] or ["png", "html"]
    kinds = [] if json and out is None and not (png or html) else kinds
    folder, taken, rows, bad = out or Path("explanations"), set[str](), list[dict[str, Any]](), 0
    for file in find_image_files(images):
        try:
            found = explain_one(classifier, file, query=patch, target=target, methods=chosen)
        except BrokenImageError as error:
            bad += 1
            rows.append({"picture": str(file), "error": error.reason})
            echo(f"softbias: {file}: {error.reason}", file=sys.stderr)
            continue
        written = [str(found.save(folder / f"{free_name(file.stem, taken)}.{kind}")) for kind in kinds]
        taken.add(free_name(file.stem, taken))
        rows.append({**found.to_dict(), "picture": str(file), "files": written})
        if not json:
            untrained = [f"({found.weights})"] if found.weights.startswith("untrained") else []
            echo(cells(file, found.label, f"{found.confidence:.3f}", *untrained, "  ".join(written)))
    if json:
        echo(*json_module.dumps(rows, indent=1).split("\n"))
    return 1 if bad else 0


def free_name(stem: str, taken: set[str]) -> str:
    """The stem, with a number where pictures of several folders share it.

    >>> free_name("cat", {"cat", "cat-2"})
    'cat-3'
    """
    if stem not in taken:
        return stem
    number = 2
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def parse_query(text: str | None) -> tuple[int, int] | None:
    """
    >>> parse_query("2,3")
    (2, 3)
    """
    if text is None:
        return None
    parts = text.replace(" ", "").split(",")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        raise SoftbiasError(f"--query takes ROW,COLUMN, as in --query 2,3, but got {text!r}")
    return int(parts[0]), int(parts[1])


def app(
    sources: Annotated[
        tuple[ShortText, ...],
        tyro.conf.Positional,
        flag("RUNS_OR_MODELS", "Folders of runs, studies or saved models, timm:NAME, hf:FOLDER, or names of models."),
    ],
    /,
    data: Annotated[
        ShortText | None,
        flag("DATA", "Pictures to show: a folder, a CSV file, arrays, or a set's name; the first run's own if not given."),
    ] = None,
    port: Annotated[Port | None, flag("N", "Port to listen on; 8017, or any free port if that is taken.")] = None,
    host: Annotated[
        ShortText, flag("ADDRESS", "Address to listen at; 0.0.0.0 in a container, so that other machines reach the page.")
    ] = "127.0.0.1",
    token: Annotated[
        ShortText | None, flag("TEXT", "The token of the page's address; $SOFTBIAS_TOKEN, or else a new one for each start.")
    ] = None,
    no_browser: Annotated[bool, switch("Do not open a browser.")] = False,
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu",
) -> None:
    """Open a page on this machine: click a patch of a picture and see the attention of every head of every layer.

    Two models can stand side by side on the same picture, and a run can be seen at each of its checkpoints. Only this machine
    can reach the page, only somebody who has the printed address with its token can open it, and it makes no outside request.

    Args:
        device: Where to compute.
    """
    if not sources:
        raise SoftbiasError("which models? softbias app RUNS_OR_MODELS…, for instance softbias app runs/*")
    from softbias.app.safety import Access
    from softbias.app.serving import bind, serve
    from softbias.app.state import AppState
    from softbias.environment import find_device, variable

    chosen = token if token is not None else variable("SOFTBIAS_TOKEN")
    access = Access(host=host) if chosen is None else Access(chosen, host)
    bind(port, host).close()  # an address that cannot be had is said before the models are read
    serve(
        AppState(sources, data, device=find_device(device)),
        access,
        port=port,
        browser=not no_browser,
        display=lambda text: echo(text, flush=True),
    )
