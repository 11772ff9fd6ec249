"""Section 9: the client against a real server, what an answer may do, what is sent, and what a good answer is worth."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import precision_comparer as pc
from llm_server import Reply, completion, serving

SCRIPT = Path(__file__).resolve().parents[1] / "precision_comparer.py"

# --- Trainings in which a library outside the code tree keeps what matters deeper than any print looks. ---

TRAINING = '''
import random
import sys
sys.path.insert(0, "../../library")

import fastlib


class Trainer:
    def __init__(self):
        self.engine = fastlib.Engine()
        self.engine.configure(0.5)
        self.weight = 0.75

    def forward(self, batch):
        hidden = self.engine.apply(batch, self.weight)
        hidden = [fastlib.act(value) for value in hidden]
        return sum(hidden) / len(hidden)

    def train(self, steps):
        fastlib.set_slope(0.25)
        generator = random.Random(7)
        for step in range(steps):
            batch = [generator.uniform(-1.0, 1.0) for _ in range(8)]
            mean = self.forward(batch)
            loss = mean * mean
            self.weight -= 0.1 * mean
            print(f"iteration {step + 1} | lm loss: {loss:.12f} | grad norm: {abs(mean):.12f}")


trainer = Trainer()
trainer.train(3)
saved = {"weight": trainer.weight}
print("training success")
'''
LIBRARY = '''
import time


class Core:
    def __init__(self):
        self.scale, self.clock = 1.0, time.time()


class Box:
    def __init__(self):
        self.core = Core()


class Engine:
    def __init__(self):
        self.box = Box()

    def configure(self, scale):
        self.box.core.scale = scale

    def apply(self, values, weight):
        return [weight * value * self.box.core.scale for value in values]


TABLES = {"inner": {"deep": {"deeper": {"slope": 0.5, "clock": time.time()}}}}


def set_slope(value):
    TABLES["inner"]["deep"]["deeper"]["slope"] = value


def act(value):
    return value if value > 0 else TABLES["inner"]["deep"]["deeper"]["slope"] * value
'''
FILES = {"train.py": TRAINING}
HELPER = [("configure(0.5)", "configure(0.6)")]
CACHE = [("set_slope(0.25)", "set_slope(0.2)")]
KERNEL = [("import fastlib\n", "import fastlib\nfastlib.act = lambda value: value\n")]


def locate(folder, changes, url, *options, key="sk-test-0123456789", timeout=20):
    (folder / "library").mkdir()
    (folder / "library" / "fastlib.py").write_text(LIBRARY)
    config = {"debug": {"log_keywords": ["lm loss", "grad norm"], "tolerance": 1e-9, "parallel_runs": True}, "deepseek": {"base_url": url, "timeout_seconds": timeout}}
    for side in ("baseline", "test"):
        code = folder / side / "code"
        code.mkdir(parents=True)
        text = TRAINING
        for old, new in changes if side == "test" else []:
            assert text.count(old) == 1
            text = text.replace(old, new)
        (code / "train.py").write_text(text)
        script = folder / side / "run.sh"
        script.write_text(f"#!/usr/bin/env bash\nset -e\ncd {code}\n{sys.executable} train.py | tee ../train.log\n")
        script.chmod(0o755)
        config[side] = {"mode": "local", "log_path": f"{side}/train.log", "code_path": f"{side}/code", "run_script": f"{side}/run.sh"}
    (folder / "config.json").write_text(json.dumps(config))
    command = [sys.executable, str(SCRIPT), "--config", str(folder / "config.json"), "--output-dir", str(folder / "out"), *options]
    env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and name != "DEEPSEEK_API_KEY"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env | {"NO_COLOR": "1"} | ({"DEEPSEEK_API_KEY": key} if key else {}))
    return done, json.loads((folder / "out" / "report.json").read_text())
