"""Rotary position embedding."""
import torch
from torch import nn

from lm.ops import fused


def rotate_half(x):
    """(a, b) -> (-b, a) on the two halves."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def rotate_pairs(x):
    """(a, b) -> (-b, a) on neighbours."""
    pairs = x.unflatten(-1, (-1, 2))
    return torch.stack((-pairs[..., 1], pairs[..., 0]), dim=-1).flatten(-2)


class Rope(nn.Module):
    """Angles by position; the frequencies are no part of a checkpoint."""

    def __init__(self, head_dim, rope):
        super().__init__()
        self.rotary_dim = int(head_dim * rope.fraction)
        self.theta, self.scale = rope.theta, rope.scale
        self.interleaved = rope.interleaved
        self.rotate = rotate_pairs if rope.interleaved else rotate_half
        self.register_buffer("inv_freq", self._frequencies(), persistent=False)

    def _frequencies(self):
        exponent = torch.arange(0, self.rotary_dim, 2, dtype=torch.float32) / self.rotary_dim
        inverse = 1.0 / (self.theta ** exponent)
        if self.scale is not None:
            inverse = inverse * self.scale
        return inverse

    def reset_buffers(self):
        """After the module was built without memory."""
        self.inv_freq.copy_(self._frequencies())

    @torch.no_grad()
    def forward(self, position_ids):
        angles = position_ids[:, None, :, None].float() * self.inv_freq
        if self.interleaved:
            angles = angles.repeat_interleave(2, dim=-1)
        else:
            angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()


def apply_rope(x, cos, sin, rope):
    """Rotate the leading `rotary_dim` channels, pass the others on."""
    size = rope.rotary_dim
    if size == x.shape[-1]:
        return fused.rotary(x, cos.to(x.dtype), sin.to(x.dtype), rope.rotate)
    turned, rest = x[..., :size], x[..., size:]
    turned = fused.rotary(turned, cos.to(x.dtype), sin.to(x.dtype), rope.rotate)
    return torch.cat((turned, rest), dim=-1)
