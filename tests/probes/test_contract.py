"""The contract of probes: over the registry, and over broken probes, which it must catch."""

from __future__ import annotations

import dataclasses
from unittest.mock import patch

import pytest
import torch

from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError, UnknownNameError
from softbias.probes import PROBES, Probe, find_probe, list_probes, register_probe
from softbias.probes.contract import check_probe
from softbias.probes.rows import labeled, mean_of

MANY_PASSES = ("faithfulness", "profile")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in MANY_PASSES else ()) for name in list_probes()]
)
def test_every_registered_probe_keeps_the_contract(name):
    check_probe(name)


def brightness(model, data, *, n: int = 100, seed: int = 0):
    classifier = Classifier.of(model)
    images = torch.from_numpy(data[0][:n]).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        found = classifier.logits(images).softmax(-1).amax(1)
    return labeled(classifier, "brightness", [{"measure": "confidence", "unit": "share", **mean_of(found)}])


GOOD = Probe(brightness, lambda rows, folder: [], "how sure the model is")


def test_a_probe_of_ones_own_keeps_the_contract_and_is_found_by_its_name():
    check_probe(GOOD)
    with patch.dict(PROBES):
        assert register_probe("brightness", GOOD) is GOOD is find_probe("brightness")
    with pytest.raises(UnknownNameError):
        find_probe("brightness")


def with_row(**changes):
    return lambda model, data, **options: [{**row, **changes} for row in brightness(model, data, **options)]


def trains(model, data, *, n: int = 100):
    Classifier.of(model).model.train()
    next(model.model.parameters()).data.mul_(2)
    return brightness(model, data, n=n)


def noisy(model, data, *, n: int = 100, seed: int = 0):
    return with_row(value=float(torch.rand(())), low=0.0, high=1.0)(model, data, n=n)


def refuses_all(model, data):
    raise NotMeasurableError("nothing to see")


def refuses_with_another_type(model, data):
    raise ValueError("nothing to see")


BROKEN = {
    "no unit": (lambda model, data: [{"model": "m", "measure": "x"}], AssertionError, "has no weights"),
    "no reason for no interval": (with_row(low=None, high=None), AssertionError, "no_interval"),
    "no reason for no value": (with_row(value=None), AssertionError, "note"),
    "a value outside of its interval": (with_row(value=7.0), AssertionError, "outside its interval"),
    "no n": (with_row(n=None), AssertionError, "no n"),
    "a tensor": (with_row(layer=torch.zeros(3)), AssertionError, "plain value"),
    "no rows": (lambda model, data: [], AssertionError, "no rows"),
    "changed weights": (trains, AssertionError, "changed the weights"),
    "global random numbers": (noisy, AssertionError, "global random state"),
    "refuses every model": (refuses_all, AssertionError, "measures none"),
    "refuses by an error of another type": (refuses_with_another_type, ValueError, "nothing to see"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_probe_is_caught(kind):
    function, error, message = BROKEN[kind]
    with pytest.raises(error, match=message):
        check_probe(dataclasses.replace(GOOD, function=function))


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(UnknownNameError, match="did you mean 'seed'"):
        GOOD.measure(torch.nn.Identity(), sed=1)
