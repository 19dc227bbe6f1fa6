"""Muon beside AdamW: the formula, torch's own Muon as oracle, and steps that are left out or continued."""

from __future__ import annotations

import pytest
import torch

from softbias import create_model
from softbias.errors import SoftbiasError
from softbias.training.checkpoint import flatten_optimizer, restore_optimizer
from softbias.training.muon import Muon, direction, is_for_muon, orthogonal
from softbias.training.optim import build_optimizer
from softbias.training.recipe import Recipe

MUON = Recipe(optimizer="muon", lr=1e-3, weight_decay=0.1)


def matrix(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(2, 24, 64), (1, 64, 24), (3, 24, 48)])
def test_singular_values_become_nearly_one_and_directions_stay(shape):
    given = matrix(*shape)
    found = orthogonal(given)
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.6 and values.max() < 1.3
    u, _, vh = torch.linalg.svd(given, full_matrices=False)
    inside = u.mT @ found @ vh.mT  # diagonal, if the singular vectors are the same
    off = inside - torch.diag_embed(inside.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() < 1e-3


def test_queries_keys_and_values_are_orthogonalized_one_by_one():
    given = matrix(1, 96, 32)
    parts = torch.cat([orthogonal(part) for part in given.chunk(3, dim=1)], dim=1)
    torch.testing.assert_close(direction(given), parts * 0.2 * 32**0.5)


def test_steps_are_those_of_torchs_muon():
    ours, torchs = (torch.nn.Parameter(matrix(24, 40)) for _ in range(2))
    mine = Muon([{"params": [ours], "muon": True, "weight_decay": 0.1}], lr=0.02)
    other = torch.optim.Muon([torchs], lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True, adjust_lr_fn="match_rms_adamw")
    for step in range(5):
        ours.grad, torchs.grad = (matrix(24, 40, seed=step + 1) for _ in range(2))
        mine.step()
        other.step()
    moved = torchs - matrix(24, 40)
    assert (ours - torchs).norm() < 0.02 * moved.norm()  # torch computes in bfloat16


@pytest.mark.parametrize(
    "name", ["resnet_nano", "timm:vit_tiny_patch16_224", "timm:convnext_atto", "timm:swin_tiny_patch4_window7_224"]
)
def test_networks_of_other_libraries_have_matrices_for_it_too(name):
    model = create_model(name, num_classes=16, device="meta")
    chosen = [key for key, parameter in model.named_parameters() if is_for_muon(key, parameter)]
    assert len(chosen) >= 4 and not any("head" in key or "embed" in key or "stem" in key for key in chosen)


def test_embeddings_norms_and_the_head_are_left_to_adamw():
    model = create_model("deit_nano")
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    optimizer = build_optimizer(model, MUON)
    by_muon = {names[id(p)] for group in optimizer.param_groups if group["muon"] for p in group["params"]}
    kinds = {name.split(".", 2)[2] for name in by_muon}
    assert kinds == {"attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(names)


def test_convolutions_of_a_resnet_are_matrices_for_muon():
    model = create_model("resnet_nano")
    optimizer = build_optimizer(model, MUON)
    before = [p.clone() for p in model.parameters()]
    model(torch.randn(4, 3, 32, 32)).square().mean().backward()
    optimizer.step()
    assert all((p != old).any() for p, old in zip(model.parameters(), before, strict=True) if p.ndim == 4)


def test_a_model_without_blocks_is_refused():
    with pytest.raises(SoftbiasError, match="muon"):
        build_optimizer(torch.nn.Linear(32, 32), MUON)


def test_a_step_whose_gradient_is_not_finite_changes_nothing():
    parameter = torch.nn.Parameter(matrix(20, 20))
    optimizer = Muon([{"params": [parameter], "muon": True, "weight_decay": 0.1}], lr=0.02)
    parameter.grad = matrix(20, 20, seed=1)
    optimizer.step()
    weights, momentum = parameter.detach().clone(), optimizer.state[parameter]["momentum"].clone()
    parameter.grad = torch.full((20, 20), torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(parameter, weights) and torch.equal(optimizer.state[parameter]["momentum"], momentum)


def test_training_goes_on_from_a_checkpoint_with_the_same_bits():
    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            optimizer.zero_grad()
            model(matrix(4, 3, 32, 32, seed=step)).square().mean().backward()
            optimizer.step()

    torch.manual_seed(0)
    whole = create_model("deit_nano")
    start = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    optimizer = build_optimizer(whole, MUON)
    train(whole, optimizer, range(2))
    halfway = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    saved = {name: tensor.clone() for name, tensor in flatten_optimizer(optimizer).items()}
    train(whole, optimizer, range(2, 4))

    again = create_model("deit_nano")
    again.load_state_dict(halfway)
    continued = build_optimizer(again, MUON)
    restore_optimizer(continued, saved)
    train(again, continued, range(2, 4))
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    assert any((tensor != start[name]).any() for name, tensor in whole.state_dict().items())
