"""`softbias probe` and `fit --probe-every`, on runs made by the command."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import softbias
from softbias.classifier import Classifier, weights_of
from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.probes import PROBES, Probe, profile
from softbias.runs import probing
from softbias.runs.run import Run

SMALL = ["--recipe", "quick", "--recipe.epochs", "2", "--no-baseline", "--trackers", "none", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory) -> Path:
    """root/class/*.png of five classes, told apart by their shade."""
    root, rng = tmp_path_factory.mktemp("data") / "pictures", np.random.default_rng(0)
    for name in range(5):
        (root / f"class{name}").mkdir(parents=True)
        for number in range(16):
            image = np.clip(40 * name + rng.integers(0, 60, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(image).save(root / f"class{name}" / f"{number}.png")
    return root


@pytest.fixture(scope="module")
def run(image_folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "gated"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(out.parent / "cache"))
        model = ["--model", "convit_nano", "--model-option", "patch_size=8", "--img-size", "32"]
        words = ["fit", str(image_folder), *model, "--keep", "every=1", "--probe-every", "1", "--out", str(out), *SMALL]
        assert main(words) == 0
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("SOFTBIAS_DATA", raising=False)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_live_probes_write_a_line_per_row_from_the_untrained_model_on(run):
    rows = [json.loads(line) for line in (run / "probes" / "gates.jsonl").read_text().splitlines()]
    assert {row["epoch"]: row["weights"] for row in rows} == {0: "untrained", 1: "trained", 2: "trained"}
    gates = [row["value"] for row in rows if row["epoch"] == 0 and row["measure"] == "gate"]
    assert gates == pytest.approx([1 / (1 + np.exp(-1))] * len(gates))
    assert (run / "probes" / "locality.jsonl").is_file()
    assert not (run / "probes" / "masks.jsonl").exists(), "the model has no masks"


@pytest.mark.slow
def test_probing_while_training_changes_no_weight(run, image_folder, tmp_path):
    words = ["fit", str(image_folder), "--model", "convit_nano", "--model-option", "patch_size=8", "--img-size", "32"]
    assert main([*words, "--out", str(tmp_path / "plain"), *SMALL]) == 0
    probed, plain = (softbias.load(folder / "model").state_dict() for folder in (run, tmp_path / "plain"))
    assert all(torch.equal(probed[name], plain[name]) for name in plain)
    assert Run(run).spec.id == Run(tmp_path / "plain").spec.id


def test_checkpoints_say_the_same_as_live_probes(run, tmp_path):
    assert main(["probe", str(run), "--probes", "gates", "--checkpoints", "--out", str(tmp_path)]) == 0
    live = [json.loads(line) for line in (run / "probes" / "gates.jsonl").read_text().splitlines()]
    later = table(tmp_path / "probes" / "gates.csv")
    found = {(float(row["epoch"]), row["measure"], row["layer"], row["head"]): float(row["value"]) for row in later}
    assert len(found) == len(live) == len(later)
    for row in live:
        key = (float(row["epoch"]), row["measure"], str(row["layer"]), str(row["head"]))
        assert found[key] == pytest.approx(row["value"], abs=1e-6)
    assert {row["weights"] for row in later if float(row["epoch"]) == 0} == {"untrained"}


def test_a_run_and_an_untrained_name_stand_beside_each_other(run, image_folder, tmp_path, capsys):
    words = ["probe", str(run), "deit_nano", "--model-option", "patch_size=8", "--data", str(image_folder), "--split", "all"]
    assert main([*words, "--probes", "locality,gates,patch-shuffle", "--n", "20", "--out", str(tmp_path)]) == 0
    message = capsys.readouterr().out
    assert "deit_nano (untrained)" in message and "gates of deit_nano is left out: " in message
    assert re.search(r"patch-shuffle: gated: 20 pictures, passes each: 4, about", message)
    weights = {row["model"]: row["weights"] for row in table(tmp_path / "probes" / "locality.csv")}
    assert weights == {"gated": "trained", "deit_nano": "untrained"}
    assert json.loads((tmp_path / "probes" / "patch-shuffle.json").read_text())[0]["n"] == 20
    assert {"locality.png", "gates.png", "patch_shuffle.png"} <= {file.name for file in (tmp_path / "probes").glob("*.png")}


def test_options_of_a_probe_and_json(run, tmp_path, capsys):
    words = ["probe", str(run), "--probes", "rotation", "--option", "rotation.angles=(90,)", "--out", str(tmp_path), "--json"]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["angle"] for row in rows} == {"none", 90}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["deit_nano", "--probes", "gates"], "name some with --data"),
        (["deit_nano", "--probes", "localty", "--data", "fashion"], "did you mean 'locality'"),
        (["deit_nano", "--probes", "shift", "--data", "fashion", "--option", "shift.fil=roll"], "did you mean 'fill'"),
        (["deit_nano", "--probes", "gates", "--data", "fashion"], "no probe had anything to measure"),
        (["nowhere"], "nowhere does not exist"),
        ([], "which models"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(words, expected, tmp_path, capsys):
    assert main(["probe", *words, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert expected in message and message.count("\n") == 1


def test_weights_tell_whether_they_were_trained():
    for name in ("convit_nano", "resnet_nano", "timm:resnet10t", "dwconv_nano", "dwnet_nano"):
        model = create_model(name, num_classes=3, img_size=32)
        assert weights_of(model) == "untrained", name
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.train()(torch.rand(4, 3, 32, 32)).square().sum().backward()
        optimizer.step()
        assert weights_of(model) == "trained", name
    assert Classifier.of(torch.nn.Identity()).weights == "unknown"


@pytest.mark.slow
def test_hugging_face_folders_are_read_and_labeled(tmp_path, image_folder):
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(image_size=32, patch_size=8, num_labels=5, **size)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    words = [
        "probe",
        f"hf:{tmp_path / 'vit'}",
        "--data",
        str(image_folder),
        "--split",
        "all",
        "--n",
        "8",
        "--out",
        str(tmp_path),
    ]
    assert main([*words, "--probes", "locality,shift,resolution"]) == 0
    assert {row["weights"] for row in table(tmp_path / "probes" / "shift.csv")} == {"untrained"}


@pytest.mark.slow
def test_the_profile_is_one_page_and_one_table_with_intervals(run, image_folder, tmp_path):
    words = [
        "probe",
        str(run),
        "timm:resnet10t",
        "--data",
        str(image_folder),
        "--split",
        "all",
        "--probes",
        "profile",
        "--n",
        "10",
    ]
    assert main([*words, "--option", "profile.scenes=10", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "probes" / "profile.html").read_text()
    assert "timm:resnet10t (untrained)" in page and "Never trained" in page and page.count("<script") == 1
    assert not re.search(r'(src|href)="(?!#|data:)', page), "it asks nobody for anything"
    rows = table(tmp_path / "probes" / "profile.csv")
    keys = [item.key for item in profile.ITEMS]
    assert [row["measure"] for row in rows] == keys * 2
    empty = {row["measure"] for row in rows if row["model"] == "timm:resnet10t" and not row["value"]}
    assert {"distance", "distance_first", "gate"} <= empty
    assert "attention distance" in (tmp_path / "probes" / "profile.md").read_text()


def test_python_measures_as_the_command_does_and_notes_what_it_leaves_out(run, image_folder, tmp_path):
    result = softbias.probe([run, "deit_nano"], ["gates", "shift"], data=str(image_folder), split="all", n=8, device="cpu")
    assert {row["model"] for row in result.rows["gates"]} == {"gated"} and not result.files
    assert {row["model"] for row in result.rows["shift"]} == {"gated", "deit_nano"}
    (note,) = result.notes
    assert note.kind == "probe-not-measurable" and (note.values["probe"], note.values["model"]) == ("gates", "deit_nano")


def test_a_probe_that_has_no_passes_needs_no_images_and_the_others_have_a_number():
    for name, probe in PROBES.items():
        assert probe.about and name == name.lower() and bool(probe.n) == bool(probe.passes)


@pytest.mark.parametrize(("scenes", "seconds"), [(0, 0.2), (1000, 3.2), (50, 0.35)])
def test_the_estimated_time_counts_images_and_scenes_by_themselves(monkeypatch, scenes, seconds):
    data = SimpleNamespace(img_size=(32, 32))
    target = probing.ProbeTarget(Classifier.of(create_model("deit_nano", 10, 32)), data)
    monkeypatch.setattr(probing, "seconds_per_image", lambda classifier, size: 0.001)
    probe = Probe(
        lambda classifier, data, *, n, scenes=1000: [], None, "", 1000, ((1, 1), (1, 2)), scene_passes=((2, 1), (1, 4))
    )
    assert probing.expected_seconds(probe, target, 100, scenes) == pytest.approx(seconds)
    assert probe.default("scenes") == 1000 and probe.default("nothing") is None


@pytest.mark.parametrize(
    ("name", "options"),
    [("shift", {"distances": [-1]}), ("rotation", {"angles": [1e9]}), ("occlusion", {"shares": [2]}), ("shift", {"n": 0}),
     ("patch-shuffle", {"tiles": [0]}), ("resolution", {"scales": [0]}), ("locality", {"seed": -1}), ("shift", {"n": "many"})],
)  # fmt: skip
def test_options_of_probes_have_bounds(name, options):
    with pytest.raises(SoftbiasError, match=next(iter(options))):
        softbias.probe("deit_nano", name, data="fashion", options={name: options}, device="cpu")


@pytest.mark.parametrize("options", [{"split": ""}, {"device": "x" * 5000}, {"data": ""}, {"split": 3}])
def test_arguments_of_evaluate_have_bounds(options):
    with pytest.raises(SoftbiasError, match=next(iter(options))):
        softbias.evaluate("deit_nano", **options)


@pytest.mark.parametrize("options", [{"query": (-1, 0)}, {"query": (1, 2, 3)}, {"target": -1}, {"methods": [3]}])
def test_arguments_of_explain_have_bounds(options):
    with pytest.raises(SoftbiasError, match=next(iter(options))):
        softbias.explain("deit_nano", "absent.png", **options)
