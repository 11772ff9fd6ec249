"""The two code trees of a case, their run scripts and config, their first runs."""
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from drift import PACKS, Word

TRAINER = Path(__file__).resolve().parent / "trainer"

RUN_SCRIPT = """#!/usr/bin/env bash
# {side} training
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
mkdir -p logs
{exports}
{dump}train() {{
{train}
}}
train 2>&1 | tee logs/train.log
"""
ONE_RANK = '    "${PYTHON:-python3}" code/pretrain.py WORDS'
TWO_RANKS = """    export WORLD_SIZE=2 ZOO_RENDEZVOUS="file://$PWD/rendezvous.$$" GLOO_SOCKET_IFNAME=lo
    local workers=() status=0
    for rank in 0 1; do
        RANK=$rank "${PYTHON:-python3}" code/pretrain.py WORDS &
        workers+=($!)
    done
    for worker in "${workers[@]}"; do
        wait "$worker" || status=$?
    done
    rm -f "rendezvous.$$"
    return $status"""
DUMP = """if [ -z "${PRECISION_COMPARER_RERUN:-}" ]; then
    rm -rf dump
    export ZOO_DUMP="$PWD/dump"
fi
"""


def edit_text(text, old, new):
    """Replace `old`, which must be there exactly once, or a word wherever it stands."""
    if isinstance(old, Word):
        changed, count = re.subn(rf"(?<![\w.]){old}(?![\w(])", new, text)
        if not count:
            raise ValueError(f"no word {old!r}")
        return changed
    if text.count(old) != 1:
        raise ValueError(f"{text.count(old)} times: {old!r}")
    return text.replace(old, new)


def apply_edit(code, file, old, new):
    """One edit of one file; the file's own line ends are kept."""
    path = code / file
    if old is None:
        path.write_text(new, encoding="utf-8")
        return
    text = path.read_bytes().decode("utf-8")
    crlf = "\r\n" in text
    try:
        text = edit_text(text.replace("\r\n", "\n"), old, new)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    path.write_bytes((text.replace("\n", "\r\n") if crlf else text).encode("utf-8"))


def snapshot(folder):
    """Contents, mode and mtime of every file of both code trees."""
    found = {}
    for side in ("baseline", "test"):
        for path in sorted((folder / side / "code").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                info = path.stat()
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(path.relative_to(folder))] = (digest, info.st_mode, info.st_mtime_ns)
    return found


def trainer_files():
    """Every file of the trainer, without what Python left there."""
    return [p for p in sorted(TRAINER.rglob("*")) if p.is_file() and "__pycache__" not in p.parts]


