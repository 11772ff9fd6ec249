"""Gradient norm and clipping."""

import torch


def get_grad_norm(parameters):
    """L2 norm over all gradients, accumulated in fp32."""
    squares = [parameter.grad.float().pow(2).sum() for parameter in parameters if parameter.grad is not None]
    return torch.stack(squares).sum().sqrt()


def clip_grad_by_total_norm(parameters, max_norm, total_norm):
    """Scale all gradients in place so that their norm is at most `max_norm`."""
    clip_coeff = max_norm / (total_norm + 1.0e-6)
    if clip_coeff < 1.0:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(clip_coeff)
