"""The contract of a probe, public so that probes from outside the package can be checked by it.

    from softbias.probes.contract import check_probe
    check_probe("locality")
    check_probe(Probe(mine, draw_mine, "what it measures"))

It measures small models on noise: a ViT, a gated, a masked and a convolutional one. Each of them is measured or refused:

    rows       are tidy: one finite number a row with its unit, its n, and an interval or the reason for none
    seed       the same seed gives the same rows, and the global random state is left alone
    model      keeps its weights, its mode, its gradients and its device
    refusal    is a NotMeasurableError, and at least one of the models is measured
    figures    are files that exist
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softbias.errors import NotMeasurableError
from softbias.models import create_model
from softbias.probes import Probe, find_probe
from softbias.probes.rows import Row, Rows, plain, plain_row

MODELS = ("deit_nano", "convit_nano", "ibit_nano", "resnet_nano")
CLASSES, SIDE, N = 5, 16, 6
FEW: Mapping[str, Any] = {"n": N, "scenes": N, "steps": 2, "seed": 1}  # where the probe has such an option
NEEDED = ("model", "weights", "probe", "measure", "unit", "value", "low", "high", "n")


def check_probe(probe: str | Probe, **options: Any) -> None:
    """Raise an AssertionError that names the model and the rule that was broken; `options` go to the probe."""
    name, probe = (probe, find_probe(probe)) if isinstance(probe, str) else ("the probe", probe)
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (4 * CLASSES, SIDE, SIDE, 3), dtype=np.uint8), np.arange(4 * CLASSES) % CLASSES
    given = {key: value for key, value in FEW.items() if key in probe.options} | options
    rows: Rows = []
    refused = {}
    for model_name in MODELS:
        try:
            rows += check_model(probe, small_model(model_name), data, given, f"{name} of {model_name}")
        except NotMeasurableError as error:
            refused[model_name] = str(error)
    assert len(refused) < len(MODELS), f"{name} measures none of {', '.join(MODELS)}: {refused}"
    check_figures(probe, rows, name)


def small_model(name: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        options: dict[str, Any] = {} if name == "resnet_nano" else {"patch_size": 4}
        return create_model(name, num_classes=CLASSES, img_size=SIDE, **options)


def check_model(probe: Probe, model: nn.Module, data: Any, options: Mapping[str, Any], where: str) -> Rows:
    model.train()
    next(model.children()).eval()  # a part that its owner froze
    before, random_state = state_of(model), torch.get_rng_state()
    rows = probe.measure(model, data, **options)
    for key, value in state_of(model).items():
        assert same(before[key], value), f"{where} changed the {key} of the model"
    assert torch.equal(random_state, torch.get_rng_state()), f"{where} draws from the global random state"
    assert rows, f"{where} gives no rows; a probe that cannot measure a model raises NotMeasurableError"
    for row in rows:
        check_row(row, where)
    again = probe.measure(model, data, **options)
    assert list(map(plain_row, rows)) == list(map(plain_row, again)), f"{where} gives other rows for the same seed"
    return rows


def state_of(model: nn.Module) -> dict[str, Any]:
    return {
        "mode": [module.training for module in model.modules()],
        "device": [parameter.device for parameter in model.parameters()],
        "need of gradients": [parameter.requires_grad for parameter in model.parameters()],
        "gradients": [parameter.grad is None for parameter in model.parameters()],
        "weights": [tensor.clone() for tensor in model.state_dict().values()],
    }


def same(before: list[Any], after: list[Any]) -> bool:
    return len(before) == len(after) and all(
        torch.equal(one, other) if isinstance(one, Tensor) else one == other for one, other in zip(before, after, strict=True)
    )


def check_row(row: Row, where: str) -> None:
    for key in NEEDED:
        assert key in row, f"a row of {where} has no {key}: {row}"
    for key, value in row.items():
        assert value is None or isinstance(value, str | int | float | np.generic), f"{key} of {where} is no plain value: {row}"
    value, low, high, n = (plain(row[key]) for key in ("value", "low", "high", "n"))
    if value is None:
        assert row.get("note"), f"a row of {where} has no value and no note that gives the reason: {row}"
    elif low is None or high is None:
        assert row.get("no_interval"), f"a row of {where} has no interval, and no_interval gives no reason: {row}"
    else:
        assert low <= value <= high, f"a row of {where} has a value outside its interval: {row}"
        assert n is not None and n > 0, f"a row of {where} has an interval but no n: {row}"


def check_figures(probe: Probe, rows: Rows, where: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file in probe.draw(rows, Path(folder)):
            assert Path(file).is_file() and Path(file).stat().st_size, f"{where} draws {file}, which is not there"
