"""AdamW with the usual parameter groups."""

import torch

from training.clip_grads import clip_grad_by_total_norm, get_grad_norm


def get_param_groups(model, weight_decay):
    """Norm weights and other vectors are not decayed."""
    decay, no_decay = [], []
    for parameter in model.parameters():
        (decay if parameter.dim() >= 2 else no_decay).append(parameter)
    return [
        {"params": decay, "weight_decay": weight_decay},
        {"params": no_decay, "weight_decay": 0.0},
    ]


class ClippedAdamW:
    """AdamW whose step measures and clips the gradients first."""

    def __init__(self, model, args):
        self.clip_grad = args.clip_grad
        self.optimizer = torch.optim.AdamW(
            get_param_groups(model, args.weight_decay),
            lr=args.lr,
            betas=(args.adam_beta1, args.adam_beta2),
            eps=args.adam_eps,
            foreach=False,
        )

    @property
    def param_groups(self):
        """The groups, for the learning rate scheduler."""
        return self.optimizer.param_groups

    def _parameters(self):
        """All parameters as a list: it is walked through twice."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def zero_grad(self):
        """Drop the gradients of the last iteration."""
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def step(self):
        """Clip and update; return the grad norm before clipping, and whether the update was done."""
        parameters = self._parameters()
        grad_norm = get_grad_norm(parameters)
        if not torch.isfinite(grad_norm):
            return grad_norm.item(), False
        if self.clip_grad > 0.0:
            clip_grad_by_total_norm(parameters, self.clip_grad, grad_norm)
        self.optimizer.step()
        return grad_norm.item(), True
