"""Learning rate schedule."""

import math


class OptimizerParamScheduler:
    """Linear warm-up, then cosine decay to `min_lr`."""

    def __init__(self, optimizer, args):
        self.optimizer = optimizer
        self.max_lr = args.lr
        self.min_lr = args.min_lr
        self.warmup_iters = args.lr_warmup_iters
        self.decay_iters = args.train_iters
        self.num_steps = 0
        self.step()

    def get_lr(self):
        """Learning rate of the iteration `num_steps`, counted from one."""
        if self.num_steps <= self.warmup_iters:
            return self.max_lr * self.num_steps / self.warmup_iters
        if self.num_steps >= self.decay_iters:
            return self.min_lr
        progress = (self.num_steps - self.warmup_iters) / (self.decay_iters - self.warmup_iters)
        coeff = 0.5 * (math.cos(math.pi * progress) + 1.0)
        return self.min_lr + coeff * (self.max_lr - self.min_lr)

    def step(self):
        """Go to the next iteration."""
        self.num_steps += 1
        lr = self.get_lr()
        for group in self.optimizer.param_groups:
            group["lr"] = lr
