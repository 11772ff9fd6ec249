"""The training loop."""

import time
from datetime import datetime

import torch

from training.lr_scheduler import OptimizerParamScheduler
from training.optimizer import ClippedAdamW
from training.precision_dump import PrecisionDump


def print_datetime(what):
    """Print a time stamp."""
    print(f"[{what}] datetime: {datetime.now():%Y-%m-%d %H:%M:%S} ")


def average_reports(reports):
    """Mean of every logged loss over the micro-batches."""
    return {key: sum(report[key].item() for report in reports) / len(reports) for key in reports[0]}


def train_step(forward_step_func, data_iterator, model, optimizer, scheduler, num_microbatches):
    """Accumulate the gradients of all micro-batches and update the weights."""
    optimizer.zero_grad()
    reports = []
    for _ in range(num_microbatches):
        output, loss_func = forward_step_func(data_iterator, model)
        loss, report = loss_func(output)
        (loss / num_microbatches).backward()
        reports.append(report)

    lr = optimizer.param_groups[0]["lr"]
    grad_norm, updated = optimizer.step()
    if updated:
        scheduler.step()
    return average_reports(reports), lr, grad_norm, not updated


def training_log(iteration, args, losses, lr, grad_norm, elapsed, skipped, nans):
    """Print the line of one iteration."""
    fields = [
        f" iteration {iteration:8d}/{args.train_iters:8d}",
        f"consumed samples: {iteration * args.global_batch_size:12d}",
        f"elapsed time per iteration (ms): {elapsed * 1000.0:.1f}",
        f"learning rate: {lr:.6E}",
        f"global batch size: {args.global_batch_size:5d}",
        *(f"{key}: {value:.6E}" for key, value in losses.items()),
        "loss scale: 1.0",
        f"grad norm: {grad_norm:.6f}",
        f"number of skipped iterations: {skipped:3d}",
        f"number of nan iterations: {nans:3d} |",
    ]
    print(" | ".join(fields))


@torch.no_grad()
def log_params_norm(iteration, model):
    """Monitoring only: L2 norm over all weights after the update."""
    squares = [parameter.float().pow(2).sum() for parameter in model.parameters()]
    print(f" [monitor] iteration {iteration}: params norm {torch.stack(squares).sum().sqrt().item():.6f}")


def train(args, forward_step_func, model, optimizer, scheduler, data_iterator):
    """Run all iterations."""
    num_microbatches = args.global_batch_size // args.micro_batch_size
    precision_dump = PrecisionDump(args.dump_path)
    model.train()
    skipped, nans = 0, 0
    for iteration in range(1, args.train_iters + 1):
        start = time.perf_counter()
        with precision_dump.iteration():
            losses, lr, grad_norm, skip = train_step(
                forward_step_func, data_iterator, model, optimizer, scheduler, num_microbatches
            )
        skipped += int(skip)
        nans += int(any(value != value for value in losses.values()))
        training_log(iteration, args, losses, lr, grad_norm, time.perf_counter() - start, skipped, nans)
        if args.log_params_norm:
            log_params_norm(iteration, model)


def pretrain(args, model_provider, data_iterator_provider, forward_step_func):
    """Build everything and train."""
    print("building GPT model ...")
    model = model_provider(args)
    optimizer = ClippedAdamW(model, args)
    scheduler = OptimizerParamScheduler(optimizer, args)
    data_iterator = data_iterator_provider(args)
    print_datetime("before the start of training step")
    train(args, forward_step_func, model, optimizer, scheduler, data_iterator)
    print_datetime("after training is done")
