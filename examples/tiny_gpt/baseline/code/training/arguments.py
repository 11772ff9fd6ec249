"""Training arguments: one dataclass holds the defaults, the command line is made from it."""

import argparse
from dataclasses import dataclass, fields


@dataclass
class TrainingArguments:
    """Defaults of all arguments; a field `some_name` is set by `--some-name`."""

    # model
    num_layers: int = 2
    hidden_size: int = 64
    ffn_hidden_size: int = 128
    num_attention_heads: int = 4
    num_query_groups: int = 2
    seq_length: int = 32
    vocab_size: int = 128
    norm_epsilon: float = 1e-5
    rotary_base: float = 10000.0
    init_method_std: float = 0.1
    mtp_num_layers: int = 1
    mtp_loss_scaling_factor: float = 0.3

    # data
    num_documents: int = 200
    eod_mask_loss: bool = True
    reset_position_ids: bool = True

    # training
    micro_batch_size: int = 4
    global_batch_size: int = 8
    train_iters: int = 6
    seed: int = 1234
    lr: float = 3e-3
    min_lr: float = 3e-4
    lr_warmup_iters: int = 2
    weight_decay: float = 0.1
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_eps: float = 1e-8
    clip_grad: float = 1.0

    # precision dump; an empty path means the folder `dump` beside the run script
    dump_path: str = ""


def _validate(args):
    """Refuse combinations that cannot be trained."""
    if args.hidden_size % args.num_attention_heads:
        raise ValueError("--hidden-size must be a multiple of --num-attention-heads")
    if args.num_attention_heads % args.num_query_groups:
        raise ValueError("--num-attention-heads must be a multiple of --num-query-groups")
    if args.global_batch_size % args.micro_batch_size:
        raise ValueError("--global-batch-size must be a multiple of --micro-batch-size")


def parse_args(argv=None):
    """Read the command line into `TrainingArguments`."""
    parser = argparse.ArgumentParser(description="Tiny GPT pretraining")
    for field in fields(TrainingArguments):
        option = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(option, type=field.type, default=field.default)
    args = TrainingArguments(**vars(parser.parse_args(argv)))
    _validate(args)
    return args


def print_args(args):
    """Print all arguments, sorted by name."""
    print("------------------------ arguments ------------------------")
    for name, value in sorted(vars(args).items()):
        print(f"  {name} {'.' * (48 - len(name))} {value}")
    print("-------------------- end of arguments ---------------------")
