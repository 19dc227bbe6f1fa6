"""Models of other libraries: timm's classifiers by name, and Hugging Face folders. `adapters` reads their attention."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbias.checksums import CHECKSUMS, verify_checksums
from softbias.errors import MOST_NAMED, FewTokensWarning, SoftbiasError, in_one_line, unknown_name
from softbias.json_file import read_json
from softbias.models.hub import NoWeightsError, fetching_weights
from softbias.models.patch_sizes import suitable_patch
from softbias.models.presets import FEW_PATCHES
from softbias.models.spec import pair
from softbias.models.untrusted import check_folder, check_hugging_face, check_timm_options
from softbias.models.weights import check_finite


def create_timm(
    name: str, *, pretrained: bool = False, device: Any = None, dtype: torch.dtype | None = None, **options: Any
) -> nn.Module:
    """A model of timm's registry, with fresh weights unless `pretrained=True`; options go to the architecture."""
    import timm

    require_timm(name)
    check_timm_options(name, options)
    try:
        with fetching_weights(name) if pretrained else nullcontext():
            model: Any = timm.create_model(name, pretrained=pretrained, **options)
    except NoWeightsError:
        raise
    except TypeError as error:
        refused = refused_options(name, options)
        left_out = {
            option for option in refused if option == "img_size" or (option == "drop_path_rate" and not options[option])
        }
        for option in refused:
            if option not in left_out:
                hint = "; --drop-path 0 leaves it out" if option == "drop_path_rate" else ""
                raise SoftbiasError(f"timm:{name} has no option {option}, but {option}={options[option]!r}{hint}") from error
        if not left_out:
            raise SoftbiasError(f"timm:{name} cannot be built with {options}: {in_one_line(error)}") from error
        # It takes any size, and has no paths to drop.
        kept = {option: value for option, value in options.items() if option not in left_out}
        return create_timm(name, pretrained=pretrained, device=device, dtype=dtype, **kept)
    except (AssertionError, RuntimeError, ValueError) as error:
        raise SoftbiasError(f"timm:{name} cannot be built with {options}: {in_one_line(error)}") from error
    grid = getattr(getattr(model, "patch_embed", None), "grid_size", None)
    if grid and grid[0] * grid[1] < FEW_PATCHES and "img_size" in options:
        warnings.warn(
            f"timm:{name} at {options['img_size']} px leaves only {grid[0] * grid[1]} tokens to attend to; "
            f"patch_size={suitable_patch(pair('img_size', options['img_size']))} is a better choice",
            FewTokensWarning,
            stacklevel=3,
        )
    model.name = f"timm:{name}"
    model.timm_options = dict(options)
    model.class_names = None
    made: nn.Module = model.to(device=device, dtype=dtype)
    return made


def refused_options(name: str, options: dict[str, Any]) -> list[str]:
    """The options that a model of timm's does not take, each tried alone on a model without memory."""
    import timm

    refused = []
    for option in options:
        try:
            with torch.device("meta"):
                timm.create_model(name, **{option: options[option]})
        except TypeError:
            refused.append(option)
        except Exception:
            continue
    return refused


def require_timm(name: str) -> None:
    import timm

    if not timm.is_model(name.split(".")[0]):
        near = " or ".join(f"timm:{each}" for each in difflib.get_close_matches(name, timm.list_models(), 3, 0.5))
        raise SoftbiasError(
            f"timm has no model {name!r}; {f'did you mean {near}? ' if near else ''}timm.list_models() names all"
        )


# Hugging Face


