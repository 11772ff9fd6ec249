"""Grouped-query self-attention with window, soft cap and dropout."""
import torch
import torch.nn.functional as F
from torch import nn

from lm.model.linear import Linear
from lm.model.rope import apply_rope
from lm.ops import kernels
from lm.ops.flash import block_attention


class Attention(nn.Module):
    """Odd layers look at a window only, even layers at everything before. The block kernel has no soft cap."""

    def __init__(self, cfg, layer):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = cfg.num_heads, cfg.num_kv_heads, cfg.head_dim
        self.scale = self.head_dim ** -0.5
        self.windowed = bool(cfg.window) and layer % 2 == 1
        self.softcap = cfg.attention_softcap
        self.dropout = cfg.attention_dropout
        self.block = cfg.attention_block
        self.kv_size = self.kv_heads * self.head_dim
        self.qkv = Linear(cfg.hidden_size, cfg.hidden_size + 2 * self.kv_size, bias=True,
                          lora_rank=cfg.lora_rank, lora_alpha=cfg.lora_alpha)
        self.proj = Linear(cfg.hidden_size, cfg.hidden_size)

    def forward(self, x, rope, cos, sin, mask):
        q, k, v = self._split(self.qkv(x))
        q, k = apply_rope(q, cos, sin, rope), apply_rope(k, cos, sin, rope)
        k, v = self._expand(k), self._expand(v)
        if self.block:
            context = block_attention(q, k, v, mask, self.scale, self.block)
        else:
            context = self._dense(q, k, v, mask)
        return self.proj(self._merge(context))

    def _split(self, qkv):
        q, k, v = qkv.split([self.heads * self.head_dim, self.kv_size, self.kv_size], dim=-1)
        return self._heads(q, self.heads), self._heads(k, self.kv_heads), self._heads(v, self.kv_heads)

    def _heads(self, x, count):
        return x.view(*x.shape[:2], count, self.head_dim).transpose(1, 2)

    def _expand(self, x):
        """One key head serves several query heads, which are neighbours."""
        return x.repeat_interleave(self.heads // self.kv_heads, dim=1)

    def _merge(self, x):
        return (
            x.transpose(1, 2)
            .contiguous()
            .flatten(2)
        )

    def _dense(self, q, k, v, mask):
        scores = kernels.matmul(q, k.transpose(-2, -1)) * self.scale
        if self.windowed:
            scores = self._window_scores(scores)
        elif self.softcap:
            scores = self.softcap * torch.tanh(scores / self.softcap)
        scores = scores.masked_fill(~mask, float("-inf"))
        probs = kernels.softmax(scores).to(v.dtype)
        probs = F.dropout(probs, self.dropout, self.training)
        return kernels.matmul(probs, v)

    def _window_scores(self, scores):
        """The windowed branch has its own kernel elsewhere; here only its cap."""
        if not self.softcap:
            return scores
        capped = torch.tanh(scores.div(self.softcap))
        return capped.mul(self.softcap)
