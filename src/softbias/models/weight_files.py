"""Where files of weights lie: in a folder of the user's, in the cache of the Hugging Face hub, or on the hub.

    find_at_hand(backbone)                  a file on this machine, and files with its name that do not hold its weights
    why_not_now(), megabytes(repository)    whether the hub can be asked, and what a download would cost
    fetch(repository)                       the file, downloaded into the hub's cache
    find_by_hash(path, sha256, names)       the file of a run that is continued, wherever it lies now

A question to the hub takes two seconds at most. huggingface_hub itself downloads, and its cache is its own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from softbias import environment
from softbias.checksums import sha256
from softbias.errors import SoftbiasError, in_one_line
from softbias.models.backbones import Backbone
from softbias.models.hub import SECONDS, NoWeightsError, in_cache, why_no_hub

WEIGHTS = "model.safetensors"
UNASKED_MEGABYTES = 100  # larger files are downloaded only for a user who asks for them
Origin = Literal["named", "folder", "cache", "hub"]


@dataclass(frozen=True)
class WeightsFile:
    """A file or folder of weights on this machine, and where it was found; revision: the hub's commit."""

    path: Path
    origin: Origin
    revision: str | None = None


@dataclass(frozen=True)
class AtHand:
    """The weights of a backbone on this machine; unfit: why files that have its name were left out."""

    file: WeightsFile | None = None
    unfit: tuple[str, ...] = ()


def find_at_hand(backbone: Backbone) -> AtHand:
    """The first file with the name of a backbone that holds its weights."""
    unfit: list[str] = []
    for found in named_files(backbone):
        why = why_unfit(backbone, found.path)
        if why is None:
            return AtHand(found, tuple(unfit))
        unfit.append(why)
    return AtHand(None, tuple(unfit))


def named_files(backbone: Backbone) -> Iterator[WeightsFile]:
    """The files on this machine that are named like the weights of a backbone."""
    folder = weights_folder()
    if folder is not None:
        for name in (*backbone.file_names, backbone.repository):
            for path in (folder / f"{name}.safetensors", folder / name / WEIGHTS):
                if path.is_file():
                    yield WeightsFile(path, "folder")
    cached = in_cache(backbone.repository, WEIGHTS)
    if cached is not None:
        yield WeightsFile(cached, "cache", cached.parent.name)


def why_unfit(backbone: Backbone, path: Path) -> str | None:
    """Why a file does not hold the weights of a backbone; None where it does."""
    from softbias.models.weights import check_fit  # torch takes a second to import

    try:
        check_fit(path, backbone.model, backbone.model_options, backbone.img_size)
    except SoftbiasError as error:
        return str(error)
    return None


def weights_folder() -> Path | None:
    """The user's folder of weights; an error where it is named but does not exist."""
    named = environment.variable("SOFTBIAS_WEIGHTS")
    if named is not None and not Path(named).is_dir():
        raise SoftbiasError(f"SOFTBIAS_WEIGHTS={named} must be a folder of weights, and there is none")
    return None if named is None else Path(named)


def why_not_now() -> Literal["offline", "unreachable"] | None:
    """Why nothing can be fetched from the hub now; None where it answers, for which it has two seconds."""
    if environment.is_offline():
        return "offline"
    return None if why_no_hub() is None else "unreachable"


def megabytes(repository: str, file: str = WEIGHTS) -> int | None:
    """The size of a file on the hub, rounded up; None where the hub does not say it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    address = environment.hub_address()
    with hub_errors(repository, file):
        size = get_hf_file_metadata(hf_hub_url(repository, file, endpoint=address), timeout=SECONDS, endpoint=address).size
    return None if size is None else -(-size // 10**6)


@contextmanager
def hub_errors(repository: str, file: str) -> Iterator[None]:
    """What goes wrong inside is a NoWeightsError that says why in one line; an error of the system stays one."""
    from huggingface_hub import errors

    reasons: tuple[tuple[type[Exception], str], ...] = (
        (errors.GatedRepoError, "its owner gives access on request: ask for it there, and log in with `hf auth login`"),
        (errors.RepositoryNotFoundError, "there is no such repository, or it is private: log in with `hf auth login`"),
        (errors.RemoteEntryNotFoundError, f"the repository holds no {file}"),
    )
    try:
        yield
    except Exception as error:  # of the hub, of its client, of the network: there is no common kind
        if isinstance(error, OSError) and error.errno is not None:
            raise
        known = next((text for kind, text in reasons if isinstance(error, kind)), None)
        why = known or in_one_line(error) or type(error).__name__
        raise NoWeightsError(f"the weights {repository} cannot be fetched from {environment.hub_address()}: {why}") from error


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
    megabytes(repository, file)  # its errors come within seconds, while a download is tried again for minutes
    from huggingface_hub import hf_hub_download

    with hub_errors(repository, file):
        found = Path(hf_hub_download(repository, file, endpoint=environment.hub_address(), etag_timeout=SECONDS))
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
