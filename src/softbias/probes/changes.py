"""What the probes share that change a picture and ask the model again.

    consistency   share of pictures whose predicted class stays the same
    accuracy      share of changed pictures that are classified rightly; the row with change "none" is the unchanged one

Shapes: B pictures, n in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from softbias.classifier import Classifier
from softbias.probes.pictures import Pictures
from softbias.probes.rows import Row, Rows, share_of

Change = Callable[[Tensor, torch.Generator], Tensor]  # (B, 3, H, W) in [0, 1] -> the same shape


@torch.no_grad()
def predicted(classifier: Classifier, pictures: Pictures, change: Change | None, seed: int) -> Tensor:
    """The classes of the pictures, changed.  # (n,)"""
    chance = torch.Generator().manual_seed(seed)
    found = []
    for images, _ in pictures.batches():
        changed = images if change is None else change(images, chance)
        found.append(classifier.logits(changed.to(classifier.device)).argmax(-1).cpu())
    return torch.cat(found)


def compare(classifier: Classifier, pictures: Pictures, changes: Mapping[Any, Change], seed: int, column: str) -> Rows:
    """Consistency and accuracy under every change; `column` names what differs between them."""
    plain = predicted(classifier, pictures, None, seed)
    rows: Rows = []
    if pictures.labels is not None:
        rows.append(about("accuracy", column, "none", share_of(plain == pictures.labels)))
    for name, change in changes.items():
        now = predicted(classifier, pictures, change, seed)
        rows.append(about("consistency", column, name, share_of(now == plain)))
        if pictures.labels is not None:
            rows.append(about("accuracy", column, name, share_of(now == pictures.labels)))
    return rows


def about(measure: str, column: str, name: Any, found: Row) -> Row:
    return {"measure": measure, "unit": "share", column: name, **found}
