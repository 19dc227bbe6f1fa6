"""The papers' tables as named studies: `softbias reproduce --list`.

A new one takes a file with a `NamedStudy`, a line in STUDIES, and no test: each is planned at every scale and run at smoke
scale by tests/study/papers/test_studies.py. From outside the package: an entry point in the group "softbias.studies".
"""

from __future__ import annotations

from softbias.registry import Registry
from softbias.study.papers import arvit, convit, eth, ibit
from softbias.study.papers.named import SCALES, Measurement, NamedStudy, Scale

__all__ = ["SCALES", "STUDIES", "Measurement", "NamedStudy", "Scale", "find_study", "list_studies"]

STUDIES = Registry[NamedStudy]("named study", group="softbias.studies", instance_of=NamedStudy)
STUDIES |= {
    "convit-sample-efficiency": convit.SAMPLE_EFFICIENCY,
    "convit-sizes": convit.SIZES,
    "convit-locality": convit.LOCALITY,
    "ibit-imagenet": ibit.IMAGENET,
    "ibit-ablation": ibit.ABLATION,
    "ibit-scaling": ibit.SCALING,
    "ibit-depth": ibit.DEPTH,
    "arvit-table1": arvit.TABLE1,
    "arvit-table1-head": arvit.TABLE1_HEAD,
    "arvit-pretraining": arvit.LESS_PRETRAINING,
    "arvit-cost": arvit.COST,
    "eth-cifar10": eth.CIFAR10,
    "eth-combined": eth.COMBINED,
    "eth-background": eth.BACKGROUND,
}
find_study = STUDIES.find
list_studies = STUDIES.names
