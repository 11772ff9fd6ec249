"""Command line of the trainer."""
import argparse
import os

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _add_model_args(parser):
    group = parser.add_argument_group(title="model")
    group.add_argument("--model-config", default=os.path.join(HERE, "configs", "dense.json"))
    group.add_argument("--attention-backend", choices=["dense", "block"], default="dense")
    group.add_argument("--attention-block", type=int, default=24)
    group.add_argument("--rope-scale", type=float, default=None)
    group.add_argument("--head", choices=["tied", "replica"], default="tied")
    group.add_argument("--lora-rank", type=int, default=0)
    group.add_argument("--mtp-weight", type=float, default=None)
    group.add_argument("--hidden-dropout", type=float, default=None)
    group.add_argument("--attention-dropout", type=float, default=None)
    group.add_argument("--meta-init", action="store_true",
                       help="build on the meta device and fill in the weights afterwards")
    group.add_argument("--quantized-embedding", action="store_true",
                       help="start from an int8 embedding table")


def _add_training_args(parser):
    group = parser.add_argument_group(title="training")
    group.add_argument("--train-iters", type=int, default=8)
    group.add_argument("--micro-batch-size", type=int, default=2)
    group.add_argument("--grad-accum", type=int, default=2)
    group.add_argument("--bf16", action="store_true")
    group.add_argument("--recompute", action="store_true")
    group.add_argument("--label-smoothing", type=float, default=0.0)
    group.add_argument("--z-loss", type=float, default=1e-3)
    group.add_argument("--loss-scale-growth", type=float, default=0.0,
                       help="grow the loss scale by this factor each iteration; 0: no scaling")
    group.add_argument("--distill-start", type=int, default=0,
                       help="from this iteration on the EMA copy teaches too; 0: never")
    group.add_argument("--eval-interval", type=int, default=0)
    group.add_argument("--resume-at", type=int, default=0,
                       help="save and rebuild the optimizer after this iteration")
    group.add_argument("--seed", type=int, default=1234)
    group.add_argument("--threads", type=int, default=int(os.environ.get("ZOO_THREADS", "1")))


def _add_optimizer_args(parser):
    group = parser.add_argument_group(title="optimizer")
    group.add_argument("--lr", type=float, default=4e-3)
    group.add_argument("--min-lr", type=float, default=4e-4)
    group.add_argument("--lr-warmup-iters", type=int, default=3)
    group.add_argument("--lr-decay-iters", type=int, default=None)
    group.add_argument("--weight-decay", type=float, default=0.1)
    group.add_argument("--adam-beta1", type=float, default=0.9)
    group.add_argument("--adam-beta2", type=float, default=0.95)
    group.add_argument("--adam-eps", type=float, default=1e-8)
    group.add_argument("--clip-grad", type=float, default=1.0)
    group.add_argument("--ema-decay", type=float, default=0.8)


def _add_data_args(parser):
    group = parser.add_argument_group(title="data")
    group.add_argument("--seq-length", type=int, default=64)
    group.add_argument("--num-samples", type=int, default=18)
    group.add_argument("--tokenizer", default="v1")
    group.add_argument("--data-seed", type=int, default=7)


def parse_args(argv=None):
    """Read the command line and derive what follows from it."""
    parser = argparse.ArgumentParser(description="tiny GPT pretraining", allow_abbrev=False)
    for add in (_add_model_args, _add_training_args, _add_optimizer_args, _add_data_args):
        add(parser)
    args = parser.parse_args(argv)
    args.rank = int(os.environ.get("RANK", "0"))
    args.world_size = int(os.environ.get("WORLD_SIZE", "1"))
    args.global_batch_size = args.micro_batch_size * args.grad_accum * args.world_size
    if args.lr_decay_iters is None:
        args.lr_decay_iters = args.train_iters
    return args


def print_args(args):
    """Megatron's table of arguments, on rank 0."""
    if args.rank:
        return
    print("------------------------ arguments ------------------------")
    for name in sorted(vars(args)):
        if name != "model_config":
            print("  " + name + " " + "." * (48 - len(name)) + " " + str(getattr(args, name)))
    print("-------------------- end of arguments ---------------------", flush=True)
