"""Gradient clipping by the global norm."""
import torch


def gradients(params, for_norm):
    """The gradients to scale, or those that count in the norm: a replica counts once."""
    found = []
    for param in params:
        if not param.requires_grad:
            continue
        if for_norm and getattr(param, "duplicate", False):
            continue
        found.append(param.main_grad)
    return found


def global_norm(grads):
    """2-norm over all tensors."""
    squares = torch.stack([grad.square().sum() for grad in grads])
    return squares.sum().sqrt()


@torch.no_grad()
def clip_gradients(params, max_norm):
    """Scale in place so that the norm is at most `max_norm`; returns the norm before."""
    params = list(params)
    norm = global_norm(gradients(params, for_norm=True))
    coefficient = max_norm / (norm + 1e-6)
    coefficient = torch.clamp(coefficient, max=1.0)
    for grad in gradients(params, for_norm=False):
        grad.mul_(coefficient)
    return norm
