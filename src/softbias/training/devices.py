"""Which device "auto" stands for."""

from __future__ import annotations

from softbias.errors import SoftbiasError, unknown_name


def find_device(name: str) -> str:
    """cpu, cuda or mps: what "auto" stands for here; what was asked for must be there. "cuda:1" is one of several."""
    import torch

    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(kind for kind, available in there.items() if available)
    kind, _, number = name.partition(":")
    if kind not in there:
        raise unknown_name("device", name, ("auto", *there))
    if not there[kind] or (number and not (number.isdecimal() and int(number) < max(1, torch.accelerator.device_count()))):
        raise SoftbiasError(
            f"--device {name}: there is no such device here; choose {' or '.join(k for k in there if there[k])}"
        )
    return name
