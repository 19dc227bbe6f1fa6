"""Pretrained weights without a network: known within two seconds, and those on the machine are used."""

from __future__ import annotations

import socket
import subprocess
import sys
import time

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from softbias import environment
from softbias.cli import main
from softbias.models import create_model
from softbias.models.hub import FILES, NoWeightsError, in_cache, require_weights, why_no_hub

NAME = "test_vit.r160_in1k"


@pytest.fixture
def silent_hub(monkeypatch, tmp_path):
    """A hub that takes connections and never answers, and an empty cache."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("SOFTBIAS_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server


def test_a_hub_that_does_not_answer_is_given_up_within_two_seconds(silent_hub, tmp_path, capsys):
    timm.get_pretrained_cfg(NAME)
    started = time.monotonic()
    with pytest.raises(NoWeightsError, match="not on this machine"):
        require_weights(NAME)
    assert time.monotonic() - started < 2.5
    with pytest.raises(NoWeightsError):
        create_model(f"timm:{NAME}", pretrained=True)
    assert not constants.HF_HUB_OFFLINE
    out = tmp_path / "run"
    assert main(["fit", "fashion", "--model", f"timm:{NAME}", "--start", "pretrained", "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize("variable", ["SOFTBIAS_OFFLINE", "HF_HUB_OFFLINE"])
def test_a_forbidden_network_is_not_asked(variable, silent_hub, monkeypatch):
    monkeypatch.setenv(variable, "1")
    monkeypatch.setattr(environment, "why_unreachable", lambda *_, **__: pytest.fail("the network was asked"))
    assert variable in (why_no_hub() or "")
    with pytest.raises(NoWeightsError):
        require_weights(NAME)


def test_weights_on_the_machine_are_used_without_a_network(silent_hub, tmp_path):
    repository = timm.get_pretrained_cfg(NAME).hf_hub_id
    folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
    (folder / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    assert in_cache(repository, *FILES) is None
    learned = timm.create_model(NAME).state_dict()
    save_file(learned, folder / "snapshots" / ("0" * 40) / "model.safetensors", metadata={"format": "pt"})
    assert in_cache(repository, *FILES).parent.name == "0" * 40
    found = create_model(f"timm:{NAME}", pretrained=True).state_dict()
    assert all(torch.equal(found[name], learned[name]) for name in learned)


def test_our_variable_switches_the_libraries_of_the_hub_off():
    code = "import softbias; from huggingface_hub import constants; print(constants.HF_HUB_OFFLINE)"
    environ = environment.variables_with({"SOFTBIAS_OFFLINE": "1", "HF_HUB_OFFLINE": ""})
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ).stdout == "True\n"
