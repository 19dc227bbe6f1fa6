"""What a model is trained to predict, and the registry of these objectives.

A new one takes a file with an `Objective`, a line in OBJECTIVES, and two tests: a loss known in closed form, and an overfitted
batch. From outside the package: `register_objective("mine", Mine)`, or an entry point in the group "softbias.objectives".
`check_objective("mine")` tests its contract.

The registry names classes by strings, as entry points do: recipes know its names without importing torch.
"""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from softbias.registry import Registry

if TYPE_CHECKING:
    from softbias.training.objectives.base import Objective

OBJECTIVES = Registry["str | type[Objective]"]("objective", group="softbias.objectives")
OBJECTIVES |= {
    "supervised": "softbias.training.objectives.supervised:Supervised",
    "rotation": "softbias.training.objectives.rotation:Rotation",
    "instances": "softbias.training.objectives.instances:Instances",
    "views": "softbias.training.objectives.views:Views",
}
register_objective = OBJECTIVES.register
list_objectives = OBJECTIVES.names


def find_objective(name: str) -> Objective:
    """The objective of that name."""
    kind = OBJECTIVES.find(name)
    found: type[Objective] = pkgutil.resolve_name(kind) if isinstance(kind, str) else kind
    return found()
