"""A run gives a trained model other attention: the same function at first, a bias that learns, and a run like any other."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import softbias
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.models.conversion import converted, parse_conversion
from softbias.runs.fit import fit
from softbias.runs.named_starts import weights_start
from softbias.runs.prepare import build_model, make_plan, make_split
from softbias.runs.run import Run
from softbias.runs.spec import RunSpec
from softbias.training.acceleration import make_accelerator
from softbias.training.checkpoint import Keep
from softbias.training.recipe import Recipe

from ..training.conftest import little_set

REAL = Path(__file__).resolve().parents[3] / "shared" / "weights" / "deit_tiny_patch16_224.safetensors"
GIVEN = {"recipe": "quick", "batch_size": 16, "device": "cpu", "trackers": (), "steps": 50, "val_fraction": 0.0, "seed": 3}
KINDS = ["gated", "masked"]


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> Path:
    """A run with fresh weights, as a start."""
    out = tmp_path_factory.mktemp("first") / "run"
    options = {"patch_size": 8}
    given = {**GIVEN, "steps": 4, "page": False, "baseline": False}
    return fit(little_set(), "deit_nano", out=out, start="scratch", model_options=options, **given).path


@pytest.fixture(scope="module", params=KINDS)
def run(request, first, tmp_path_factory) -> Run:
    """A run of 50 steps that converts the model of the first."""
    out = tmp_path_factory.mktemp(request.param) / "run"
    return fit(little_set(), out=out, start=first, convert=request.param, **GIVEN).run


def states(run: Run) -> tuple[dict, dict]:
    """The weights of a run before its first step, and at its end."""
    torch.manual_seed(run.spec.seed)
    before = build_model(run.spec, 3, (32, 32), run.source_of(run.spec.start))
    return before.state_dict(), load_file(run.model_folder / "model.safetensors")


def test_after_fifty_steps_gates_and_all_ranks_have_moved(run):
    before, after = states(run)
    biases = [name for name in after if name.endswith(("attn.gate", "attn.mask_a", "attn.mask_b"))]
    assert {int(name.split(".")[1]) for name in biases} == {0, 1, 2}  # the class token alone reads the last of four blocks
    for name in biases:
        moved = (after[name] - before[name]).abs()
        assert (moved if moved.ndim == 1 else moved.amax(-1)).min() > 1e-5, name  # every head, and every rank of it


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_of_the_first_step_computes_what_the_start_computed(kind, first, tmp_path):
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()
    start = softbias.runs.named_starts.run_start(str(first)).start
    plain = RunSpec("little", "deit_nano", Recipe(batch_size=16), start=start, finetune="full")
    logits = [first_model(spec, tmp_path)(images) for spec in (plain, replace(plain, convert=kind))]
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-6)


@pytest.mark.skipif(not REAL.is_file(), reason="the pretrained weights are not here")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", [96, 160])
def test_real_pretrained_weights_compute_the_same_in_a_run_at_any_size(kind, side, tmp_path):
    found = weights_start(REAL, "deit_tiny")
    plain = RunSpec("x", "deit_tiny", Recipe(), start=found.start, model_options=found.model_options, finetune="full")
    images = torch.rand(1, 3, side, side, generator=torch.Generator().manual_seed(0)).double()
    logits = []
    for spec in (plain, replace(plain, convert=f"{kind}:blocks=0-10")):
        torch.manual_seed(0)
        with torch.inference_mode():
            logits.append(build_model(spec, 7, (side, side)).double().eval()(images))
    torch.testing.assert_close(logits[0], logits[1], rtol=0, atol=1e-6)


def first_model(spec: RunSpec, folder: Path) -> torch.nn.Module:
    """The model that the loop of a run trains first."""
    data = little_set()
    accelerator = make_accelerator(spec.recipe, "cpu")
    return make_plan(spec, data, make_split(data, spec), accelerator, Run(folder / "run"), Keep()).model.double().eval()


def test_a_converted_run_is_read_explained_probed_exported_resized_and_carded(run, tmp_path):
    kind = run.spec.convert
    saved = softbias.load(run.model_folder)
    assert [layer.attention for layer in saved.spec.layers] == [kind, kind, kind, "full"]
    image = tmp_path / "a.png"
    Image.fromarray(little_set().images[0]).save(image)
    assert softbias.explain(run.path, image).mechanisms[0] == kind
    measured = {"gated": "gates", "masked": "masks"}[kind]
    rows = softbias.probe(str(run.model_folder), measured, data="fashion", device="cpu").rows[measured]
    assert {row["layer"] for row in rows} == {0, 1, 2}
    assert softbias.export(saved, tmp_path / "m.onnx").is_file()
    large = softbias.resize(saved, 64)
    assert large(torch.zeros(1, 3, 64, 64)).shape == (1, 3) and large.spec.layers == saved.spec.layers
    assert f"converted to {kind}" in (run.model_folder / "README.md").read_text()
    assert f"converted to {kind}" in run.page_path.read_text()


def test_a_converted_run_can_be_the_start_of_another(run, tmp_path):
    again = fit(little_set(), out=tmp_path / "again", start=run.path, **{**GIVEN, "steps": 2, "page": False}).run
    assert softbias.load(again.model_folder).spec.layers == softbias.load(run.model_folder).spec.layers
    other = {"convert": f"{run.spec.convert}:blocks=3", **GIVEN, "steps": 2, "page": False}
    both = fit(little_set(), out=tmp_path / "both", start=run.path, **other).run
    assert {layer.attention for layer in softbias.load(both.model_folder).spec.layers} == {run.spec.convert}


SCRIPT = """
import sys
from softbias.training.plan import LoopSettings
from tests.runs.test_converting import GIVEN, fit, little_set
fit(little_set(), out=sys.argv[1], start=sys.argv[2], convert=sys.argv[3], page=False, baseline=False, **GIVEN,
    settings=LoopSettings(checkpoint_seconds=0.0, middle_seconds=0.01))
