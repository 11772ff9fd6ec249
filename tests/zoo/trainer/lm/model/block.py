"""One transformer layer."""
import torch
import torch.nn.functional as F
from torch import nn

from lm.model.attention import Attention
from lm.model.linear import RMSNorm
from lm.model.mlp import MLP
from lm.model.moe import MoE
from lm.ops.recompute import recompute
from lm.utils.timers import scoped


class Block(nn.Module):
    """Pre-norm attention, then pre-norm feed-forward."""

    def __init__(self, cfg, layer):
        super().__init__()
        self.input_norm = RMSNorm(cfg.hidden_size, eps=cfg.norm_eps)
        self.attention = Attention(cfg, layer)
        self.post_norm = RMSNorm(cfg.hidden_size, eps=cfg.norm_eps)
        self.is_moe = bool(cfg.moe.num_experts) and layer >= cfg.moe.first_layer
        self.mlp = MoE(cfg) if self.is_moe else MLP(cfg)
        self.skip_gain = cfg.skip_gain
        self.dropout = cfg.hidden_dropout
        self.use_recompute = cfg.recompute
        self.rope = None

    @scoped("block")
    def forward(self, hidden, skip, cos, sin, mask, real):
        if self.use_recompute and self.training:
            return recompute(self._layer, hidden, skip, cos, sin, mask, real)
        return self._layer(hidden, skip, cos, sin, mask, real)

    def _layer(self, hidden, skip, cos, sin, mask, real):
        if self.skip_gain:
            hidden = torch.add(hidden, skip, alpha=self.skip_gain)
        residual = hidden
        hidden = self.input_norm(hidden)
        hidden = self.attention(hidden, self.rope, cos, sin, mask)
        hidden = residual + self._drop(hidden)
        residual = hidden
        hidden = self.post_norm(hidden)
        hidden = self.mlp(hidden, real) if self.is_moe else self.mlp(hidden)
        return residual + self._drop(hidden)

    def _drop(self, x):
        return F.dropout(x, self.dropout, training=self.training)
