"""Combined and background: how scenes are made, and what known predictors score on them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from softbias.data.dataset import Dataset
from softbias.data.packs import resized_set
from softbias.data.scenes import combined, load_backgrounds, on_background, textures
from softbias.errors import SoftbiasError
from softbias.models import create_model
from softbias.probes import scenes as scenes_module
from softbias.probes.resolution import resized
from softbias.probes.scenes import background_probe, combined_probe, draw_examples, random_histogram, random_matching

CLASSES = 10
LABELS = np.arange(40) % CLASSES
SHADES = (LABELS * 25 + 5).astype(np.uint8)  # the shade tells the class
IMAGES = np.broadcast_to(SHADES[:, None, None, None], (40, 8, 8, 3)).copy()
DATA = (IMAGES, LABELS)


class BySeed(nn.Module):
    """Logits that have nothing to do with the picture."""

    num_classes = CLASSES

    def __init__(self) -> None:
        super().__init__()
        self.rng = torch.Generator().manual_seed(0)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.rand(len(images), CLASSES, generator=self.rng)


class Oracle(nn.Module):
    """Reads the shades in a picture of any size: the more pixels of a class, the more likely the class."""

    num_classes = CLASSES

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shades = (images[:, 0].flatten(1) * 255).round()
        return torch.stack([(shades == 25 * name + 5).float().sum(1) for name in range(CLASSES)], dim=1)


def test_a_combined_scene_shows_four_distinct_classes_in_reading_order():
    scenes = combined(IMAGES, LABELS, range(50), seed=1)
    assert scenes.images.shape == (50, 16, 16, 3)
    for image, labels, sources in zip(scenes.images, scenes.labels, scenes.sources, strict=True):
        assert len(set(labels)) == 4 and (LABELS[sources] == labels).all()
        quarters = [image[:8, :8], image[:8, 8:], image[8:, :8], image[8:, 8:]]
        assert [int(quarter[0, 0, 0]) for quarter in quarters] == [25 * name + 5 for name in labels]


def test_a_scene_is_a_function_of_seed_and_number():
    whole, part = combined(IMAGES, LABELS, range(20), seed=3), combined(IMAGES, LABELS, range(10, 20), seed=3)
    np.testing.assert_array_equal(whole.images[10:], part.images)
    assert (combined(IMAGES, LABELS, range(20), seed=4).sources != whole.sources).any()


def test_a_pasted_picture_lies_whole_on_the_background_where_it_was_asked_for():
    blank = [np.full((40, 50, 3), 200, np.uint8)]
    for position in ("random", "center", "corner"):
        scenes = on_background(IMAGES, LABELS, blank, range(30), size=32, position=position)
        for image, label in zip(scenes.images, scenes.labels, strict=True):
            rows, columns = np.nonzero(image[..., 0] == 25 * label + 5)
            if label == 0:  # its shade is unlike the background's in any case
                assert len(rows) == 64
            assert rows.max() - rows.min() == 7 and columns.max() - columns.min() == 7
            if position != "random":
                assert rows.min() == columns.min() == (12 if position == "center" else 0)
    twice = on_background(IMAGES, LABELS, blank, range(3), size=32, scale=2.0, position="corner")
    assert (twice.images[:, :16, :16, 0] == SHADES[twice.sources][:, None, None]).all()


def test_what_cannot_be_made_is_refused_by_name():
    with pytest.raises(ValueError, match="only 3"):
        combined(IMAGES[:3], LABELS[:3], range(1))
    with pytest.raises(ValueError, match="scale 5 does not fit"):
        on_background(IMAGES, LABELS, [np.zeros((64, 64, 3), np.uint8)], range(1), scale=5)
    with pytest.raises(ValueError, match="no position 'left'"):
        on_background(IMAGES, LABELS, [np.zeros((64, 64, 3), np.uint8)], range(1), position="left")
    with pytest.raises(ValueError, match="no folder of backgrounds"):
        load_backgrounds("nowhere")


def test_chance_is_exact():
    assert random_matching(10) == 1.6 and random_matching(100) == 0.16
    histogram = random_histogram(10)
    assert sum(histogram) == pytest.approx(1)
    assert sum(number * share for number, share in enumerate(histogram)) == pytest.approx(1.6)
    assert histogram[4] == pytest.approx(1 / 210)


def test_a_random_predictor_scores_what_chance_says():
    rows = combined_probe(BySeed(), DATA, n=5000, entries=("resize",))
    mean = rows[0]
    assert mean["chance_level"] == 1.6 and mean["low"] < 1.6 < mean["high"] and mean["high"] - mean["low"] < 0.06
    for row, share in zip(rows[1:], random_histogram(10), strict=True):
        assert row["chance_level"] == share and row["value"] == pytest.approx(share, abs=0.03)
    (row,) = background_probe(BySeed(), DATA, n=1000, entries=("resize",))
    assert row["low"] < 0.1 < row["high"] and row["chance_level"] == 0.1 and row["n"] == 1000 and row["images"] == 40


def test_one_that_sees_everything_matches_all_four():
    (native,) = [
        row for row in combined_probe(Oracle(), DATA, n=200) if row["entry"] == "native" and row["measure"] == "top4_matching"
    ]
    assert native["value"] == 4 and native["low"] == native["high"] == 4
    gray = load_backgrounds()
    rows = background_probe(
        Oracle(), DATA, n=100, entries=("native",), backgrounds=gray, scales=(1.0, 2.0), positions=("center", "random")
    )
    assert [(row["scale"], row["position"]) for row in rows] == [(1, "center"), (1, "random"), (2, "center"), (2, "random")]
    assert all(row["backgrounds"] == "procedural textures" for row in rows)


def test_an_interval_grows_where_few_images_make_many_scenes():
    by_seed = background_probe(BySeed(), (IMAGES, LABELS), n=800, entries=("resize",))[0]

    class First(Oracle):
        def forward(self, images):
            return nn.functional.one_hot(torch.zeros(len(images), dtype=torch.long), CLASSES).float()

    always = background_probe(First(), (IMAGES, LABELS), n=800, entries=("resize",))[0]  # right for 4 of the 40 pictures
    assert always["high"] - always["low"] > 3 * (by_seed["high"] - by_seed["low"])


def test_both_entries_are_reported_for_ours_and_for_timms_vit():
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    timms = create_model(
        "timm:vit_tiny_patch16_224", num_classes=10, img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=3
    )
    for model in (create_model("ibit_nano", patch_size=8), timms):
        rows = combined_probe(model, (images, LABELS), n=20)
        assert [row["entry"] for row in rows if row["measure"] == "top4_matching"] == ["resize", "native"]
        assert {row["weights"] for row in rows} == {"untrained"} and all(row["value"] is not None for row in rows)


class SeenSizes(BySeed):
    """Remembers what enters it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.seen.append(images)
        return super().forward(images)


