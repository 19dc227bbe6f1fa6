"""timm's pretrained weights from the Hugging Face hub: within two seconds it is known whether they can be had.

Weights that were fetched before lie in the hub's cache on this machine and need no network. `SOFTBIAS_OFFLINE=1`, or
`HF_HUB_OFFLINE=1`, keeps everything here from asking it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from softbias import environment
from softbias.errors import SoftbiasError, in_one_line

SECONDS = 1.5
FILES = ("model.safetensors", "pytorch_model.bin")


class NoWeightsError(SoftbiasError):
    """Pretrained weights that are neither on this machine nor can be fetched."""


def why_no_hub() -> str | None:
    """Why nothing can be fetched from the hub; None where it answers."""
    if environment.is_offline():
        return "the network is switched off by SOFTBIAS_OFFLINE or HF_HUB_OFFLINE"
    address = environment.hub_address()
    reason = environment.why_unreachable(address, SECONDS, any_answer=True)
    return None if reason is None else f"{address} cannot be reached ({reason})"


def in_cache(repository: str, *files: str) -> Path | None:
    """The first of some files of a repository that lies in the hub's cache on this machine."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = [try_to_load_from_cache(repository, file) for file in files]
    except HFValidationError as error:
        raise SoftbiasError(f"{repository!r} is not the name of a repository: {in_one_line(error)}") from error
    return next((Path(each) for each in found if isinstance(each, str)), None)  # others are known not to exist


def require_weights(name: str) -> str | None:
    """Refuse a model whose pretrained weights cannot be had; otherwise why they must come from this machine, or None."""
    import timm

    why = why_no_hub()
    config = timm.get_pretrained_cfg(name)
    files = (config.hf_hub_filename, *FILES) if config is not None and config.hf_hub_filename else FILES
    if why is not None and (config is None or not config.hf_hub_id or in_cache(config.hf_hub_id, *files) is None):
        raise NoWeightsError(
            f"the pretrained weights of timm:{name} are not on this machine, and {why}; fetch them once with a network, or "
            "give a file of weights with --weights"
        )
    return why


@contextmanager
def fetching_weights(name: str) -> Iterator[None]:
    """Inside, timm may read pretrained weights; without a network only those on this machine, and without waiting."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or require_weights(name) is not None
    try:
        yield
    except OSError as error:  # all errors of the hub and of the network are
        raise NoWeightsError(f"the pretrained weights of timm:{name} cannot be fetched: {in_one_line(error)}") from error
    finally:
        constants.HF_HUB_OFFLINE = before
