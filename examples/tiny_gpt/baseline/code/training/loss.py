"""Reduction of the per-token losses."""

import torch


def masked_mean(losses, loss_mask):
    """Mean over the tokens that count; a micro-batch without any gives zero."""
    num_tokens = loss_mask.sum().clamp(min=1.0)
    return (losses.float() * loss_mask).sum() / num_tokens


def loss_func(loss_mask, mtp_loss_scaling_factor, output):
    """Return the loss to back-propagate and the values to log."""
    lm_losses, mtp_outputs = output
    lm_loss = masked_mean(lm_losses, loss_mask)
    report = {"lm loss": lm_loss.detach()}
    if not mtp_outputs:
        return lm_loss, report

    mtp_losses = [masked_mean(losses, mask) for losses, mask in mtp_outputs]
    for head, mtp_loss in enumerate(mtp_losses):
        report[f"mtp head {head} lm loss"] = mtp_loss.detach()
    total_loss = lm_loss + mtp_loss_scaling_factor * torch.stack(mtp_losses).mean()
    return total_loss, report
