"""Linear layers and norms, thin modules over the fused operations."""
import torch
from torch import nn

from lm.ops import fused


class RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, size, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.weight.sequence_parallel = True
        self.eps = eps

    def forward(self, x):
        return fused.rms_norm(x, self.weight, self.eps)


class Linear(nn.Module):
    """A weight, perhaps a bias, perhaps a low-rank adapter beside it."""

    def __init__(self, size_in, size_out, bias=False, lora_rank=0, lora_alpha=8.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size_out, size_in))
        self.bias = nn.Parameter(torch.empty(size_out)) if bias else None
        self.lora_rank = lora_rank
        if lora_rank:
            self.lora_a = nn.Parameter(torch.empty(lora_rank, size_in))
            self.lora_b = nn.Parameter(torch.empty(size_out, lora_rank))
            self.lora_scale = lora_alpha / lora_rank

    def forward(self, x):
        out = fused.linear(x, self.weight, self.bias)
        if self.lora_rank:
            low = fused.linear(x, self.lora_a)
            out = out + fused.linear(low, self.lora_b) * self.lora_scale
        return out
