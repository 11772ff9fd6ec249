"""The pieces of one training step."""
import torch

from lm import losses
from lm.model import build_model
from lm.model.moe import AuxLossScaler
from lm.optim import EMA, AdamW, WarmupCosine, build_groups
from lm.parallel.ddp import GradientBuffer, broadcast_parameters, reduce_scalar


def setup(cfg, args):
    """Model, gradient buffer, optimizer, schedule, teacher."""
    model = build_model(cfg, args)
    broadcast_parameters(model)
    buffer = GradientBuffer(model, args)
    optimizer = build_optimizer(model, args)
    scheduler = WarmupCosine(optimizer, args)
    ema = EMA(model, args.ema_decay) if args.distill_start else None
    return model, buffer, optimizer, scheduler, ema


def build_optimizer(model, args):
    """AdamW over the parameter groups."""
    groups = build_groups(model, args)
    return AdamW(groups, betas=(args.adam_beta1, args.adam_beta2), eps=args.adam_eps)


def count_targets(window, args):
    """Targets in all micro-batches of the step, on all ranks."""
    local = sum(batch["loss_mask"].sum() for batch in window)
    return reduce_scalar(local, args)


def forward_step(model, batch, targets, cfg, args, teacher=None):
    """Loss of one micro-batch as it is back-propagated, and what is reported of it."""
    logits, second = model(**batch)
    per_token = losses.token_losses(logits, batch["labels"], args.label_smoothing, args.z_loss)
    total = losses.masked_sum(per_token, batch["loss_mask"])
    if teacher is not None:
        total = total + 0.5 * losses.distillation(logits, teacher(batch), batch["loss_mask"])
    loss = total / targets * args.world_size
    report = {"lm loss": total.detach() / targets}
    if second is not None:
        extra = losses.second_head_loss(second, batch) / args.grad_accum
        loss = loss + cfg.mtp_weight * extra
        report["mtp_1 loss"] = extra.detach() / args.world_size
    for aux in model.aux_losses():
        report["load_balancing_loss"] = aux / (args.grad_accum * args.world_size)
    return loss, report


def backward_step(loss, scaler, args):
    """The auxiliary losses enter here too, averaged over the micro-batches."""
    AuxLossScaler.scale = scaler.scale / args.grad_accum
    (loss * scaler.scale).backward()


def merge_reports(reports, args):
    """Sum over micro-batches and ranks."""
    merged = {}
    for key in reports[0]:
        merged[key] = reduce_scalar(sum(report[key] for report in reports), args).item()
    return merged


@torch.no_grad()
def evaluate(model, stream, args, batches=2):
    """Mean loss over a few micro-batches of another corpus."""
    model.eval()
    total = count = 0.0
    for _ in range(batches):
        batch = next(stream)
        logits, _ = model(**batch)
        mask = batch["loss_mask"]
        total += losses.masked_sum(losses.token_losses(logits, batch["labels"]), mask)
        count += mask.sum()
    model.train()
    return (reduce_scalar(total, args) / reduce_scalar(count, args)).item()
