"""`softbias app`: a local page where you click a patch and see the attention of every head."""

from __future__ import annotations

from typing import Annotated, Literal

import tyro

from softbias.cli.parsing import flag, switch
from softbias.errors import SoftbiasError


def app(
    sources: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        flag("RUNS_OR_MODELS", "Folders of runs, studies or saved models, timm:NAME, hf:FOLDER, or names of models."),
    ],
    /,
    data: Annotated[
        str | None,
        flag("DATA", "Pictures to show: a folder, a CSV file, arrays, or a set's name; the first run's own if not given."),
    ] = None,
    port: Annotated[int | None, flag("N", "Port to listen on; 8017, or any free port if that is taken.")] = None,
    no_browser: Annotated[bool, switch("Do not open a browser.")] = False,
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu",
) -> None:
    """Open a page on this machine: click a patch of a picture and see the attention of every head of every layer.

    Two models can stand side by side on the same picture, and a run can be seen at each of its checkpoints. Only this machine
    can open the page, and the page makes no outside request.

    Args:
        device: Where to compute.
    """
    if not sources:
        raise SoftbiasError("which models? softbias app RUNS_OR_MODELS…, for instance softbias app runs/*")
    if port is not None and not 0 <= port < 65536:
        raise SoftbiasError(f"--port takes a number from 0 (any free one) to 65535, but got {port}")
    from softbias.app.server import serve
    from softbias.app.state import AppState
    from softbias.environment import find_device

    serve(
        AppState(sources, data, device=find_device(device)),
        port=port,
        browser=not no_browser,
        display=lambda text: print(text, flush=True),
    )
