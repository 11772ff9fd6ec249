"""Pretrain a tiny GPT. The loop stands at module level."""
from lm import training
from lm.arguments import parse_args, print_args
from lm.config import load_model_config
from lm.data.loader import build_iterator
from lm.initialize import finalize, fork_dropout_rng, initialize
from lm.optim import clip_gradients
from lm.utils import checkpoint
from lm.utils.dump import build_debugger
from lm.utils.monitor import Monitor
from lm.utils.scaler import LossScaler
from lm.utils.timers import timed

args = parse_args()
initialize(args)
cfg = load_model_config(args)
print_args(args)

model, buffer, optimizer, scheduler, ema = training.setup(cfg, args)
routers = [block.mlp.router for block in model.blocks if block.is_moe]
fork_dropout_rng(args)
train_stream = build_iterator(args)
valid_stream = build_iterator(args, seed_offset=1)
scaler, monitor = LossScaler(args.loss_scale_growth), Monitor(args)
debugger = build_debugger(args)

model.train()
for iteration in range(1, args.train_iters + 1):
    debugger.start(model=model)
    with timed("iteration"):
        buffer.zero()
        window = [next(train_stream) for _ in range(args.grad_accum)]
        targets = training.count_targets(window, args)
        teacher = ema if args.distill_start and iteration >= args.distill_start else None
        reports = []
        for batch in window:
            loss, report = training.forward_step(model, batch, targets, cfg, args, teacher)
            training.backward_step(loss, scaler, args)
            buffer.accumulate()
            reports.append(report)

        buffer.reduce()
        buffer.share_embedding()
        overflow = scaler.unscale(buffer.params)
        grad_norm = clip_gradients(model.parameters(), args.clip_grad)
        if not overflow:
            optimizer.step()
            for router in routers:
                router.update_bias()
            if ema is not None:
                ema.update(model)
        lr, loss_scale = scheduler.lr, scaler.scale
        scheduler.step()
        scaler.update(overflow)

    debugger.stop()
    debugger.step()
    summary = training.merge_reports(reports, args)
    monitor.training_log(iteration, summary, grad_norm.item(), lr, loss_scale, overflow)

    if args.eval_interval and iteration % args.eval_interval == 0:
        monitor.validation_log(iteration, training.evaluate(model, valid_stream, args))
    if iteration == args.resume_at:
        saved = checkpoint.save(optimizer, scheduler)
        optimizer = training.build_optimizer(model, args)
        scheduler.optimizer = optimizer
        checkpoint.load(saved, optimizer, scheduler)

finalize(args)
if args.rank == 0:
    print("training success", flush=True)