class Workspace:
    """One case on disk: `baseline/` and `test/` with code, run.sh, logs and dump; config.json beside them."""

    def __init__(self, case, root, dump):
        self.case, self.dump = case, dump
        self.root = root / ("with-dump" if dump else "without-dump")
        self.folder = self.root / case.name

    def code(self, side):
        """The code tree of a side."""
        return self.folder / side / "code"

    def log(self, side):
        """The training log of a side's first run."""
        return self.folder / side / "logs" / "train.log"

    def environment(self):
        """What the trainings and the tool run under: this interpreter and its programs."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        env = dict(os.environ, PATH=path, PYTHON=sys.executable)
        for name in ("RANK", "WORLD_SIZE", "ZOO_DUMP", "PRECISION_COMPARER_RERUN"):
            env.pop(name, None)
        return env

    def _stamp(self, *parts):
        digest = hashlib.sha256(repr(parts).encode())
        for path in trainer_files():
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def build(self):
        """Fresh trees, scripts and config, unless they are there already for the same case."""
        if self._is_built():
            self._restore_first_runs()
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        for side in ("baseline", "test"):
            shutil.copytree(TRAINER, self.code(side), ignore=shutil.ignore_patterns("__pycache__"))
            self._write_script(side)
        self._edit_test()
        (self.folder / "config.json").write_text(json.dumps(self.config(), indent=2), encoding="utf-8")
        (self.folder / "stamp").write_text(self._case_stamp())

    def _case_stamp(self):
        packs = [PACKS[name] for name in self.case.drift]
        return self._stamp(dataclasses.astuple(self.case), packs, RUN_SCRIPT, ONE_RANK, TWO_RANKS, DUMP)

    def _is_built(self):
        stamp = self.folder / "stamp"
        return stamp.is_file() and stamp.read_text() == self._case_stamp()

    def _edit_test(self):
        code = self.code("test")
        for edit in self.case.edits:
            apply_edit(code, *edit)
        for name, pack in PACKS.items():
            for file, old, new in pack if name in self.case.drift else ():
                if file not in self.case.drift_skip:
                    apply_edit(code, file, old, new)

    def _write_script(self, side):
        case = self.case
        words = ["--train-iters", str(case.steps), *case.args]
        exports = []
        if side == "test":
            words += case.test_only_args
            exports = [f"export {name}={value}" for name, value in case.test_env]
        train = (TWO_RANKS if case.ranks == 2 else ONE_RANK).replace("WORDS", " ".join(words))
        script = self.folder / side / "run.sh"
        script.write_text(RUN_SCRIPT.format(side=side, exports="\n".join(exports), dump=DUMP if self.dump else "", train=train))
        script.chmod(0o755)

    def config(self):
        """The tool's config.json, all paths relative to it."""
        sides = {side: {"mode": "local", "log_path": f"{side}/logs/train.log", "code_path": f"{side}/code",
                        "run_script": f"{side}/run.sh"} for side in ("baseline", "test")}
        return {
            **sides,
            "msprobe": {"baseline_data_dir": "baseline/dump", "test_data_dir": "test/dump",
                        "parse_code_dir": "/code/", "compare_output_dir": "compare"},
            "debug": {"max_iterations": 10, "tolerance": self.case.tolerance, "trace_threshold": 0.001, "parallel_runs": True,
                      "log_keywords": ["lm loss", "grad norm"]},
        }

    def _train(self, folder):
        with open(folder / "launch.log", "wb") as log:
            subprocess.run(["bash", str(folder / "run.sh")], check=True, stdout=log, stderr=subprocess.STDOUT,
                           env=self.environment(), timeout=600)

    def baseline_run(self):
        """The baseline's first run, shared by all cases with the same words."""
        if self.log("baseline").is_file():
            return
        case = self.case
        shared = self.root / "_baselines" / self._stamp(case.args, case.ranks, case.steps, RUN_SCRIPT, ONE_RANK, TWO_RANKS, DUMP)
        if not (shared / "done").is_file():
            shutil.rmtree(shared, ignore_errors=True)
            shutil.copytree(self.folder / "baseline", shared)
            self._train(shared)
            (shared / "done").touch()
        for name in ("logs", "dump"):
            if (shared / name).is_dir():
                shutil.copytree(shared / name, self.folder / "baseline" / name)
        # the stacks name the files that ran; here they must name this workspace's copy
        for stack in (self.folder / "baseline").glob("dump/*/*/stack.json"):
            moved = stack.read_text(encoding="utf-8").replace(str(shared), str(self.folder / "baseline"))
            stack.write_text(moved, encoding="utf-8")
        self._keep_first_run("baseline")

    def test_run(self):
        """The test side's first run."""
        if not self.log("test").is_file():
            self._train(self.folder / "test")
            self._keep_first_run("test")

    def _keep_first_run(self, side):
        """The tool's reruns write the same log again: keep the first for the next time."""
        for name in ("logs", "dump"):
            source, kept = self.folder / side / name, self.folder / "first" / side / name
            if source.is_dir():
                shutil.copytree(source, kept, dirs_exist_ok=True)

    def _restore_first_runs(self):
        for side in ("baseline", "test"):
            for name in ("logs", "dump"):
                shutil.rmtree(self.folder / side / name, ignore_errors=True)
                kept = self.folder / "first" / side / name
                if kept.is_dir():
                    shutil.copytree(kept, self.folder / side / name)


_LINE = re.compile(r"iteration\s+(\d+)/.*\| lm loss: (\S+) \|.*\| grad norm: (\S+) \|")


def read_curves(log):
    """{step: (loss, grad norm)} of a training log."""
    found = (_LINE.search(line) for line in log.read_text(encoding="utf-8").splitlines())
    return {int(m[1]): (float(m[2]), float(m[3])) for m in found if m}


def first_difference(baseline, test, tolerance):
    """(step, metric, difference) where the curves part first, or None."""
    for step in sorted(baseline.keys() & test.keys()):
        for metric, a, b in zip(("loss", "grad norm"), baseline[step], test[step]):
            if math.isnan(a) and math.isnan(b):
                continue
            if math.isnan(a) or math.isnan(b) or abs(a - b) > tolerance:
                return step, metric, abs(a - b)
    return None
