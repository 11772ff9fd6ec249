"""Rotary position embedding."""

import torch


class RotaryEmbedding(torch.nn.Module):
    """Cosine and sine of the rotation angles of every position."""

    def __init__(self, rotary_dim, rotary_base=10000.0):
        super().__init__()
        exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
        self.register_buffer("inv_freq", 1.0 / (rotary_base**exponents), persistent=False)

    def forward(self, position_ids):
        """Return cos and sin of shape [batch, 1, seq, rotary_dim]."""
        freqs = position_ids.unsqueeze(-1).to(self.inv_freq.dtype) * self.inv_freq
        emb = torch.cat((freqs, freqs), dim=-1)
        cos = emb.cos().unsqueeze(1)
        sin = emb.sin().unsqueeze(1)
        return cos, sin


def rotate_half(x):
    """Swap the two halves of the last dimension and negate the new first one."""
    x1, x2 = torch.chunk(x, 2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(t, cos, sin):
    """Rotate queries or keys of shape [batch, heads, seq, head_dim]."""
    return (t * cos) + (rotate_half(t) * sin)
