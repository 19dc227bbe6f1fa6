"""Where files of weights lie: in a folder of the user's, in the cache of the Hugging Face hub, or on the hub itself.

    at_hand(backbone)                       a file on this machine, or None
    why_not_now(), megabytes(backbone)      whether the hub can be asked, and what it would cost
    fetch(repository)                       the file, downloaded into the hub's cache
    find_by_hash(path, sha256, names)       the file of a run that is continued, wherever it lies now

The hub is asked for two seconds at most. huggingface_hub itself downloads, and its cache is its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from softbias import environment
from softbias.checksums import sha256
from softbias.errors import SoftbiasError, in_one_line
from softbias.models.backbones import Backbone
from softbias.models.hub import SECONDS, NoWeightsError, why_no_hub

WEIGHTS = "model.safetensors"
UNASKED_MEGABYTES = 100  # larger files are downloaded only for a user who asks for them
Origin = Literal["named", "folder", "cache", "hub"]


@dataclass(frozen=True)
class WeightsFile:
    """A file or folder of weights on this machine, and where it was found; revision: the hub's commit."""

    path: Path
    origin: Origin
    revision: str | None = None


def at_hand(backbone: Backbone) -> WeightsFile | None:
    """The weights of a backbone, where they are on this machine."""
    folder = weights_folder()
    if folder is not None:
        for name in (*backbone.file_names, backbone.repository):
            for path in (folder / f"{name}.safetensors", folder / name / WEIGHTS):
                if path.is_file():
                    return WeightsFile(path, "folder")
    cached = in_cache(backbone.repository, WEIGHTS)
    return None if cached is None else WeightsFile(cached, "cache", cached.parent.name)


def weights_folder() -> Path | None:
    """The user's folder of weights; an error where it is named but does not exist."""
    named = environment.variable("SOFTBIAS_WEIGHTS")
    if named is not None and not Path(named).is_dir():
        raise SoftbiasError(f"SOFTBIAS_WEIGHTS={named} must be a folder of weights, and there is none")
    return None if named is None else Path(named)


def in_cache(repository: str, file: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, file)
    except HFValidationError as error:
        raise SoftbiasError(f"{repository!r} is not the name of a repository: {in_one_line(error)}") from error
    return Path(found) if isinstance(found, str) else None  # it may also say that the file is known not to exist


def why_not_now() -> Literal["offline", "unreachable"] | None:
    """Why nothing can be fetched from the hub now; None where it answers, for which it has two seconds."""
    if environment.is_offline():
        return "offline"
    return None if why_no_hub() is None else "unreachable"


def megabytes(backbone: Backbone) -> int | None:
    """What would be downloaded; the hub is asked about weights that are not in our table, and None is no answer."""
    if backbone.megabytes is not None:
        return backbone.megabytes
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        address = environment.hub_address()
        url = hf_hub_url(backbone.repository, WEIGHTS, endpoint=address)
        size = get_hf_file_metadata(url, timeout=SECONDS, endpoint=address).size
    except Exception:  # of requests, of the hub, of the network: there is no common kind, and no answer
        return None
    return None if size is None else -(-size // 10**6)


def fetch(repository: str, file: str = WEIGHTS) -> WeightsFile:
    """A file of a repository on the hub, out of the cache or downloaded into it."""
    cached = in_cache(repository, file)
    if cached is not None:
        return WeightsFile(cached, "cache", cached.parent.name)
    why = why_no_hub()
    if why is not None:
        raise NoWeightsError(
            f"the weights {repository} are neither in the folder SOFTBIAS_WEIGHTS nor in the hub's cache, and {why}; name a "
            "file with --weights, or begin with --start scratch"
        )
    from huggingface_hub import hf_hub_download

    address = environment.hub_address()
    try:
        found = Path(hf_hub_download(repository, file, endpoint=address, etag_timeout=SECONDS))
    except Exception as error:  # of requests, of the hub, of the network: there is no common kind
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise NoWeightsError(f"the weights {repository} cannot be fetched from {address}: {in_one_line(error)}") from error
    return WeightsFile(found, "hub", found.parent.name)


def weight_files(path: Path) -> list[Path]:
    """The files of a path to weights: the file itself, or the safetensors files of a folder."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def digest(path: Path) -> str:
    """The SHA-256 of a file of weights; of a folder with several files, that of their names and hashes."""
    files = weight_files(path)
    if not files or not all(file.is_file() for file in files):
        raise SoftbiasError(f"there are no weights at {path}")
    if len(files) == 1:
        return sha256(files[0])
    return hashlib.sha256("".join(f"{sha256(file)}  {file.name}\n" for file in files).encode()).hexdigest()


def find_by_hash(path: str | Path, expected: str, names: Iterable[str] = ()) -> Path:
    """The weights with this hash: at their path, or else in the user's folder or in the hub's cache.

    names   repositories in which the hub's cache may hold them
    """
    first = Path(path)
    if any(file.is_file() for file in weight_files(first)) and digest(first) == expected:
        return first
    for other in known_files(names):
        if sha256(other) == expected:
            return other
    state = "has changed" if first.exists() else "is gone"
    raise SoftbiasError(
        f"{path} {state}: the run began with weights of SHA-256 {expected[:12]}…, and no file in the folder SOFTBIAS_WEIGHTS "
        "or in the hub's cache has it; restore the file, or begin a new run"
    )


def known_files(names: Iterable[str]) -> Iterator[Path]:
    folder = weights_folder()
    if folder is not None:
        yield from sorted(folder.rglob("*.safetensors"))
    for name in names:
        if re.fullmatch(r"[\w.-]+/[\w.-]+", name):
            cached = in_cache(name, WEIGHTS)
            yield from [] if cached is None else [cached]