class HuggingFaceClassifier(nn.Module):
    """A Hugging Face image classifier that returns logits, as every other model here does."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        self.num_classes: int = model.config.num_labels
        names = model.config.id2label
        self.class_names = tuple(names[index] for index in sorted(names)) if names else None

    @property
    def name(self) -> str:
        return f"hf:{self.config.name_or_path}"

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images).logits
        return logits

    # timm's conventions, by which a head is trained alone or replaced

    def get_classifier(self) -> nn.Module:
        head: nn.Module = self.model.classifier
        return head

    def reset_classifier(self, num_classes: int) -> None:
        head = self.get_classifier()
        if not isinstance(head, nn.Linear):
            raise SoftbiasError(f"{self.name} has a head of {type(head).__name__}, and only a linear one can be replaced")
        self.model.classifier = nn.Linear(head.in_features, num_classes).to(head.weight)
        self.config.num_labels = self.model.num_labels = self.num_classes = num_classes
        self.class_names = None


def create_hugging_face(
    folder: str,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    in_chans: int = 3,
    pretrained: bool = True,
    device: Any = None,
    dtype: torch.dtype | None = None,
    **others: Any,
) -> nn.Module:
    """The classifier in a folder that `save_pretrained` wrote, with its weights if it holds any (safetensors only), or with
    fresh ones."""
    for option in others:
        raise unknown_name(f"option of hf:{folder}", option, ("num_classes", "img_size", "in_chans"))
    try:
        from transformers import AutoConfig, AutoModelForImageClassification
    except ImportError as error:
        raise SoftbiasError("hf: models need the package transformers: pip install 'softbias[hf]'") from error
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise SoftbiasError(f"hf:{folder}: there is no config.json in that folder")
    check_folder(path)
    check_hugging_face(path, read_json(path / "config.json"))
    if (path / CHECKSUMS).is_file():
        verify_checksums(path, ())
    if pretrained and any(Path(folder).glob("*.bin")) and not any(Path(folder).glob("*.safetensors")):
        raise SoftbiasError(f"hf:{folder} holds pickled weights, which can run code; save them as safetensors first")
    with opening(folder):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    size = getattr(config, "image_size", None)
    if img_size is not None and size is not None and pair("image_size", size) != pair("img_size", img_size):
        raise SoftbiasError(f"hf:{folder} is for image_size={size}, but {img_size} was asked for")
    if getattr(config, "num_channels", in_chans) != in_chans:
        raise SoftbiasError(f"hf:{folder} is for num_channels={config.num_channels}, but {in_chans} was asked for")
    if num_classes not in (None, config.num_labels):
        config.num_labels = num_classes
    models: Any = AutoModelForImageClassification
    with opening(folder):
        if not pretrained or not any(path.glob("*.safetensors")):
            return HuggingFaceClassifier(models.from_config(config, trust_remote_code=False)).to(device=device, dtype=dtype)
        model, found = models.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, ignore_mismatched_sizes=True,
            trust_remote_code=False, output_loading_info=True,
        )  # fmt: skip
    made = HuggingFaceClassifier(model)
    check_loaded(made, folder, found, new_head=num_classes is not None)
    return made.to(device=device, dtype=dtype)


def check_loaded(model: HuggingFaceClassifier, folder: str, found: Mapping[str, Any], *, new_head: bool) -> None:
    """Refuse weights that transformers replaced by random ones; a head for another number of classes may be new.

    Tensors that the model has no use for, such as the pooler of a backbone, are left out, as transformers does.
    """
    misshapen = [f"{name} is {tuple(given)}, the model has {tuple(own)}" for name, given, own in found["mismatched_keys"]]
    wrong = [*(f"{name} is missing" for name in sorted(found["missing_keys"])), *misshapen]
    wrong = [each for each in wrong if not (new_head and each.startswith("classifier."))]
    if wrong:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise SoftbiasError(f"the weights of hf:{folder} do not fit: {'; '.join(wrong[:MOST_NAMED])}{more}")
    check_finite(model.model.state_dict(), folder)


@contextmanager
def opening(folder: str) -> Iterator[None]:
    """An error of transformers on a user's folder becomes one that says which folder it is; its own prints are left out."""
    from transformers.utils import logging as transformers_logging

    logging: Any = transformers_logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except Exception as error:  # of transformers, safetensors and JSON: there is no common kind
        if isinstance(error, OSError) and error.errno is not None:  # of the system; transformers has some of its own
            raise
        raise SoftbiasError(f"hf:{folder} cannot be opened: {in_one_line(error)}") from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
