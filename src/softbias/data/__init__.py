"""Image sets: named ones, and anybody's own pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset

__all__ = ["load_dataset"]


def load_dataset(source: str | Path, **options: Any) -> Dataset:
    """A set by name (`softbias.data.named.DATASETS`), or somebody's own: a folder, a CSV file, or arrays.

    options   img_size, fit, data_dir for named sets; also seed, group_by, skip_broken, manifest for one's own
    """
    from softbias.data.named import DATASETS, load_named
    from softbias.data.sources import read_own
    from softbias.errors import unknown_name

    given = {name: value for name, value in options.items() if value is not None}
    if str(source) in DATASETS and not Path(source).exists():
        known = {"img_size", "fit", "data_dir", "download", "progress"}
        useless = sorted(name for name in set(given) - known if given[name])
        if useless:
            raise ValueError(
                f"the named set {source} has its own files and splits; {', '.join(useless)} is for your own pictures"
            )
        return load_named(str(source), **{name: value for name, value in given.items() if name in known})
    if not Path(source).exists():
        raise ValueError(f"{source} is neither a file or folder nor a named set. {unknown_name('named set', source, DATASETS)}")
    given.pop("data_dir", None)
    return read_own(source, **given)
