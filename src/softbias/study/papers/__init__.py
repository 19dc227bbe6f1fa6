"""The papers' tables as named studies: `softbias reproduce --list`.

A new one takes a file with a `NamedStudy`, a line in STUDIES, and no test: each is planned at every scale and run at smoke
scale by tests/study/test_papers.py. From outside the package: an entry point in the group "softbias.studies".
"""

from __future__ import annotations

from importlib.metadata import entry_points

from softbias.errors import SoftbiasError, unknown_name
from softbias.study.papers import arvit, convit, eth, ibit
from softbias.study.papers.named import SCALES, Measurement, NamedStudy, Scale

__all__ = ["SCALES", "STUDIES", "Measurement", "NamedStudy", "Scale", "find_study", "list_studies"]

STUDIES: dict[str, NamedStudy] = {
    "convit-sample-efficiency": convit.SAMPLE_EFFICIENCY,
    "convit-sizes": convit.SIZES,
    "convit-locality": convit.LOCALITY,
    "ibit-imagenet": ibit.IMAGENET,
    "ibit-ablation": ibit.ABLATION,
    "ibit-scaling": ibit.SCALING,
    "ibit-depth": ibit.DEPTH,
    "arvit-table1": arvit.TABLE1,
    "arvit-cost": arvit.COST,
    "eth-cifar10": eth.CIFAR10,
    "eth-combined": eth.COMBINED,
    "eth-background": eth.BACKGROUND,
}

ENTRY_POINTS = "softbias.studies"


def find_study(name: str) -> NamedStudy:
    if name not in STUDIES:
        for point in entry_points(group=ENTRY_POINTS, name=name):
            found = point.load()
            if not isinstance(found, NamedStudy):
                raise SoftbiasError(f"the entry point {name} of {ENTRY_POINTS} must be a NamedStudy, but is {found!r}")
            STUDIES[name] = found
    if name not in STUDIES:
        raise unknown_name("named study", name, list_studies())
    return STUDIES[name]


def list_studies() -> list[str]:
    """Ours in their order, then those of other packages."""
    return list(dict.fromkeys([*STUDIES, *sorted(point.name for point in entry_points(group=ENTRY_POINTS))]))
