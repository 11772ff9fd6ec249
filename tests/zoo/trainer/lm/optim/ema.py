"""Moving average of the weights, a teacher later in the run."""
import copy

import torch


class EMA:
    """A frozen copy of the model that follows it."""

    def __init__(self, model, decay):
        self.model = copy.deepcopy(model).eval()
        self.model.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, source):
        """After each step."""
        for mine, theirs in zip(self.model.parameters(), source.parameters()):
            mine.mul_(self.decay).add_(theirs, alpha=1.0 - self.decay)

    @torch.no_grad()
    def __call__(self, batch):
        return self.model(**batch)[0]
