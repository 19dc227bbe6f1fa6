"""The cost of a model: its parameters, and its multiply-accumulates for one image."""

from __future__ import annotations

import torch
from torch import nn

# Of the presets with their default options: (parameters, multiply-accumulates). Counting them takes ten seconds, and
# `softbias models` shall answer at once; a test counts them again.
COSTS = {
    "arvit_base": (140_510_380, 2_684_190_720),
    "arvit_nano": (128_458, 7_577_600),
    "arvit_style": (139_359_720, 2_647_654_400),
    "arvit_vit_tiny": (20_258_644, 5_437_742_160),
    "convit_base": (86_540_040, 17_529_160_704),
    "convit_base_plus": (153_134_856, 30_777_257_984),
    "convit_nano": (207_302, 15_139_584),
    "convit_small": (27_777_322, 5_759_899_200),
    "convit_small_plus": (48_979_882, 10_022_867_712),
    "convit_tiny": (5_710_512, 1_258_287_360),
    "convit_tiny_plus": (9_972_912, 2_140_531_712),
    "deit_base": (86_567_656, 17_563_828_224),
    "deit_nano": (208_074, 15_139_968),
    "deit_small": (22_050_664, 4_598_882_304),
    "deit_tiny": (5_717_416, 1_253_683_200),
    "dwconv_dynamic_tiny": (10_433_128, 923_791_872),
    "dwconv_nano": (183_370, 11_485_824),
    "dwconv_tiny": (4_905_256, 918_262_272),
    "dwnet_base": (74_347_112, 12_812_261_376),
    "dwnet_dynamic_base": (161_597_928, 12_899_506_176),
    "dwnet_dynamic_tiny": (51_131_752, 3_753_819_648),
    "dwnet_nano": (160_378, 532_320),
    "dwnet_tiny": (24_172_744, 3_726_862_848),
    "ibit_base": (87_078_280, 17_614_124_688),
    "ibit_nano": (226_794, 15_748_368),
    "ibit_small": (22_305_976, 4_624_030_536),
    "ibit_tiny": (5_845_072, 1_266_257_316),
    "resnet50": (25_557_032, 4_089_184_256),
    "resnet_nano": (232_682, 24_265_664),
    "soft_nano": (170_762, 4_737_664),
    "soft_small": (12_656_484, 2_068_294_464),
    "soft_tiny": (3_839_602, 266_356_608),
    "vit_base": (86_567_656, 17_563_828_224),
    "window_nano": (207_946, 13_632_128),
    "window_small": (22_049_896, 4_363_814_400),
    "window_tiny": (5_717_032, 1_141_457_664),
}


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def count_macs(model: nn.Module, channels: int, height: int, width: int) -> int:
    """Multiply-accumulates of matrix products and convolutions for one image; a model on "meta" is counted at once."""
    like = next(model.parameters())
    images = torch.empty(1, channels, height, width, device=like.device, dtype=like.dtype)
    from torch.utils.flop_counter import FlopCounterMode  # imports Triton

    training = model.training
    with FlopCounterMode(display=False) as counter:
        model.eval()(images)
    model.train(training)
    return int(counter.get_total_flops()) // 2
