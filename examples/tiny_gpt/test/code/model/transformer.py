"""Transformer layer and the stack of layers."""

import torch

from model.attention import SelfAttention
from model.mlp import SwiGLUMLP
from model.norm import RMSNorm


class TransformerLayer(torch.nn.Module):
    """Pre-norm layer: attention and feed-forward, each with a residual connection."""

    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.self_attention = SelfAttention(config)
        self.pre_mlp_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.mlp = SwiGLUMLP(config)

    def forward(self, hidden_states, attention_mask, rotary_pos_emb):
        """Run the layer."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states = residual + self.self_attention(hidden_states, attention_mask, rotary_pos_emb)

        residual = hidden_states
        hidden_states = self.pre_mlp_layernorm(hidden_states)
        return residual + self.mlp(hidden_states)


class TransformerBlock(torch.nn.Module):
    """All layers; the final norm belongs to the model, because the MTP head takes the states before it."""

    def __init__(self, config):
        super().__init__()
        self.layers = torch.nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))

    def forward(self, hidden_states, attention_mask, rotary_pos_emb):
        """Run the layers one after the other."""
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, rotary_pos_emb)
        return hidden_states
