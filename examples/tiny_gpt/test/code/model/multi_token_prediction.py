"""Multi-token prediction: every extra head predicts one token further ahead."""

import torch

from model.norm import RMSNorm
from model.transformer import TransformerLayer


def roll_tensor(tensor, shift=-1):
    """Shift [batch, seq] to the left and clear the place that has no successor.

    Used for tokens, labels and loss mask, so that all three stay aligned.
    """
    rolled = torch.roll(tensor, shifts=shift, dims=-1)
    rolled[:, shift:] = 0
    return rolled


class MultiTokenPredictionLayer(torch.nn.Module):
    """Joins the previous hidden states with the embedding of the next token."""

    def __init__(self, config):
        super().__init__()
        self.enorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.hnorm = RMSNorm(config.hidden_size, config.norm_epsilon)
        self.eh_proj = torch.nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.transformer_layer = TransformerLayer(config)
        self.final_layernorm = RMSNorm(config.hidden_size, config.norm_epsilon)

    def forward(self, hidden_states, decoder_input, attention_mask, rotary_pos_emb):
        """Return the head's hidden states, before its final norm."""
        joined = torch.cat((self.enorm(decoder_input), self.hnorm(hidden_states)), dim=-1)
        return self.transformer_layer(self.eh_proj(joined), attention_mask, rotary_pos_emb)
