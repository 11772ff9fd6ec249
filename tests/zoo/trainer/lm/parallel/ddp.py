"""Data parallelism by hand: flat fp32 gradients and one reduction per step."""
import torch
import torch.distributed as dist


def broadcast_parameters(model, group=None):
    """All ranks start from rank 0's weights and buffers."""
    if not dist.is_initialized():
        return
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, src=0, group=group)


def reduce_scalar(value, args):
    """Sum over the ranks."""
    total = torch.as_tensor(value, dtype=torch.float32).clone()
    if args.world_size > 1:
        dist.all_reduce(total)
    return total


class GradientBuffer:
    """`main_grad` of each parameter is a view into one flat tensor."""

    def __init__(self, model, args):
        self.model = model
        self.world_size = args.world_size
        self.params = list(model.parameters())
        ordinary = [p for p in self.params if not getattr(p, "sequence_parallel", False)]
        self.flat = torch.zeros(sum(p.numel() for p in ordinary))
        offset = 0
        for param in ordinary:
            end = offset + param.numel()
            param.main_grad = self.flat[offset:end].view_as(param)
            offset = end
        self.tagged = [p for p in self.params if getattr(p, "sequence_parallel", False)]
        for param in self.tagged:
            param.main_grad = torch.zeros_like(param, dtype=torch.float32)

    def zero(self):
        """Before the first micro-batch of a step."""
        self.flat.zero_()
        for param in self.tagged:
            param.main_grad.zero_()

    @torch.no_grad()
    def accumulate(self):
        """After each micro-batch: add the fresh gradients and drop them."""
        for param in self.params:
            if param.grad is None:
                continue
            param.main_grad.add_(param.grad)
            param.grad = None

    @torch.no_grad()
    def reduce(self):
        """After the last micro-batch: sum over the ranks, divide by their number."""
        if self.world_size == 1:
            return
        dist.all_reduce(self.flat)
        self.flat.div_(self.world_size)
        for param in self.params:
            if getattr(param, "sequence_parallel", False):
                dist.all_reduce(param.main_grad)
                param.main_grad.div_(self.world_size)

    @torch.no_grad()
    def share_embedding(self):
        """A replica of the embedding at the head gets the sum of both gradients, and so does the embedding."""
        head = self.model.head
        if getattr(head, "duplicate", False):
            both = self.model.embedding.weight.main_grad + head.main_grad
            self.model.embedding.weight.main_grad.copy_(both)
            head.main_grad.copy_(both)
