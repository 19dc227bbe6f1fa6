"""The papers' tables as named studies: `softbias reproduce --list`. Studies are data, made by short functions of scale."""

from __future__ import annotations

from softbias.errors import unknown_name
from softbias.study.papers import arvit, convit, eth, ibit
from softbias.study.papers.named import SCALES, Measured, NamedStudy, Scale

__all__ = ["CATALOGUE", "SCALES", "Measured", "NamedStudy", "Scale", "find_study"]

CATALOGUE: dict[str, NamedStudy] = {**convit.STUDIES, **ibit.STUDIES, **arvit.STUDIES, **eth.STUDIES}


def find_study(name: str) -> NamedStudy:
    if name not in CATALOGUE:
        raise unknown_name("named study", name, CATALOGUE)
    return CATALOGUE[name]
