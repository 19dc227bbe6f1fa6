"""The pictures below a folder, for training and for predicting: one walk decides what is a picture, a folder, or neither.

Pictures are known by their suffix; decoding shows whether the suffix is right. Hidden files are passed over. Links are
followed, and each folder is entered once, so that a loop ends. A pipe, a socket or a device is never opened: reading it could
wait for ever. A link that leads nowhere is listed if its name is a picture's, and its reading gives the reason.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from natsort import natsort_keygen, ns

from softbias.files import special_kind
from softbias.notes import Note

SUFFIXES = frozenset(  # of pictures
    ".jpg .jpeg .jpe .jfif .png .webp .tif .tiff .bmp .dib .gif .heic .heif .avif .jp2 .ppm .pgm .pbm .pnm".split()  # noqa: SIM905
)
LOOP = "link to a folder above it"
CLUTTER = frozenset({"thumbs.db", "desktop.ini", "__macosx"})
_natural_key = natsort_keygen(alg=ns.IGNORECASE)


class FolderWalk:
    """A walk through the folders below a root.

    strict    whether a folder that may not be read is an error (PermissionError); otherwise `denied` collects it
    skipped   what is neither a folder nor a file, and links that are not followed: path -> what it is
    """

    def __init__(self, root: Path, strict: bool = True) -> None:
        self.strict = strict
        self.skipped: dict[Path, str] = {}
        self.denied: list[Path] = []
        here = root.resolve()
        self.above = {identity(os.stat(folder)) for folder in (here, *here.parents)}

    def entries(self, folder: Path, others: Counter[str] | None = None) -> tuple[list[Path], list[Path]]:
        """The folders and the pictures in a folder, in natural order; `others` counts other files by suffix."""
        folders, found = [], []
        try:
            with os.scandir(folder) as entries:
                visible = [entry for entry in entries if not entry.name.startswith(".")]
        except PermissionError:
            if self.strict:
                raise
            self.denied.append(folder)
            return [], []
        for entry in visible:
            path = Path(entry.path)
            if entry.name.casefold() in CLUTTER:
                continue
            kind = self.kind_of(entry)
            if kind == "folder":
                folders.append(path)
            elif kind in ("file", "broken link") and path.suffix.lower() in SUFFIXES:
                found.append(path)
            elif kind != "file":
                self.skipped[path] = kind
            elif others is not None:
                others[path.suffix.lower() or "no suffix"] += 1
        return sorted(folders, key=lambda path: natural(path.name)), sorted(found, key=lambda path: natural(path.name))

    def kind_of(self, entry: os.DirEntry[str]) -> str:
        """ "folder", "file", or the reason for leaving it out; only links and special files cost a call of the system."""
        if entry.is_file(follow_symlinks=False):
            return "file"
        if entry.is_dir(follow_symlinks=False):
            return "folder"
        try:
            status = entry.stat()
        except OSError:  # it leads nowhere, to itself, or to where we may not go
            return "broken link"
        kind = special_kind(status.st_mode)
        if kind == "folder" and identity(status) in self.above:
            return LOOP
        return kind or "file"

    def below(self, folder: Path, others: Counter[str] | None = None) -> list[Path]:
        """All pictures below a folder, in natural order."""
        found, waiting, seen = [], [folder], set()
        while waiting:
            here = waiting.pop()
            number = identity(here.stat())
            if number in seen:
                continue
            seen.add(number)
            folders, files = self.entries(here, others)
            waiting += folders
            found += files
        return sorted(found, key=lambda file: natural(str(file)))

    def notes(self) -> list[Note]:
        """What was left out because it is no file."""
        if not self.skipped:
            return []
        named = [f"{path} ({kind})" for path, kind in sorted(self.skipped.items())]
        return [Note("no-files", {"count": len(named), "named": named[:5]})]


def identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def natural(text: str) -> tuple[Any, str]:
    """A sort key by which 2 comes before 10; names that differ in case alone keep a fixed order."""
    return _natural_key(text), text
