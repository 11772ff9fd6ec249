"""What prints cost a training: CPU time, lines and bytes of the example with prints, against the same training without.

    python tests/benchmarks/bench_probes.py                          # two sizes of the model, some two minutes
    python tests/benchmarks/bench_probes.py --sizes medium --repeat 3

Run it with an interpreter that has `torch`; msprobe is not loaded.  CPU time (user + system) is that of the training's
processes, start-up included and also shown; of `--repeat` runs the fastest counts.  "start" prints at the first step only, which
is what a rerun for a difference at the first step does; "all" prints at every step.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import precision_comparer as pc  # noqa: E402

ITERATIONS = 10
SIZES = {
    "tiny": [],
    "small": ["--hidden-size", "256", "--seq-length", "128", "--num-layers", "4"],
    "medium": ["--hidden-size", "512", "--seq-length", "256", "--num-layers", "4", "--vocab-size", "4096"],
}


def cpu_seconds(command: list[str], log: Path) -> float:
    """Run a training to its end; CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with log.open("wb") as out:
        environment = {**os.environ, "PRECISION_COMPARER_RERUN": "1", "PYTHON": sys.executable}
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(folder: Path, arguments: list[str], window: tuple[int, int] | None, repeat: int) -> dict[str, float]:
    """CPU seconds, lines and bytes of the log, and how many places print; without a window nothing does."""
    side = pc.Side("test", SimpleNamespace(code_path=str(folder / "code"), run_script=str(folder / "run.sh")), pc.LocalHost())
    tree, log = pc.CodeTree(side), folder / "out.log"
    files = tree.choose([], pc.STATEMENT_BUDGET) if window else []
    with pc.injected([side], {"test": tree}, {"test": files}, pc.Watch(window or (0, 0), 0, True)) as injections:
        seconds = min(cpu_seconds(["bash", str(folder / "run.sh"), *arguments], log) for _ in range(repeat))
        sites = len(injections["test"].sites)
    text = log.read_bytes()
    return {"seconds": seconds, "lines": text.count(b"\n"), "bytes": len(text), "sites": sites}


def main() -> None:
    """Print one table row for each size and window."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small"])
    parser.add_argument("--repeat", type=int, default=1)
    options = parser.parse_args()
    print("| model | prints | places | CPU s | start-up s | ratio | ratio without start-up | lines | MB | us a line |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "test"
        shutil.copytree(ROOT / "examples" / "tiny_gpt" / "test", folder, ignore=shutil.ignore_patterns("__pycache__", "logs", "dump"))
        for size in options.sizes:
            steps = ["--train-iters", str(ITERATIONS)]
            start_up = measure(folder, SIZES[size] + ["--train-iters", "0"], None, options.repeat)["seconds"]
            plain = measure(folder, SIZES[size] + steps, None, options.repeat)
            for label, window in (("none", None), ("start", (0, 1)), ("all", (0, ITERATIONS))):
                found = measure(folder, SIZES[size] + steps, window, options.repeat) if window else plain
                more = found["seconds"] - plain["seconds"]
                cells = [size, label, found["sites"], f"{found['seconds']:.1f}", f"{start_up:.1f}", f"{found['seconds'] / plain['seconds']:.2f}",
                         f"{(found['seconds'] - start_up) / max(plain['seconds'] - start_up, 1e-3):.2f}", found["lines"], f"{found['bytes'] / 1e6:.2f}",
                         f"{more / max(found['lines'] - plain['lines'], 1) * 1e6:.0f}"]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
