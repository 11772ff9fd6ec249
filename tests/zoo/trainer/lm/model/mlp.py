"""Gated feed-forward."""
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from lm.model.linear import Linear
from lm.ops import fused

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda x: torch.relu(x).square(),
}


class MLP(nn.Module):
    """w2(act(gate) * up), gate and up in one matrix."""

    def __init__(self, cfg):
        super().__init__()
        self.fused = cfg.activation == "swiglu"
        self.act = None if self.fused else ACTIVATIONS[cfg.activation]
        self.w1 = Linear(cfg.hidden_size, 2 * cfg.ffn_hidden_size)
        self.w2 = Linear(cfg.ffn_hidden_size, cfg.hidden_size)

    def forward(self, x):
        both = self.w1(x)
        if self.fused:
            return self.w2(fused.swiglu(both))
        gate, up = both.chunk(2, dim=-1)
        return self.w2(self.act(gate) * up)
