"""Image sets: named ones, and anybody's own pictures."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softbias.errors import SoftbiasError

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset

__all__ = ["load_dataset"]


def load_dataset(source: str | Path, **options: Any) -> Dataset:
    """A set by name (`softbias.data.named.DATASETS`), or somebody's own: a folder, a CSV file, or arrays.

    options   img_size, resize_mode, data_dir for named sets; also seed, group_by, skip_broken, manifest for one's own
    """
    from softbias.data.named import DATASETS, load_named
    from softbias.data.sources import read_own

    given = {name: value for name, value in options.items() if value is not None}
    if str(source) in DATASETS and not Path(source).exists():
        known = {"img_size", "resize_mode", "data_dir", "download", "progress"}
        useless = sorted(name for name in set(given) - known if given[name])
        if useless:
            raise SoftbiasError(
                f"the named set {source} has its own files and splits; {', '.join(useless)} is for your own pictures"
            )
        return load_named(str(source), **{name: value for name, value in given.items() if name in known})
    if not Path(source).exists():
        raise SoftbiasError(nothing_there(str(source), tuple(DATASETS)))
    given.pop("data_dir", None)
    return read_own(source, **given)


def nothing_there(source: str, sets: Sequence[str]) -> str:
    """What to say of a path that does not exist and is no set's name: what lies near, and where it was looked for."""
    path = Path(source)
    beside = sorted(str(each) for each in path.parent.iterdir()) if path.parent.is_dir() else []
    longer = [name for name in beside if Path(name).name.startswith(path.name)] if path.name else []
    nearest = [*difflib.get_close_matches(source, [*beside, *sets], n=1), *longer][:1]
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    where = "" if path.is_absolute() else f" in {Path.cwd()}"
    return f"there is no file or folder {source!r}{where}{hint} Sets by name: {', '.join(sorted(sets))}"
