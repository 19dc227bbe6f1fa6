"""Training with regularizers: separate terms in the metrics, exact resumes, and no change where none is asked for."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from softbias.data.dataset import Dataset
from softbias.runs.fit import fit

BOTH = ("distance:layer=1,weight=0.1", "style:layer=2")


def noise_set(count: int = 48) -> Dataset:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
    labels = np.arange(count) % 3
    splits = {"train": np.arange(36), "test": np.arange(36, count)}
    return Dataset("noise", images, labels.astype(np.int64), ("a", "b", "c"), splits)


def train(out: Path, *regularize: str, model: str = "arvit_nano", **options):
    settings = {"epochs": 2, "batch_size": 12, "val_fraction": 0.0, "augmentation.cutmix": 1.0, "page": False, **options}
    chosen = {"patch_size": 4} if not model.startswith("timm:") else {"patch_size": 4, "depth": 2}
    chosen = settings.pop("model_options", chosen)
    source = settings.pop("source", None)
    return fit(
        noise_set(), model, "small", out=out, model_options={} if source else chosen, start=source or "scratch", device="cpu",
        finetune=settings.pop("finetune", None), **settings, regularize=regularize,
    )  # fmt: skip


def rows(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def weights(out: Path) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in load_file(out / "model/model.safetensors").items()}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "plain"
    train(out)
    return out


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "both"
    train(out, *BOTH)
    return out


def test_the_terms_are_logged_one_by_one_and_add_up_to_the_loss(both):
    for row in rows(both):
        total = row["task_loss"] + 0.1 * row["distance_loss"] + 0.01 * row["style_loss"]
        assert row["loss"] == pytest.approx(total, abs=1e-5)
        assert row["distance_active"] == row["style_active"] == 1


def test_a_dead_loss_is_seen(tmp_path):
    train(tmp_path / "dead", "style:layer=1,rho=1", epochs=1)
    row = rows(tmp_path / "dead")[0]
    assert row["style_active"] == row["style_loss"] == 0
    assert row["loss"] == pytest.approx(row["task_loss"])


def test_regularizing_changes_the_weights_and_not_their_names(plain, both):
    assert weights(plain).keys() == weights(both).keys()
    assert weights(plain) != weights(both)


def test_a_weight_of_zero_logs_the_terms_and_trains_the_same_bits(plain, tmp_path):
    train(tmp_path / "watched", "distance:layer=1,weight=0", "style:layer=2,weight=0")
    assert weights(tmp_path / "watched") == weights(plain)
    for row, before in zip(rows(tmp_path / "watched"), rows(plain), strict=True):
        assert row["loss"] == row["task_loss"] == before["loss"]
        assert row["distance_loss"] > 0
        assert "task_loss" not in before


def test_parts_of_a_batch_give_the_terms_of_the_whole(tmp_path):
    for parts in (1, 3):
        train(tmp_path / f"{parts}", *BOTH, accumulate=parts, drop_path=0.0)
    for row, whole in zip(rows(tmp_path / "3"), rows(tmp_path / "1"), strict=True):
        for name in ("loss", "task_loss", "distance_loss", "style_loss", "distance_active"):
            assert row[name] == pytest.approx(whole[name], abs=2e-4), name


def test_a_run_stopped_within_an_epoch_continues_to_the_same_weights_and_terms(both, tmp_path, monkeypatch):
    from softbias.training.checkpoint import State
    from softbias.training.plan import LoopSettings

    class KilledError(Exception):
        pass

    saved = State.save

    def save_and_die(self, folder):
        saved(self, folder)
        if self.step == 4:  # in the middle of the second epoch, with sums of the terms under way
            raise KilledError

    monkeypatch.setattr(State, "save", save_and_die)
    with pytest.raises(KilledError):
        train(tmp_path / "stopped", *BOTH, settings=LoopSettings(middle_seconds=0.0))
    monkeypatch.setattr(State, "save", saved)
    out = tmp_path / "stopped"
    fit(
        noise_set(), "arvit_nano", "small", out=out, model_options={"patch_size": 4}, device="cpu", resume=True,
        epochs=2, batch_size=12, val_fraction=0.0, regularize=BOTH, page=False, **{"augmentation.cutmix": 1.0},
    )  # fmt: skip
    assert weights(out) == weights(both)
    for row, whole in zip(rows(out), rows(both), strict=True):
        assert {name: value for name, value in row.items() if name.endswith(("loss", "active"))} == {
            name: value for name, value in whole.items() if name.endswith(("loss", "active"))
        }


def test_a_loss_that_is_zero_in_all_of_the_training_is_named(both, tmp_path):
    result = train(
        tmp_path / "local", "distance:layer=0", model="convit_nano", epochs=1, model_options={"patch_size": 4, "strength": 9}
    )
    assert rows(result.path)[0]["distance_active"] == 0
    assert result.summary["notes"][-1] == {"kind": "regularizer-idle", "values": {"name": "distance"}}
    notes = json.loads((both / "summary.json").read_text())["notes"]
    assert "regularizer-idle" not in [note["kind"] for note in notes]


def test_timm_models_are_regularized_by_name(tmp_path):
    result = train(tmp_path / "timm", "distance:layer=1", model="timm:deit_tiny_patch16_224", epochs=1)
    assert rows(result.path)[0]["distance_active"] > 0
    assert not any("forward" in block.attn.__dict__ for block in result.model.blocks)


def test_a_linear_head_has_no_attention_to_regularize(plain, tmp_path):
    with pytest.raises(ValueError, match="trains the head alone"):
        train(tmp_path / "probe", "distance:layer=1", source=plain, finetune="linear")


def test_a_layer_that_is_not_there_leaves_no_run_behind(tmp_path):
    with pytest.raises(ValueError, match="0, 1, 2, 3"):
        train(tmp_path / "none", "distance:layer=9")
    assert not (tmp_path / "none/config.yaml").exists()


def test_sklearn_takes_regularizers_as_any_other_option_of_the_recipe():
    from softbias.sklearn import SoftbiasClassifier

    data = noise_set()
    options = {"epochs": 1, "batch_size": 12, "regularize": ("distance:layer=1",)}
    model = SoftbiasClassifier("arvit_nano", model_options={"patch_size": 4}, recipe_options=options, device="cpu")
    assert model.fit(data.images, data.labels).predict(data.images[:5]).shape == (5,)
