"""Normalisation layers."""

import torch


class RMSNorm(torch.nn.Module):
    """Root mean square normalisation, computed in fp32."""

    def __init__(self, hidden_size, eps):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))

    def forward(self, hidden_states):
        """Normalise the last dimension."""
        states = hidden_states.float()
        variance = states.pow(2).mean(-1, keepdim=True)
        states = states * torch.rsqrt(variance + self.eps)
        return (states * self.weight).to(hidden_states.dtype)
