"""AdamW with fp32 master weights."""
import torch


def build_groups(model, args):
    """Matrices decay, vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in trained if p.ndim >= 2]
    keep = [p for p in trained if p.ndim < 2]
    return [
        {"params": decay, "weight_decay": args.weight_decay, "lr": 0.0},
        {"params": keep, "weight_decay": 0.0, "lr": 0.0},
    ]


class AdamW:
    """Decoupled weight decay; reads `main_grad`, writes the parameter."""

    def __init__(self, groups, betas, eps):
        self.groups, self.betas, self.eps = groups, betas, eps
        self.steps = 0
        self.state = {}
        for param in self._params():
            master = param.detach().clone().float()
            self.state[param] = {
                "master": master,
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    def _params(self):
        for group in self.groups:
            yield from group["params"]

    def set_lr(self, lr):
        for group in self.groups:
            group["lr"] = lr

    @torch.no_grad()
    def step(self):
        """One update of every parameter."""
        self.steps += 1
        beta1, beta2 = self.betas
        correction1 = 1.0 - beta1 ** self.steps
        correction2 = 1.0 - beta2 ** self.steps
        for group in self.groups:
            for param in group["params"]:
                if getattr(param, "main_grad", None) is None:
                    continue
                self._update(param, group, correction1, correction2)

    def _update(self, param, group, correction1, correction2):
        beta1, beta2 = self.betas
        state, grad = self.state[param], param.main_grad
        master, exp_avg, exp_avg_sq = state["master"], state["exp_avg"], state["exp_avg_sq"]
        if group["weight_decay"]:
            master.mul_(1.0 - group["lr"] * group["weight_decay"])
        exp_avg.mul_(beta1).add_(grad, alpha=1.0 - beta1)
        exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
        denom = (exp_avg_sq / correction2).sqrt_().add_(self.eps)
        master.addcdiv_(exp_avg, denom, value=-group["lr"] / correction1)
        param.copy_(master)

    def state_dict(self):
        """Steps and state in the order of the parameters."""
        return {
            "steps": self.steps,
            "state": [self.state[param] for param in self._params()],
        }

    def load_state_dict(self, saved):
        """Counterpart of `state_dict`."""
        self.steps = saved["steps"]
        for param, state in zip(self._params(), saved["state"]):
            for name, value in state.items():
                self.state[param][name].copy_(value)