@pytest.mark.parametrize(("probe", "factor"), [(combined_probe, 2), (background_probe, 4)])
def test_an_entry_with_a_side_enlarges_scenes_of_the_set_s_own_images_and_shrinks_nothing(probe, factor):
    noise = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
    names = tuple(map(str, range(CLASSES)))
    small = Dataset("noise", noise, LABELS, names, {"test": np.arange(40)})
    enlarged = resized_set(small, (48, 48), "crop")
    assert enlarged.img_size == (48, 48) and enlarged.as_small().img_size == (8, 8)
    model = SeenSizes()
    (row, *_) = probe(model, enlarged, n=4, entries=("48",))
    assert row["entry"] == "48" and row["value"] is not None and model.seen[0].shape[-2:] == (48, 48)
    other = SeenSizes()
    probe(other, small, n=4, entries=(48,))
    torch.testing.assert_close(model.seen[0], other.seen[0])  # scenes of the small images, whatever size the set was read at
    native = SeenSizes()
    probe(native, small, n=4, entries=("native",))
    expected = resized(native.seen[0], (48, 48))
    assert native.seen[0].shape[-1] == 8 * factor and torch.allclose(model.seen[0], expected, atol=1e-6)


def test_an_entry_with_a_side_brings_a_model_of_another_size_to_it():
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    rows = combined_probe(create_model("convit_nano", patch_size=8), (images, LABELS), n=4, entries=("resize", "96"))
    assert [row["entry"] for row in rows if row["measure"] == "top4_matching"] == ["resize", "96"]
    assert all(row["value"] is not None for row in rows)


def test_an_entry_that_would_shrink_scenes_is_refused():
    with pytest.raises(SoftbiasError, match="16 × 16"):
        combined_probe(BySeed(), DATA, n=4, entries=("12",))
    with pytest.raises(SoftbiasError, match="no entry 'bigger'"):
        combined_probe(BySeed(), DATA, n=4, entries=("bigger",))


def test_a_model_of_one_size_says_that_it_has_no_native_entry():
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
    model = create_model(
        "timm:convit_tiny", num_classes=10, img_size=32, patch_size=8, embed_dim=12, depth=2, local_up_to_layer=1
    )
    rows = [row for row in combined_probe(model, (images, LABELS), n=8) if row["measure"] == "top4_matching"]
    assert rows[0]["value"] is not None and rows[1]["value"] is None and "one size only" in rows[1]["note"]


def test_backgrounds_are_the_images_of_a_folder_or_else_our_textures(tmp_path, monkeypatch):
    monkeypatch.delenv("SOFTBIAS_DATA", raising=False)
    ours = load_backgrounds()
    assert len(ours.images) == 24 >= 20 and ours.source == "procedural textures"
    assert all(picture.shape == (256, 256, 3) and picture.std() > 5 for picture in ours.images)
    np.testing.assert_array_equal(textures()[3], textures()[3])
    folder = tmp_path / "backgrounds"
    folder.mkdir()
    Image.new("RGB", (140, 130), (1, 2, 3)).save(folder / "a.png")
    monkeypatch.setenv("SOFTBIAS_DATA", str(tmp_path))
    assert load_backgrounds().images[0].shape == (130, 140, 3)
    Image.new("RGB", (100, 130)).save(folder / "small.png")
    with pytest.raises(ValueError, match=r"small\.png"):
        load_backgrounds(folder)


def test_sheets_and_figures_are_drawn(tmp_path):
    rows = combined_probe(Oracle(), DATA, n=20)
    made = [*scenes_module.draw_combined(rows, tmp_path), draw_examples(DATA, tmp_path / "a.png", count=4)]
    rows = background_probe(Oracle(), DATA, n=20, scales=(1.0, 2.0))
    made += [
        *scenes_module.draw_background(rows, tmp_path),
        draw_examples(DATA, tmp_path / "b.png", kind="background", count=4),
    ]
    assert len(made) == 4 and all(file.stat().st_size > 3000 for file in made)
