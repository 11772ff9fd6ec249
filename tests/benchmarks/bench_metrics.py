"""Reading loss and grad norm from a large Megatron log, against a plain line-by-line regex reading of the same file.

    python tests/benchmarks/bench_metrics.py                 # 1 GiB
    python tests/benchmarks/bench_metrics.py --size 64       # MiB
    python tests/benchmarks/bench_metrics.py --only-metrics  # nothing but iteration lines: the worst case

Each reading runs in a process of its own; CPU time (user + system) and peak memory are those of that process.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHUNK = 1 << 20
KEYWORDS = ["lm loss", "grad norm"]

ITERATION = (
    " [2025-03-11 {h:02d}:{m:02d}:{s:02d}] iteration {step:8d}/ 5000000 | consumed samples: {samples:12d} | elapsed time per iteration (ms): 3103.7 | "
    "throughput per GPU (TFLOP/s/GPU): 120.3 | learning rate: 1.500000E-06 | global batch size:    32 | lm loss: {loss:.6E} | "
    "load_balancing_loss: 1.002117E+00 | loss scale: 1.0 | grad norm: {norm:.3f} | num zeros: 0 | params norm: 2101.337 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)
NOISE = (
    "(min, max) time across ranks (ms):\n    forward-backward ...............................: (2803.71, 2807.42)\n"
    "    forward-compute ................................: (901.12, 1033.98)\n    backward-compute ...............................: (1702.33, 1798.20)\n"
    "    layernorm-grads-all-reduce .....................: (0.03, 0.04)\n    grads-reduce-scatter ...........................: (12.31, 180.22)\n"
    "    optimizer-clip-main-grad .......................: (4.55, 4.61)\n    optimizer ......................................: (20.40, 20.52)\n"
    "[W compiler_depend.ts:409] Warning: the operator falls back to the CPU, which may cost performance (function operator())\n"
    "[rank{rank}]: UserWarning: torch.distributed.reduce_op is deprecated, please use torch.distributed.ReduceOp instead\n"
)


def generate(path: Path, size: int, only_metrics: bool) -> int:
    """Write a log of `size` bytes; the number of steps in it."""
    step = written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            step += 1
            values = {"h": step // 3600 % 24, "m": step // 60 % 60, "s": step % 60, "samples": step * 32}
            text = ITERATION.format(step=step, loss=2 + 9 / (1 + step / 1000), norm=0.5 + step % 97 / 10, **values)
            if not only_metrics:
                text += NOISE.format(rank=step % 8)
            written += file.write(text)
    return step


def read_plain(path: Path) -> tuple[int, float, float]:
    """What one writes by hand: one regular expression on every line."""
    pattern = re.compile(r"iteration\s+(\d+)/.*?lm loss: ([-+.\deE]+|nan|inf).*?grad norm: ([-+.\deE]+|nan|inf)")
    loss, norm = {}, {}
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            match = pattern.search(line)
            if match:
                loss[int(match[1])], norm[int(match[1])] = float(match[2]), float(match[3])
    return len(loss), sum(loss.values()), sum(norm.values())


def read_product(path: Path) -> tuple[int, float, float]:
    """The reader of the tool."""
    from precision_comparer import MetricReader

    reader = MetricReader(KEYWORDS)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            reader.feed(chunk)
    series = reader.finish().series
    return len(series["loss"].values), sum(series["loss"].values.values()), sum(series["grad_norm"].values.values())


def measure(kind: str, path: Path) -> dict:
    """Run one reading in its own process."""
    done = subprocess.run([sys.executable, __file__, "--read", kind, str(path)], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    """Generate, measure both, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="MiB")
    parser.add_argument("--only-metrics", action="store_true")
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.read:
        sys.path.insert(0, str(ROOT))
        if args.read[0] == "product":
            import precision_comparer  # noqa: F401  (loading it is not reading)
        base = resource.getrusage(resource.RUSAGE_SELF)
        answer = {"plain": read_plain, "product": read_product}[args.read[0]](Path(args.read[1]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        cpu = used.ru_utime + used.ru_stime - base.ru_utime - base.ru_stime
        print(json.dumps({"answer": answer, "cpu_seconds": round(cpu, 2), "peak_mib": used.ru_maxrss // 1024}))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        steps = generate(path, args.size << 20, args.only_metrics)
        results = {kind: measure(kind, path) for kind in ("plain", "product")}
    assert results["plain"]["answer"] == results["product"]["answer"], "the two readings differ"
    print(f"{args.size} MiB, {steps} steps")
    for kind, result in results.items():
        print(f"{kind:8} {result['cpu_seconds']:8.2f} s CPU {result['peak_mib']:6d} MiB peak")
    print(f"ratio of CPU time, product / plain: {results['product']['cpu_seconds'] / results['plain']['cpu_seconds']:.2f}")


if __name__ == "__main__":
    main()
