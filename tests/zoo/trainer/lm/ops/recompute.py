"""Activation recompute."""
from torch.utils.checkpoint import checkpoint


def recompute(function, *tensors):
    """Run `function` now, forget its activations, run it again in the backward."""
    return checkpoint(function, *tensors, use_reentrant=True, preserve_rng_state=True)
