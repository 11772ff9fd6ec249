"""The whole model: embedding, layers, head, and a second head for the token after next."""
import torch
import torch.nn.functional as F
from torch import nn

from lm.model.block import Block
from lm.model.linear import Linear, RMSNorm
from lm.model.mask import build_mask
from lm.model.rope import Rope
from lm.ops import fused

GRAD_SHRINK = 0.25


class Embedding(nn.Module):
    """Token embedding; only a part of its gradient is let through."""

    def __init__(self, cfg):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cfg.vocab_size, cfg.hidden_size))

    def forward(self, ids):
        rows = F.embedding(ids, self.weight)
        return rows * GRAD_SHRINK + rows.detach() * (1 - GRAD_SHRINK)


class GPT(nn.Module):
    """Decoder-only language model."""

    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embedding = Embedding(cfg)
        self.rope = Rope(cfg.head_dim, cfg.rope)
        self.blocks = nn.ModuleList(Block(cfg, layer) for layer in range(cfg.num_layers))
        self.final_norm = RMSNorm(cfg.hidden_size, eps=cfg.norm_eps)
        if cfg.head == "replica":
            self.head = nn.Parameter(torch.empty(cfg.vocab_size, cfg.hidden_size))
            self.head.duplicate = True
        else:
            self.head = self.embedding.weight
        if cfg.mtp_weight:
            self.mtp_norm = RMSNorm(cfg.hidden_size, eps=cfg.norm_eps)
            self.mtp_proj = Linear(cfg.hidden_size, cfg.hidden_size)

    def forward(self, input_ids, position_ids, doc_ids, **unused):
        """Logits of the main head, and of the second one or None."""
        hidden = self.embedding(input_ids)
        skip = hidden.clone()
        hidden.mul_(self.cfg.embedding_multiplier)
        cos, sin = self.rope(position_ids)
        masks = build_mask(doc_ids), build_mask(doc_ids, self.cfg.window)
        real = doc_ids >= 0
        for block in self.blocks:
            block.rope = self.rope
            mask = masks[1] if block.attention.windowed else masks[0]
            hidden = block(hidden, skip, cos, sin, mask, real)
        hidden = self.final_norm(hidden)
        return self._logits(hidden), self._second(hidden)

    def _logits(self, hidden):
        logits = fused.linear(hidden, self.head)
        if (cap := self.cfg.logit_softcap) > 0:
            logits = torch.tanh(logits / cap) * cap
        return logits

    def _second(self, hidden):
        if not self.cfg.mtp_weight:
            return None
        return self._logits(self.mtp_norm(hidden + F.silu(self.mtp_proj(hidden))))

    def aux_losses(self):
        """The balance losses of the last forward."""
        return [block.mlp.last_aux for block in self.blocks if block.is_moe]
