"""Learning rate: linear warm-up, then half a cosine."""
import math


class WarmupCosine:
    """Holds the step count and writes the rate into the optimizer."""

    def __init__(self, optimizer, args):
        self.optimizer = optimizer
        self.max_lr, self.min_lr = args.lr, args.min_lr
        self.warmup, self.total = args.lr_warmup_iters, args.lr_decay_iters
        self.num_steps = 0
        self.apply()

    @property
    def lr(self):
        step = self.num_steps
        if step < self.warmup:
            return self.max_lr * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.total - self.warmup)
        progress = min(1.0, progress)
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_lr + (self.max_lr - self.min_lr) * shape

    def apply(self):
        self.optimizer.set_lr(self.lr)

    def step(self):
        """After an update of the weights."""
        self.num_steps += 1
        self.apply()
