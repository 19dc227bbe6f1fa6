from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = "--no-sandbox --disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run"

os.environ["HF_HUB_OFFLINE"] = "1"  # what tests start from depends neither on the network nor on weights that lie around
os.environ.pop("SOFTBIAS_WEIGHTS", None)
os.environ.pop("COLUMNS", None)  # tables are as wide as they need to be; some runners of tests set it
torch.set_num_threads(1)  # tests are small: more threads only wait for each other


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests as well")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: takes more than a few seconds; skipped unless --slow is given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))


@pytest.fixture(scope="session")
def hugging_face_vit():
    """Makes Hugging Face's ViT for images of 32 px, with one small block unless options say otherwise."""
    transformers = pytest.importorskip("transformers")
    small = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}

    def make(num_labels: int, **options: int):
        config = transformers.ViTConfig(**{**small, "intermediate_size": 16, "num_labels": num_labels, **options})
        return transformers.ViTForImageClassification(config)

    return make


@pytest.fixture(scope="module")
def browser():
    """A real browser, without a screen."""
    if not CHROMIUM.is_file():
        pytest.skip("Debian's chromium is not installed at /usr/bin/chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield chromium
        chromium.close()
