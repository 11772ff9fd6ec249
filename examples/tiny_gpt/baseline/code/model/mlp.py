"""Feed-forward layer."""

import torch
import torch.nn.functional as F


class SwiGLUMLP(torch.nn.Module):
    """Gated feed-forward layer; gate and up projection share one weight."""

    def __init__(self, config):
        super().__init__()
        self.linear_fc1 = torch.nn.Linear(config.hidden_size, 2 * config.ffn_hidden_size, bias=False)
        self.linear_fc2 = torch.nn.Linear(config.ffn_hidden_size, config.hidden_size, bias=False)

    def forward(self, hidden_states):
        """Transform every position on its own."""
        gate, up = torch.chunk(self.linear_fc1(hidden_states), 2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up)
