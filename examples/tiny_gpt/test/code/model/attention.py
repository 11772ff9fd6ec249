"""Grouped-query self attention."""

import math

import torch

from model.norm import RMSNorm
from model.rotary_pos_embedding import apply_rotary_pos_emb


class CoreAttention(torch.nn.Module):
    """Scaled dot product attention with a causal mask, softmax in fp32."""

    def __init__(self, head_dim):
        super().__init__()
        self.softmax_scale = 1.0 / math.sqrt(head_dim)

    def forward(self, query, key, value, attention_mask):
        """Attend; `attention_mask` is True where a key must not be seen."""
        scores = torch.matmul(query, key.transpose(-1, -2)) * self.softmax_scale
        scores = scores.masked_fill(attention_mask, torch.finfo(scores.dtype).min)
        probs = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
        return torch.matmul(probs, value)


class SelfAttention(torch.nn.Module):
    """Fused qkv projection, qk layernorm, rope, core attention and output projection."""

    def __init__(self, config):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.num_groups = config.num_query_groups
        self.head_dim = config.hidden_size // config.num_attention_heads
        qkv_size = (self.num_heads + 2 * self.num_groups) * self.head_dim
        self.linear_qkv = torch.nn.Linear(config.hidden_size, qkv_size, bias=False)
        self.linear_proj = torch.nn.Linear(self.num_heads * self.head_dim, config.hidden_size, bias=False)
        self.q_layernorm = RMSNorm(self.head_dim, config.norm_epsilon)
        self.k_layernorm = RMSNorm(self.head_dim, config.norm_epsilon)
        self.core_attention = CoreAttention(self.head_dim)

    def _get_query_key_value(self, hidden_states):
        """Project and split into [batch, heads, seq, head_dim]."""
        batch, seq, _ = hidden_states.size()
        mixed = self.linear_qkv(hidden_states).view(batch, seq, -1, self.head_dim).transpose(1, 2)
        query, key, value = torch.split(mixed, [self.num_heads, self.num_groups, self.num_groups], dim=1)
        return self.q_layernorm(query), self.k_layernorm(key), value

    def _expand_groups(self, states):
        """Repeat key or value heads so that every query head of a group has its own."""
        return states.repeat_interleave(self.num_heads // self.num_groups, dim=1)

    def forward(self, hidden_states, attention_mask, rotary_pos_emb):
        """Mix the positions of `hidden_states`."""
        query, key, value = self._get_query_key_value(hidden_states)
        cos, sin = rotary_pos_emb
        query = apply_rotary_pos_emb(query, cos, sin)
        key = apply_rotary_pos_emb(key, cos, sin)

        context = self.core_attention(query, self._expand_groups(key), self._expand_groups(value), attention_mask)
        context = context.transpose(1, 2).reshape(hidden_states.size(0), hidden_states.size(1), -1)
        return self.linear_proj(context)