"""


def test_a_killed_run_continues_to_the_same_bits(run, first, tmp_path, request):
    if run.spec.convert != "gated" and not request.config.getoption("--slow"):
        pytest.skip("slow: run with --slow")
    out = tmp_path / "run"
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    words = [sys.executable, "-c", "import torch; torch.set_num_threads(1)\n" + SCRIPT, str(out), str(first), run.spec.convert]
    process = subprocess.Popen(words, env=environment, cwd=root)
    deadline = time.monotonic() + 120
    while not list(out.glob("checkpoints/step-*")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.kill()
    process.wait()
    assert not (out / "summary.json").is_file() and list(out.glob("checkpoints/step-*"))
    fit(little_set(), out=out, resume=True, page=False, baseline=False, trackers=(), device="cpu")
    weights = [load_file(folder / "model/model.safetensors") for folder in (out, run.path)]
    assert {name: tensor.numpy().tobytes() for name, tensor in weights[0].items()} == {
        name: tensor.numpy().tobytes() for name, tensor in weights[1].items()
    }


def test_the_id_of_a_run_depends_on_its_conversion_and_other_runs_keep_their_ids():
    plain = RunSpec("fashion", "deit_nano", Recipe())
    assert plain.id == RunSpec("fashion", "deit_nano", Recipe(), convert=None, per_class=None).id == "c1c3d1cf91"
    assert len({plain.id, replace(plain, convert="gated").id, replace(plain, convert="masked").id}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": "scratch"}, "has learned something"),
        ({"start": "auto"}, "has learned something"),
        ({"convert": "gatd"}, "did you mean 'gated'"),
        ({"convert": "gated:blocks=0-9"}, "blocks 0 to 3, but block 4"),
        ({"convert": "gated:blocks=a"}, "blocks are numbers and ranges"),
        ({"convert": "gated:rank=4"}, "no option of the attention gated 'rank'"),
        ({"convert": "masked:rank=many"}, "rank"),
        ({"convert": "masked:rate=0"}, "rate"),
        ({"convert": "masked:rate=fast"}, "rate"),
        ({"finetune": "linear"}, "would change nothing"),
        ({"frozen_blocks": 3}, "learns nothing in the first 3 of 4 blocks"),
        ({"frozen_blocks": 1, "convert": "gated:blocks=0-2"}, "frozen"),
    ],
)
def test_what_cannot_be_converted_is_refused_in_one_line_and_leaves_no_folder(options, message, first, tmp_path):
    given = {**GIVEN, "page": False, "convert": "gated", "start": first, **options}
    if given["start"] in ("scratch", "auto"):
        given |= {"model": "deit_nano", "model_options": {"patch_size": 8}}
    with pytest.raises(SoftbiasError, match=message) as error:
        fit(little_set(), out=tmp_path / "run", **given)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_a_model_of_another_library_is_refused_before_it_is_trained_in_vain():
    model = create_model("timm:vit_tiny_patch16_224", img_size=112, num_classes=2)
    with pytest.raises(SoftbiasError, match="cannot be stored, but got timm:vit_tiny"):
        converted(model, parse_conversion("gated"))


def test_the_estimator_converts_too(first):
    from softbias.sklearn import SoftbiasClassifier

    data = little_set()
    options = {"steps": 2, "batch_size": 16}
    estimator = SoftbiasClassifier("deit_nano", start=first, convert="gated", recipe_options=options, device="cpu")
    estimator.fit(data.images, data.labels)
    assert "gated" in estimator.classifier_.model.spec.describe_layers()
    with pytest.raises(SoftbiasError, match="has learned something"):
        SoftbiasClassifier("deit_nano", convert="gated").fit(data.images, np.asarray(data.labels))
