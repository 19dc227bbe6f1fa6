"""The contract of an attention mechanism, as functions that anybody can run on their own.

    from softbias.attention.contract import AttentionCase, check_attention
    check_attention(AttentionCase(Mine, width=16, heads=4, grid=Grid(3, 5), options={"window": 3}))

Each check takes an `AttentionCase`. It returns nothing, or raises AssertionError with the mechanism, the check and the error.
Layers are compared in float64, after seeded noise has moved all their parameters: in float64 a difference is a mistake and not
rounding, and zeros and identities would hide mistakes.

Shapes: B images, H heads, N tokens, C channels.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from softbias.attention.base import Attention, NoAttentionMapError
from softbias.attention.full import Full
from softbias.grid import Grid

TOLERANCE = 1e-9  # in float64
AUTOCAST_TOLERANCE = 3e-2  # bfloat16 keeps 8 bits
CHECKS: list[Callable[..., None]] = []  # in the order of this file, cheap ones first


@dataclass(frozen=True)
class AttentionCase:
    """A mechanism with its arguments. Small sizes are enough; a grid whose sides differ finds more mistakes."""

    mechanism: type[Attention]
    width: int
    heads: int
    grid: Grid
    options: Mapping[str, Any] = field(default_factory=dict)

    def build(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> Attention:
        """A fresh layer whose parameters are moved away from their initial values; the global random state stays."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            layer = self.mechanism(self.width, self.heads, self.grid, **self.options).eval()
            with torch.no_grad():
                for parameter in layer.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
        return layer.to(dtype)

    def tokens(self, batch: int = 2, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
        """# (B, N, C)"""
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(batch, len(self.grid), self.width, dtype=torch.float64, generator=generator)
        return x.to(dtype).requires_grad_()

    def __str__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"{self.mechanism.__name__}({self.width}, {self.heads}, {self.grid}{options})"


def named(check: Callable[..., None]) -> Callable[..., None]:
    """One more of CHECKS. Every error inside it becomes an AssertionError that names the check and the case."""

    @functools.wraps(check)
    def run(case: AttentionCase, **options: Any) -> None:
        try:
            check(case, **options)
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            raise AssertionError(f"{case} fails {check.__name__}: {kind}{error}") from error

    CHECKS.append(run)
    return run


def require(holds: bool, otherwise: str) -> None:
    """An `assert` that `python -O` does not remove."""
    if not holds:
        raise AssertionError(otherwise)


def require_kind(found: Tensor, shape: tuple[int, ...], dtype: torch.dtype, what: str) -> None:
    require(found.shape == shape, f"{what} has shape {tuple(found.shape)} instead of {shape}")
    require(found.dtype == dtype, f"{what} is {found.dtype} instead of {dtype}")


def require_close(found: Tensor, wanted: Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    """‖found − wanted‖ ≤ tolerance · max(‖wanted‖, 1): relative for all but tiny tensors, such as gradients that vanish."""
    require(found.shape == wanted.shape, f"{what} has shape {tuple(found.shape)} instead of {tuple(wanted.shape)}")
    found, wanted = found.detach().double(), wanted.detach().double()
    off = float((found - wanted).norm() / wanted.norm().clamp_min(1))
    require(off <= tolerance, f"{what} is off by {off:.3g} (allowed {tolerance:.3g})")  # NaN is off as well


def gradients(layer: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradients of a fixed random projection of y; a parameter that takes no part has zeros."""
    weights = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).to(y.dtype)
    into = {"the input": x, **dict(layer.named_parameters())}
    found = torch.autograd.grad((y * weights).sum(), list(into.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(into, found, strict=True))


def require_same(layer: nn.Module, x: Tensor, found: Tensor, wanted: Tensor) -> None:
    """Two outputs for the same input are equal, and so are their gradients."""
    require_close(found, wanted, "the output")
    wanted_gradients = gradients(layer, x, wanted)
    for name, gradient in gradients(layer, x, found).items():
        require_close(gradient, wanted_gradients[name], f"the gradient with respect to {name}")


@named
def check_forward_equals_definition(case: AttentionCase) -> None:
    """`forward(x)` equals merge(attention_map(x) · values(x)), values and gradients with respect to the input and every
    parameter. A mixer that has no map must say so by NoAttentionMapError, never by an empty map."""
    layer, x = case.build(), case.tokens()
    if layer.has_map:
        return require_same(layer, x, layer(x), Attention.by_definition(layer, x))  # the base class's, not an override
    with contextlib.suppress(NoAttentionMapError):
        found = layer.attention_map(x)
        raise AssertionError(f"has_map is False, but attention_map raised no NoAttentionMapError and gave {type(found)}")


@named
def check_shapes_and_dtypes(case: AttentionCase) -> None:
    """(B, N, C) goes to (B, N, C) and the map is (B, H, N, N), for one image and for several, in the type of the input,
    float32 or float64; how the input lies in memory makes no difference."""
    tokens = len(case.grid)
    for dtype, batch in itertools.product((torch.float32, torch.float64), (1, 3)):
        layer, x = case.build(dtype), case.tokens(batch, dtype)
        require_kind(layer(x), (batch, tokens, case.width), dtype, "the output")
        if layer.has_map:
            require_kind(layer.attention_map(x), (batch, case.heads, tokens, tokens), dtype, "the map")
    scattered = x.detach().mT.contiguous().mT
    require_close(layer(scattered), layer(x), "the output for a non-contiguous input")


@named
def check_rows_sum_to_one(case: AttentionCase) -> None:
    """Where `rows_sum_to_one` is True, every row of the map is non-negative and sums to one. Where it is False, some row does
    not: others would not use a property that is denied."""
    layer, x = case.build(), case.tokens()
    if not layer.has_map:
        return require(not layer.rows_sum_to_one, "has_map is False, so there are no rows, but rows_sum_to_one is True")
    rows = layer.attention_map(x).detach()
    off, least = float((rows.sum(-1) - 1).abs().max()), float(rows.min())
    holds = off <= TOLERANCE and least >= 0
    state = f"rows sum to one within {off:.3g} and the least entry is {least:.3g}"
    require(holds == layer.rows_sum_to_one, f"rows_sum_to_one is {layer.rows_sum_to_one}, but {state}")


@named
def check_autocast(case: AttentionCase) -> None:
    """Under autocast to bfloat16 the output is near that of float32, and output and gradients are finite."""
    layer, x = case.build(torch.float32), case.tokens(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y = layer(x)
    require_close(y, layer(x), "the output", AUTOCAST_TOLERANCE)
    for name, gradient in gradients(layer, x, y.float()).items():
        bad = int((~gradient.isfinite()).sum())
        require(not bad, f"{bad} of {gradient.numel()} entries of the gradient with respect to {name} are not finite")


@named
def check_state_dict(case: AttentionCase) -> None:
    """`state_dict` holds all of a layer: loaded into one with another seed, it gives the same output. So it does for a layer
    that was built on the meta device, after calling `init_buffers` on every module that has it."""
    layer, other, x = case.build(), case.build(seed=3), case.tokens()
    other(x)  # so that its caches, if it has any, are stale
    other.load_state_dict(layer.state_dict())
    require_close(other(x), layer(x), "the output after a round trip through state_dict")
    with torch.device("meta"):
        empty = case.mechanism(case.width, case.heads, case.grid, **case.options)
    empty = empty.eval().double().to_empty(device="cpu")
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.detach().fill_(float("nan") if tensor.is_floating_point() else 0)  # memory may hold old values by chance
    empty.load_state_dict(layer.state_dict())
    for module in empty.modules():
        if callable(init_buffers := getattr(module, "init_buffers", None)):
            init_buffers()
    require_close(empty(x), layer(x), "the output of a layer built on the meta device and loaded")


@named
def check_errors(case: AttentionCase) -> None:
    """A wrong number of tokens, a wrong width and a wrong number of dimensions raise ValueError with the shape that was
    given and the sizes that are allowed; a width that is no multiple of the heads raises one that names both."""
    layer, x, tokens, width = case.build(), case.tokens().detach(), len(case.grid), case.width
    longer, wider = x.new_zeros(2, tokens + 1, width), x.new_zeros(2, tokens, width + case.heads)
    for wrong in (longer, wider, x.flatten(0, 1), x[None]):
        for call in (layer, layer.attention_map) if layer.has_map else (layer,):
            require_error(functools.partial(call, wrong), f"input {tuple(wrong.shape)}", {*wrong.shape, tokens, width})
    if case.heads > 1:
        require_error(replace(case, width=width + 1).build, f"width {width + 1}", {width + 1, case.heads})


def require_error(call: Callable[[], object], what: str, numbers: set[int]) -> None:
    try:
        call()
    except ValueError as error:
        missing = numbers - {int(number) for number in re.findall(r"\d+", str(error))}
        require(not missing, f"the message for {what} lacks {sorted(missing)}: {error}")
    else:
        require(False, f"{what} raised no ValueError")


@named
def check_batch_independence(case: AttentionCase) -> None:
    """The output for an image does not depend on the other images of the batch."""
    layer, x = case.build(), case.tokens(3)
    for index, together in enumerate(layer(x)):
        require_close(together, layer(x[index, None])[0], f"the output for image {index} of 3, compared with it alone,")


@named
def check_other_forms(case: AttentionCase) -> None:
    """`attend`, `mixture` and `score_mask`, where a mechanism has them, stand for its map."""
    layer, x = case.build(), case.tokens()
    if not layer.has_map:
        return
    attention, projected = layer.attention_map(x), layer.project(x)
    if layer.attend is not None:
        require_close(layer.attend(*projected), attention @ layer.values(x), "attend(*project(x))")
    mixture, mask = layer.mixture(), layer.score_mask()
    if mixture is not None:
        content = layer.grid.patches_only(layer.scores(*projected[:2]).softmax(-1))
        if mixture.share is not None and mixture.positional is not None:
            g = mixture.share[:, None, None]
            content = (1 - g) * content + g * mixture.positional
        require_close(content, layer.grid.patches_only(attention), "the map of mixture()")
    if mask is not None:
        masked = layer.scores(*projected[:2]) * mask
        require_close(layer.apply_scores(masked, projected[2]), attention @ projected[2], "apply_scores with score_mask()")


@named
def check_bias(case: AttentionCase) -> None:
    """`bias_map` is (H, P, P) or None, and has a name; `bias_rows` have the measures that `bias_measures` promises."""
    layer = case.build()
    bias = layer.bias_map()
    require((bias is None) == (layer.bias_name == ""), f"bias_name is {layer.bias_name!r}, but bias_map() is {type(bias)}")
    if bias is not None:
        require_kind(bias, (case.heads, case.grid.patches, case.grid.patches), torch.float64, "bias_map()")
    rows = layer.bias_rows()
    found, promised = {row["measure"] for row in rows}, set(layer.bias_measures)
    require(found == promised, f"bias_rows() has the measures {sorted(found)}, but bias_measures is {sorted(promised)}")
    heads = {row["head"] for row in rows}
    require(not rows or heads == set(range(case.heads)), f"bias_rows() has the heads {sorted(heads)} of {case.heads}")


@named
def check_resize(case: AttentionCase) -> None:
    """`resize_state` loads into the mechanism on a larger and on a smaller grid, with the options of `options_on`."""
    layer = case.build()
    for more in (1, -1):
        grid = Grid(case.grid.height + more, case.grid.width + more, case.grid.prefix)
        other = replace(case, grid=grid, options=case.mechanism.options_on(grid, case.options))
        resized = other.build(seed=3)
        with torch.no_grad():
            resized.load_state_dict(layer.resize_state(grid))
        require(bool(resized(other.tokens()).isfinite().all()), f"the output on {grid} is not finite")


@named
def check_conversion(case: AttentionCase) -> None:
    """The mechanism takes over the projections of full attention, and hands over its own."""
    source = Full(case.width, case.heads, case.grid).double()
    options = case.mechanism.options_to_replace(source, case.options)
    layer, given = replace(case, options=options).build(), source.projections()
    layer.take_projections(given)
    for name, tensor in layer.projections().items():
        require(name in given, f"projections() has {name}, which full attention has not")
        require_close(tensor, given[name], f"{name} after take_projections")


@named
def check_export(case: AttentionCase) -> None:
    """`torch.export` takes the layer with a batch of any size, and gives the same at another size."""
    layer, x = case.build(), case.tokens(5)
    program = torch.export.export(layer, (case.tokens(2),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    require_close(program.module()(x), layer(x), "the output of the exported program for a batch of 5")


@named
def check_compile(case: AttentionCase, backend: str = "aot_eager") -> None:
    """`torch.compile` takes the layer as one graph and gives the same output and gradients."""
    torch.compiler.reset()
    layer, x = case.build(), case.tokens()
    require_same(layer, x, torch.compile(layer, fullgraph=True, backend=backend)(x), layer(x))


def check_attention(case: AttentionCase, compile_backend: str = "aot_eager") -> list[str]:
    """Run every check, and return their names; `compile_backend="inductor"` is what users run, slowly."""
    for check in CHECKS:
        check(case, **({"backend": compile_backend} if check is check_compile else {}))
    return [check.__name__ for check in CHECKS]
