"""Dynamic loss scale."""
import torch


class LossScaler:
    """Grows each iteration and falls back when a gradient overflows."""

    def __init__(self, growth):
        self.growth = growth
        self.scale = 1.0

    @torch.no_grad()
    def unscale(self, params):
        """Divide the gradients by the scale; True when one of them is not finite."""
        found = False
        for param in params:
            if self.scale != 1.0:
                param.main_grad.div_(self.scale)
            found = found or not torch.isfinite(param.main_grad).all().item()
        return found

    def update(self, overflow):
        """After the step: back off on an overflow, grow otherwise."""
        if overflow:
            self.scale = 1.0
        elif self.growth:
            self.scale *= self.growth
