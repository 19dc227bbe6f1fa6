"""Image sets: named ones, and anybody's own pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from softbias.data.dataset import Dataset

__all__ = ["load_dataset"]


def load_dataset(source: str | Path, *, group_by: str | None = None, **options: Any) -> Dataset:
    """The decoded set: `open_source(source, group_by).read(**options)`; options that are None count as not given."""
    from softbias.data.sources import open_source

    return open_source(source, group_by).read(**{name: value for name, value in options.items() if value is not None})
