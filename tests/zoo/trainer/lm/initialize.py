"""Process group, threads, seeds."""
import datetime
import os
import random

import torch
import torch.distributed as dist


def initialize(args):
    """Everything that must be set before a tensor is made."""
    torch.set_num_threads(args.threads)
    torch.use_deterministic_algorithms(True)
    if args.world_size > 1:
        dist.init_process_group(
            "gloo",
            init_method=os.environ["ZOO_RENDEZVOUS"],
            rank=args.rank,
            world_size=args.world_size,
            timeout=datetime.timedelta(seconds=120),
        )
    # ranks draw different weights; rank 0's are sent to all of them later
    set_random_seed(args.seed + args.rank)


def set_random_seed(seed):
    """Python's and torch's global generators."""
    random.seed(seed)
    torch.manual_seed(seed)


def fork_dropout_rng(args):
    """From here on only dropout draws: a stream of its own on each rank."""
    torch.manual_seed(args.seed + 2718 + args.rank)


def finalize(args):
    if args.world_size > 1:
        dist.barrier()
        dist.destroy_process_group()
