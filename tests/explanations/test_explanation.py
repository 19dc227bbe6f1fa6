"""Explanations: arrays first, then pictures and pages."""

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import softbias
from softbias.cli import main
from softbias.data.decode import BrokenImageError
from softbias.explanations.figure import colored, overlay
from softbias.models import create_model
from softbias.models.inspect import inspect
from softbias.models.storage import save
from softbias.runs.opening import open_classifier

NAMES = ("cat", "dog <b>", "owl")


def kinds(explanation) -> set[str]:
    return {note.kind for note in explanation.notes}


def picture(side: int = 48) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8))


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Saved nano models with weights that are not those of the start, by name."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("convit_nano", "ibit_nano", "resnet_nano", "dwconv_dynamic_tiny"):
        torch.manual_seed(0)
        options = {"img_size": 32, "patch_size": 4, "width": 48} if "tiny" in name else {}
        model = create_model(name, num_classes=3, **options)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.15)
        save(model, folder / name, class_names=NAMES)
    return folder


def test_an_explanation_holds_what_the_model_and_inspect_say(models):
    seen = softbias.explain(models / "convit_nano", picture())
    classifier = open_classifier(models / "convit_nano")
    images = classifier.tensor(classifier.read(picture()))
    found = inspect(classifier.model, images)
    assert seen.probabilities == pytest.approx(found.logits.softmax(-1)[0].detach().numpy(), abs=1e-6)
    assert seen.label == NAMES[int(found.logits.argmax())] and seen.target == int(found.logits.argmax())
    assert seen.picture.shape == (32, 32, 3) and seen.class_names == NAMES and seen.weights == "trained"
    attention = seen.attention_from((2, 5))
    assert attention[0] == pytest.approx(found.maps[0][0, :, 2 * 8 + 5].reshape(4, 8, 8).detach().numpy(), abs=1e-6)
    assert attention[3] == pytest.approx(found.maps[3][0, :, 1 + 2 * 8 + 5, 1:].reshape(4, 8, 8).detach().numpy(), abs=1e-6)
    token = seen.class_token_attention()
    assert list(token) == [3] and token[3] == pytest.approx(
        found.maps[3][0, :, 0, 1:].reshape(4, 8, 8).detach().numpy(), abs=1e-6
    )


def test_gates_and_masks_are_those_of_the_weights(models):
    seen = softbias.explain(models / "convit_nano", picture())
    blocks = open_classifier(models / "convit_nano").model.blocks
    assert sorted(seen.gates) == [0, 1, 2] == sorted(seen.bias)
    assert seen.gates[1] == pytest.approx(blocks[1].attn.gate.sigmoid().detach().numpy())
    assert seen.bias_from((1, 1))[0] == pytest.approx(
        blocks[0].attn.position.map()[:, 9].reshape(4, 8, 8).detach().numpy(), abs=1e-6
    )
    masked = softbias.explain(models / "ibit_nano", picture())
    mask = open_classifier(models / "ibit_nano").model.blocks[2].attn.mask()
    assert masked.bias_from((0, 3))[2] == pytest.approx(mask[:, 1 + 3, 1:].reshape(-1, 8, 8).detach().numpy(), abs=1e-6)
    assert masked.signed(0) and "signed-maps" in kinds(masked)


def test_gradients_are_about_the_class_that_was_asked_for(models):
    one, other = (softbias.explain(models / "convit_nano", picture(), target=target) for target in ("cat", 2))
    assert one.target == 0 and other.target == 2 and one.label == other.label
    assert np.array_equal(one.relevance["rollout"], other.relevance["rollout"])
    assert not np.allclose(one.relevance["gradient-rollout"], other.relevance["gradient-rollout"])


@pytest.mark.parametrize("name", ["resnet_nano", "dwconv_dynamic_tiny"])
def test_a_model_without_maps_is_explained_by_gradients_and_says_so(models, name):
    seen = softbias.explain(models / name, picture())
    assert list(seen.relevance) == ["gradients", "grad-cam"] and not seen.maps and seen.query is None
    assert "no-attention-maps" in kinds(seen)
    assert "has no attention maps" in seen._repr_html_() and len(seen.draw().axes) > 2
    with pytest.raises(ValueError, match="no patch can be the query"):
        softbias.explain(models / name, picture(), query=(0, 0))
    with pytest.raises(ValueError, match=r"no way to explain .* 'rollout'"):
        softbias.explain(models / name, picture(), methods=["rollout"])


def test_models_of_timm_and_modules_in_memory_are_explained_and_called_untrained():
    model = create_model(
        "timm:convit_tiny", num_classes=3, img_size=32, patch_size=4, embed_dim=16, num_heads=4, depth=3, local_up_to_layer=2
    )
    seen = softbias.explain(model, picture())
    assert seen.weights == "untrained" and "never-trained" in kinds(seen)
    assert sorted(seen.gates) == [0, 1] == sorted(seen.bias) and seen.bias[0].shape == (4, 64, 64)
    assert seen.bias_from((4, 4))[0].sum((1, 2)) == pytest.approx([1] * 4)
    assert seen.class_names == ("class 0", "class 1", "class 2")


