"""Image sets: named ones, and anybody's own pictures.

A new named set takes a loader, a line in `DATASETS` and a test; CONTRIBUTING.md shows it. From outside the package:
`register_dataset("mine", load_mine)`, or an entry point in the group "softbias.data". `check_dataset` is the contract.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softbias.data.cache import Progress
    from softbias.data.dataset import Dataset, check_dataset
    from softbias.data.named import DATASETS, list_datasets, register_dataset
    from softbias.data.packs import DatasetRequest
    from softbias.data.sources import Source, open_source

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetRequest",
    "Source",
    "check_dataset",
    "list_datasets",
    "load_dataset",
    "open_source",
    "register_dataset",
]

MODULES = {
    "DATASETS": "named",
    "Dataset": "dataset",
    "DatasetRequest": "packs",
    "Source": "sources",
    "check_dataset": "dataset",
    "list_datasets": "named",
    "open_source": "sources",
    "register_dataset": "named",
}


def load_dataset(
    source: str | Path,
    *,
    group_by: str | None = None,
    unlabeled: bool | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Dataset:
    """The decoded set: `open_source(source, group_by).read(**options)`; an option that is None counts as not given.

    unlabeled   take all pictures below a folder, without classes and splits
    """
    from softbias.data.sources import open_source

    return open_source(source, group_by, unlabeled).read_with(options, progress)


def __getattr__(name: str) -> Any:
    """Modules are imported on use: settings of augmentation must not need numpy and Pillow."""
    if name not in MODULES:
        raise AttributeError(f"module 'softbias.data' has no attribute {name!r}")
    return getattr(importlib.import_module(f"softbias.data.{MODULES[name]}"), name)
