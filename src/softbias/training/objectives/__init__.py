"""What a model is trained to predict, and the registry of these objectives.

A new one takes a file with an `Objective`, a line in OBJECTIVES, and two tests: a loss known in closed form, and an overfitted
batch. From outside the package: `register_objective("mine", Mine)`, or an entry point in the group "softbias.objectives".
`check_objective("mine")` tests its contract.

The registry names classes by strings, as entry points do: recipes know its names without importing torch.
"""

from __future__ import annotations

import pkgutil
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from softbias.errors import SoftbiasError, unknown_name

if TYPE_CHECKING:
    from softbias.training.objectives.base import Objective

OBJECTIVES: dict[str, str | type[Objective]] = {
    "supervised": "softbias.training.objectives.supervised:Supervised",
    "rotation": "softbias.training.objectives.rotation:Rotation",
}

ENTRY_POINTS = "softbias.objectives"


def register_objective(name: str, objective: type[Objective]) -> type[Objective]:
    """Make an objective from outside the package usable by name in every recipe."""
    if OBJECTIVES.get(name, objective) is not objective:
        raise SoftbiasError(f"the objective {name!r} exists already: {OBJECTIVES[name]}")
    OBJECTIVES[name] = objective
    return objective


def list_objectives() -> list[str]:
    return sorted({*OBJECTIVES, *(point.name for point in entry_points(group=ENTRY_POINTS))})


def find_objective(name: str) -> Objective:
    """The objective of that name."""
    if name not in OBJECTIVES:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            register_objective(name, point.load())
    if name not in OBJECTIVES:
        raise unknown_name("objective", name, list_objectives())
    kind = OBJECTIVES[name]
    found: type[Objective] = pkgutil.resolve_name(kind) if isinstance(kind, str) else kind
    return found()