@pytest.mark.slow
def test_a_hugging_face_folder_is_explained(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                                    image_size=32, patch_size=8, id2label={0: "a", 1: "b"})  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
    seen = softbias.explain(f"hf:{tmp_path}", picture())
    assert (
        seen.class_names == ("a", "b") and seen.attention_from()[1].shape == (2, 4, 4) and "gradient-rollout" in seen.relevance
    )


def test_images_come_as_files_arrays_or_pillow_images(models, tmp_path):
    picture().save(tmp_path / "x.png")
    found = [
        softbias.explain(models / "convit_nano", given).probabilities
        for given in (tmp_path / "x.png", picture(), np.array(picture()))
    ]
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[1], found[2])
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(BrokenImageError):
        softbias.explain(models / "convit_nano", tmp_path / "bad.png")
    with pytest.raises(ValueError, match="uint8"):
        softbias.explain(models / "convit_nano", np.zeros((8, 8, 3)))


def test_a_query_outside_the_grid_and_an_unknown_class_are_refused(models):
    with pytest.raises(ValueError, match=r"row 0 to 7 and column 0 to 7, but is \(8, 0\)"):
        softbias.explain(models / "convit_nano", picture(), query=(8, 0))
    with pytest.raises(ValueError, match="no class 'cow'"):
        softbias.explain(models / "convit_nano", picture(), target="cow")
    with pytest.raises(ValueError, match="neither a folder nor a model's name"):
        softbias.explain("convit_nan", picture())


def test_the_page_asks_nothing_from_outside_and_escapes_names(models, tmp_path):
    seen = softbias.explain(models / "convit_nano", picture(), query=(1, 2))
    html = seen.save(tmp_path / "x.html").read_text()
    assert not re.search(r"https?://|url\(|@import|<script|<iframe", html) and "dog <b>" not in html
    assert html.count("data:image/png") == 1 + 3 + 4 * 4 + 3 * 4  # the picture, three ways, every head, every place
    assert "row 1, column 2" in html and html.lstrip().startswith("<!doctype html>")
    assert "<!doctype" not in seen._repr_html_() and "row 1, column 2" in seen._repr_html_()
    with Image.open(io.BytesIO(seen.save(tmp_path / "x.png").read_bytes())) as image:
        assert image.width > 800
    with pytest.raises(ValueError, match=r"\*\.png or \*\.html"):
        seen.save(tmp_path / "x.pdf")


@pytest.mark.filterwarnings("error")
def test_a_picture_whose_name_the_font_cannot_write_is_drawn_without_a_warning(models, tmp_path):
    picture().save(tmp_path / "pétunia 🌸.png")
    assert softbias.explain(models / "convit_nano", tmp_path / "pétunia 🌸.png").save(tmp_path / "seen.png").is_file()


def test_what_is_negative_is_blue_and_the_strongest_is_lightest():
    colors = colored(np.array([[0.0, 0.5, 1.0, -1.0]]))[0].astype(int)
    assert colors[0].sum() < 10 and colors[2].sum() > colors[1].sum() > 100
    assert colors[3][2] >= colors[3][0] and colors[1][0] > colors[1][1]
    heat = overlay(np.full((32, 32, 3), 100, np.uint8), np.eye(8, dtype=np.float32))
    assert heat.shape == (320, 320, 3) and heat[20, 20].sum() > heat[20, 300].sum()


def test_the_command_writes_a_page_and_a_picture_per_image_and_passes_over_broken_ones(models, tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    picture().save(tmp_path / "a" / "x.png")
    picture(40).save(tmp_path / "b" / "x.png")
    (tmp_path / "b" / "y.png").write_bytes(b"junk")
    out = tmp_path / "out"
    assert (
        main(
            [
                "explain",
                str(models / "convit_nano"),
                str(tmp_path / "a"),
                str(tmp_path / "b"),
                "--out",
                str(out),
                "--query",
                "2,3",
            ]
        )
        == 1
    )
    printed = capsys.readouterr()
    assert sorted(path.name for path in out.iterdir()) == ["x-2.html", "x-2.png", "x.html", "x.png"]
    assert "y.png" in printed.err and len(printed.out.splitlines()) == 2


def test_the_command_prints_json_for_machines(models, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    picture().save("x.png")
    assert main(["explain", str(models / "ibit_nano"), "x.png", "--json", "--query", "0,0"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["query"] == [0, 0] and np.shape(row["attention"]["0"]) == np.shape(row["bias"]["0"]) == (4, 8, 8)
    assert sum(row["probabilities"].values()) == pytest.approx(1) and np.sum(row["relevance"]["rollout"]) == pytest.approx(
        1, abs=1e-3
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.png"]


@pytest.mark.parametrize(
    ("words", "text"), [(["--query", "2"], "--query takes ROW,COLUMN"), (["--query", "9,9"], "row 0 to 7")]
)
def test_mistakes_on_the_command_line_are_one_line(models, tmp_path, capsys, words, text):
    picture().save(tmp_path / "x.png")
    assert main(["explain", str(models / "convit_nano"), str(tmp_path / "x.png"), "--out", str(tmp_path), *words]) == 2
    assert text in capsys.readouterr().err
