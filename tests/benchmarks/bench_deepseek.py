"""What DeepSeek's answers are worth: small trainings whose bug hides in a library outside the code tree, with a scripted server.

    python tests/benchmarks/bench_deepseek.py

Every case has harmless changes besides, and runs without a model, then with a server that gives a good, a useless, a wrong, a misleading and
a hostile answer. Exit code 0 when a good answer never loses a hit, and none of the others makes a verdict worse or costs more than one rerun.
"""

import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1])]

from llm_server import Reply, completion, serving  # noqa: E402
from test_deepseek import CACHE, CLOCK, COUNT, HARMLESS, HELPER, HOSTILE, IN_PLACE, KERNEL, NAME, OUT, SLOPE, TRAINING, answer, locate, place  # noqa: E402

COLLECTIVE = """
import os
import sys
sys.path.insert(0, "../../library")

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, store, steps=3):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    torch.manual_seed(rank)
    weight = torch.full((8,), 0.5)
    for step in range(steps):
        batch = torch.rand(8)
        grad = weight * batch
        dist.all_reduce(grad, op=dist.ReduceOp.SUM)
        weight -= 0.1 * grad
        if rank == 0:
            print(f"iteration {step + 1} | lm loss: {grad.mean().item():.12f} | grad norm: {grad.norm().item():.12f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, (os.path.abspath("store%d" % os.getpid()),), nprocs=2)
    print("training success")
"""
MAX = [("ReduceOp.SUM", "ReduceOp.MAX")]
CASES = {  # what changed, the statement to name, the names a good answer gives
    "state of a helper object": (HELPER, "self.engine.configure(0.6)", {"inputs": ["self.engine.box.core.scale"]}),
    "table of a library": (CACHE, "fastlib.set_slope(0.2)", {"in_place": [SLOPE]}),
    "argument changed in place": (IN_PLACE, "fastlib.shift_(batch, 0.4)", {"in_place": ["batch"]}),
    "argument out=": (OUT, "fastlib.scale(batch, 2.2, out=batch)", {"outputs": ["batch"]}),
    "collective on a tensor": (MAX, "dist.all_reduce(grad, op=dist.ReduceOp.MAX)", {"in_place": ["grad"]}),
    "another build of a library": (KERNEL, "hidden = [fastlib.act(value) for value in hidden]", {"inputs": ["hidden"]}),
}
USELESS = answer("self", "batch")
WRONG = answer(CLOCK, "self.engine.box.core.clock", opinion="是 baseline 错了")
MISLEADING = answer(COUNT, NAME)  # values that really differ, through harmless changes


def run(changes, reply):
    """(statement named or None, reruns, requests) of one case; without a model where `reply` is `None`."""
    with tempfile.TemporaryDirectory() as folder, serving(lambda body, number: Reply(completion(reply))) as server:
        options = ["--no-llm"] if reply is None else []
        training, harmless = (COLLECTIVE, []) if changes is MAX else (TRAINING, HARMLESS)
        _, report = locate(Path(folder), changes + harmless, server.url, *options, training=training)
        return place(report), report["reruns"], len(server.requests)


def main():
    """Print one row for each case and answer; the exit code."""
    print("| case | answer | statement | reruns | requests |\n|---|---|---|---|---|")
    is_good = True
    for name, (changes, right, names) in CASES.items():
        alone = run(changes, None)
        answers = {"good": answer(**names), "useless": USELESS, "wrong": WRONG, "misleading": MISLEADING, "hostile": HOSTILE["a call"]}
        rows = {"none": alone, **{kind: run(changes, reply) for kind, reply in answers.items()}}
        for kind, (found, reruns, requests) in rows.items():
            print(f"| {name} | {kind} | {'yes' if found == right else 'NO: ' + json.dumps(found)} | {reruns} | {requests} |", flush=True)
            is_good &= reruns <= alone[1] + 1 and (found == right or (alone[0] != right and kind != "good"))
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
