"""Loss functions; all return sums, the caller divides."""
import torch
import torch.nn.functional as F


def token_losses(logits, labels, smoothing=0.0, z_coeff=0.0):
    """Cross entropy of each position, with label smoothing and z-loss."""
    logits = logits.float()
    log_z = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    losses = log_z - picked
    if smoothing:
        uniform = log_z - logits.mean(dim=-1)
        losses = (1.0 - smoothing) * losses + smoothing * uniform
    if z_coeff:
        losses = losses + z_coeff * log_z ** 2
    return losses


def masked_sum(losses, mask):
    return (losses * mask).sum()


def second_head_loss(logits, batch):
    """The second head predicts one token further; mean over its own targets."""
    labels = batch["labels"].roll(-1, dims=1)
    mask = batch["loss_mask"].roll(-1, dims=1)
    mask[:, -1] = 0.0
    losses = token_losses(logits, labels)
    return masked_sum(losses, mask) / mask.sum().clamp(min=1.0)


def distillation(student, teacher, mask):
    """KL(teacher || student), summed over the positions of `mask`."""
    target = F.softmax(teacher.float(), dim=-1)
    divergence = F.kl_div(F.log_softmax(student.float(), dim=-1), target, reduction="none")
    return masked_sum(divergence.sum(-1), mask)
