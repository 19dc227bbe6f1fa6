"""The checker checked: every check lets an intact mechanism pass and catches the broken ones made for it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

from softbias.attention import Attention, Full, Gated, Masked, contract
from softbias.attention.base import Mixture
from softbias.attention.contract import CHECKS, AttentionCase
from softbias.grid import Grid

BROKEN: list[tuple[str, str, type[Attention], dict[str, str]]] = []


def caught_by(check: str, telling: str, **options: str):
    """The check of this name must refuse the mechanism below it, with a message that says so."""

    def remember(mechanism: type[Attention]) -> type[Attention]:
        BROKEN.append((check, telling, mechanism, options))
        return mechanism

    return remember


@caught_by("check_forward_equals_definition", r"the output is off by 0\.\d+ ")
class ForgetsTheScale(Full):
    def forward(self, x):
        return self.merge(scaled_dot_product_attention(*self.project(x), scale=1.0))


@caught_by("check_forward_equals_definition", "the gradient with respect to proj.bias is off by")
class DetachesAParameter(Full):
    def forward(self, x):
        seen = scaled_dot_product_attention(*self.project(x))
        return linear(seen.transpose(1, 2).flatten(2), self.proj.weight, self.proj.bias.detach())


@caught_by("check_forward_equals_definition", "the gradient with respect to the input is off by")
class DetachesTheInput(Full):
    def forward(self, x):
        q, k, v = self.project(x)
        return self.merge(scaled_dot_product_attention(q.detach(), k, v))


@caught_by("check_forward_equals_definition", r"the output is off by \d\.?\d*e-0[678]")
class RoundsToFloat32Inside(Full):
    def forward(self, x):
        return super().forward(x.float().double())


@caught_by("check_forward_equals_definition", "the output is off by")
class OverridesTheDefinitionAsWell(Full):
    def forward(self, x):
        return self.by_definition(x)

    def by_definition(self, x):
        return self.merge(self.values(x))


@caught_by("check_forward_equals_definition", "NoAttentionMapError")
class MixerWithAnEmptyMap(Full):
    has_map = False
    rows_sum_to_one = False

    def attention_map(self, x):
        return x.new_empty(0)


@caught_by("check_shapes_and_dtypes", r"the map has shape \(0,\) instead of \(1, 4, 15, 15\)")
class EmptyMap(Full):
    def attention_map(self, x):
        return x.new_empty(0)


@caught_by("check_shapes_and_dtypes", "the output is torch.float32 instead of torch.float64")
class AnswersInFloat32(Full):
    def forward(self, x):
        return super().forward(x).float()


@caught_by("check_shapes_and_dtypes", r"instead of \(1, 15, 16\)")
class SqueezesABatchOfOne(Full):
    def forward(self, x):
        return super().forward(x).squeeze(0)


@caught_by("check_shapes_and_dtypes", "view size is not compatible")
class ViewsTheInput(Full):
    def forward(self, x):
        return super().forward(x.view(-1, self.width).view(x.shape))


@caught_by("check_shapes_and_dtypes", "the output for a non-contiguous input is off by")
class ReadsTheMemory(Full):
    def forward(self, x):
        return super().forward(x.as_strided(x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)))


@caught_by("check_rows_sum_to_one", "rows_sum_to_one is True, but")
class ForgetsToNormalize(Full):
    def attention_map(self, x):
        q, k, _ = self.project(x)
        return self.scores(q, k).exp()


@caught_by("check_rows_sum_to_one", r"the least entry is -0\.\d")
class HasNegativeEntries(Full):
    def attention_map(self, x):
        return 2 * super().attention_map(x) - 1 / len(self.grid)


@caught_by("check_rows_sum_to_one", "rows_sum_to_one is False, but rows sum to one")
class IsTooModest(Full):
    rows_sum_to_one = False


@caught_by("check_rows_sum_to_one", "there are no rows")
class MixerThatClaimsRows(Full):
    has_map = False


@caught_by("check_autocast", "the output is off by")
class CancelsInHalfPrecision(Full):
    def forward(self, x):
        v = self.values(x)
        return self.merge(self.attention_map(x) @ (v + 1000 - 1000))


@caught_by("check_autocast", "entries of the gradient with respect to mask_a are not finite", norm="softmax")
class RoundsTheFloorAway(Masked):
    def log_mask(self):
        mask = self.mask()
        return (mask + (mask.clamp_min(1e-4) - mask).detach()).log()  # in bfloat16 the sum may be zero


@caught_by("check_compile", "Unsupported|data-dependent|Data-dependent")
class BranchesOnData(Full):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else x + 0)


@caught_by("check_compile", "the output is off by")
class DiffersWhenCompiled(Full):
    def forward(self, x):
        return super().forward(2 * x if torch.compiler.is_compiling() else x)


@caught_by("check_export", "batch|dim|size")
class KnowsTheBatchSize(Full):
    def forward(self, x):
        return super().forward(x) + torch.zeros(2, 1, 1, dtype=x.dtype)


@caught_by("check_export", "specialized|constant|Constraints")
class LoopsOverTheBatch(Full):
    def forward(self, x):
        return torch.cat([super(LoopsOverTheBatch, self).forward(x[i : i + 1]) for i in range(len(x))])


@caught_by("check_state_dict", "the output after a round trip through state_dict is off by")
class KeepsStateOutsideTheStateDict(Full):
    def __init__(self, width, heads, grid):
        super().__init__(width, heads, grid)
        self.shift = torch.randn(width)

    def forward(self, x):
        return super().forward(x) + self.shift


@caught_by("check_state_dict", "Missing key.*gain")
class MakesAParameterLazily(Full):
    def forward(self, x):
        if not hasattr(self, "gain"):
            self.gain = nn.Parameter(torch.ones((), dtype=x.dtype))
        return super().forward(x) * self.gain


@caught_by("check_state_dict", "the output after a round trip through state_dict is off by")
class KeepsAStaleCache(Full):
    cache = None

    def forward(self, x):
        if self.cache is None:
            self.cache = self.proj.weight.detach().clone()
        return linear(super().forward(x), self.cache)


@caught_by("check_state_dict", "the output of a layer built on the meta device and loaded is off by nan")
class ForgetsToRefillItsBuffers(Full):
    def __init__(self, width, heads, grid):
        super().__init__(width, heads, grid)
        self.register_buffer("ramp", torch.linspace(0, 1, width), persistent=False)

    def forward(self, x):
        return super().forward(x) + self.ramp


@caught_by("check_errors", r"input \(2, 16, 16\) raised no ValueError")
class TakesAnyInput(Full):
    def check_input(self, x):
        pass


@caught_by("check_errors", r"the message for input \(2, 16, 16\) lacks \[2, 15, 16\]: bad input")
class SaysNothing(Full):
    def check_input(self, x):
        if x.shape[1:] != (len(self.grid), self.width):
            raise ValueError("bad input")


@caught_by("check_errors", r"the message for input \(2, 16, 16\) lacks \[15\]")
class DoesNotSayWhatIsAllowed(Full):
    def check_input(self, x):
        if x.shape[1:] != (len(self.grid), self.width):
            raise ValueError(f"bad input of shape {tuple(x.shape)}")


@caught_by("check_errors", "IndexError")
class ChecksByAccident(Full):
    def check_input(self, x):
        if x.ndim != 3:
            raise IndexError("no such dimension")
        super().check_input(x)


@caught_by("check_errors", "width 17 raised no ValueError")
class RoundsTheWidth(Full):
    def __init__(self, width, heads, grid):
        super().__init__(width - width % heads, heads, grid)


@caught_by("check_errors", r"input \(2, 16, 16\) raised no ValueError")
class ChecksItsFastPathOnly(Full):
    def attention_map(self, x):
        return x.new_full((len(x), self.heads, x.shape[1], x.shape[1]), 1 / x.shape[1])


@caught_by("check_batch_independence", "the output for image 0 of 3, compared with it alone, is off by")
class LeaksAcrossTheBatch(Full):
    def project(self, x):
        return super().project(x - x.mean(0))


@caught_by("check_batch_independence", "the output for image 1 of 3, compared with it alone, is off by")
class SeesTheImageBefore(Full):
    def forward(self, x):
        return super().forward(torch.cat([x[:1], x[1:] + 1e-6 * x[:-1]]))


@caught_by("check_other_forms", r"attend\(\*project\(x\)\) is off by")
class AttendsByAnotherScale(Full):
    def attend(self, q, k, v):
        return scaled_dot_product_attention(q, k, v, scale=1.0)


@caught_by("check_other_forms", r"the map of mixture\(\) is off by")
class ClaimsToBeContentAlone(Gated):
    def mixture(self):
        return Mixture()


@caught_by("check_other_forms", r"apply_scores with score_mask\(\) is off by")
class ClaimsAMaskOfOnes(Masked):
    def score_mask(self):
        return torch.ones(self.heads, len(self.grid), len(self.grid))


@caught_by("check_bias", "bias_name is 'learned mask', but")
class HidesItsMask(Masked):
    def bias_map(self):
        return None


@caught_by("check_bias", r"bias_map\(\) has shape")
class DrawsOneHead(Gated):
    def bias_map(self):
        return super().bias_map()[:1]


@caught_by("check_bias", r"bias_rows\(\) has the measures .*'gate'")
class ForgetsToPromiseItsGates(Gated):
    bias_measures = ("strength", "center_row", "center_column", "width")


@caught_by("check_bias", r"bias_rows\(\) has the heads \[0\] of 4")
class TellsOfOneHead(Gated):
    def bias_rows(self):
        return [row for row in super().bias_rows() if row["head"] == 0]


@caught_by("check_resize", "size mismatch")
class KeepsItsMaskOnAnotherGrid(Masked):
    def resize_state(self, grid):
        return self.state_dict()


@caught_by("check_conversion", "q.weight after take_projections is off by")
class KeepsItsOwnQueries(Full):
    def take_projections(self, given):
        super().take_projections(given | {"q.weight": self.projections()["q.weight"]})


@pytest.mark.parametrize(
    ("check", "telling", "mechanism", "options"), BROKEN, ids=[f"{row[0]}-{row[2].__name__}" for row in BROKEN]
)
def test_the_check_catches_the_broken_mechanism(check, telling, mechanism, options):
    with pytest.raises(AssertionError, match=f"^{mechanism.__name__}.* fails {check}: (?s:.*)({telling})"):
        getattr(contract, check)(AttentionCase(mechanism, 16, 4, Grid(3, 5), options))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_check_lets_the_intact_mechanism_pass_and_has_a_broken_one(check):
    check(AttentionCase(Full, 16, 4, Grid(3, 5)))
    assert any(name == check.__name__ for name, *_ in BROKEN)


def test_check_attention_refuses_a_mechanism_that_fails_one_check():
    with pytest.raises(AssertionError, match=r"LeaksAcrossTheBatch.*check_batch_independence"):
        contract.check_attention(AttentionCase(LeaksAcrossTheBatch, 16, 4, Grid(3, 5)))
