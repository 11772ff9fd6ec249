"""Section 12 through the real command: two small trainings in plain Python, one change, and the place that must be named."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "precision_comparer.py"

TRAINING = '''
import json
import random
from dataclasses import dataclass
from pathlib import Path

from layers import Layer, activate


@dataclass
class Settings:
    rate: float = 0.1
    decay: float = 0.01
    steps: int = 4


def batches(settings, width):
    generator = random.Random(7)
    for _ in range(settings.steps):
        yield [generator.uniform(-1.0, 1.0) for _ in range(width)]


def penalty(weight, decay):
    return decay * weight * weight


def forward(layer, batch, decay):
    hidden = [layer.apply(value) for value in batch]
    mean = sum(hidden) / len(hidden)
    loss = mean * mean + penalty(layer.weight, decay)
    return loss, mean


def update(layer, mean, settings):
    gradient = 2.0 * mean + 2.0 * settings.decay * layer.weight
    gradient = max(-1.0, min(1.0, gradient))
    layer.weight -= settings.rate * gradient
    return gradient


settings = Settings()
width = json.loads((Path(__file__).parent / "model.json").read_text())["width"]
random.seed(3)
layer = Layer(random.uniform(0.5, 1.5))
for step, batch in enumerate(batches(settings, width), 1):
    loss, mean = forward(layer, batch, settings.decay)
    norm = update(layer, mean, settings)
    print(f"iteration {step} | lm loss: {loss:.12f} | grad norm: {abs(norm):.12f}")
print("training success")
'''
LAYERS = '''
import math


def activate(value, slope=0.5):
    return value if value > 0 else slope * value


class Layer:
    shift = 0.25

    def __init__(self, weight):
        self.weight = weight
        self.scale = 1.0 / math.sqrt(2.0)

    def apply(self, value):
        inner = self.weight * value * self.scale
        inner = inner + self.shift
        return activate(inner)
'''
FILES = {"train.py": TRAINING, "layers.py": LAYERS, "model.json": '{\n  "depth": 2,\n  "width": 8\n}\n'}


def locate(folder, changes, files=FILES):
    config = {"debug": {"log_keywords": ["lm loss", "grad norm"], "tolerance": 1e-9, "parallel_runs": True}}
    for side in ("baseline", "test"):
        code = folder / side / "code"
        code.mkdir(parents=True)
        for name, text in files.items():
            if side == "test":
                text = "# moved by a line\n" + text if name.endswith(".py") else text
                for old, new in changes.get(name, []):
                    assert text.count(old) == 1
                    text = text.replace(old, new)
            (code / name).write_text(text)
        script = folder / side / "run.sh"
        script.write_text(f"#!/usr/bin/env bash\nset -e\ncd {code}\n{sys.executable} train.py | tee ../train.log\n")
        script.chmod(0o755)
        config[side] = {"mode": "local", "log_path": f"{side}/train.log", "code_path": f"{side}/code", "run_script": f"{side}/run.sh"}
    (folder / "config.json").write_text(json.dumps(config))
    before = {p: (p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns) for p in folder.glob("*/code/*.*")}
    command = [sys.executable, str(SCRIPT), "--config", str(folder / "config.json"), "--output-dir", str(folder / "out"), "--no-llm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, "NO_COLOR": "1"})
    assert before == {p: (p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns) for p in folder.glob("*/code/*.*")}, "the user's code was changed"
    return done, json.loads((folder / "out" / "report.json").read_text())


TORCH_TRAINING = '''
import copy

import torch

from parts import Buffer, Net, clip

torch.manual_seed(0)
torch.set_num_threads(1)
net = Net()
buffer = Buffer(net)
trained = [p for p in net.parameters() if p.requires_grad]
momentum = [torch.zeros_like(p) for p in trained]
for step in range(1, 5):
    buffer.zero()
    x, y = torch.randn(8, 6), torch.randn(8, 3)
    loss = (net(x) - y).square().mean()
    loss.backward()
    buffer.accumulate()
    buffer.reduce()
    norm = clip(net.parameters(), 0.1)
    with torch.no_grad():
        for p, m in zip(trained, momentum):
            m.mul_(0.9).add_(p.main_grad)
            p.sub_(m, alpha=0.5)
    print(f"iteration {step} | lm loss: {loss.item():.10f} | grad norm: {norm.item():.10f}", flush=True)
print("training success")
'''
PARTS = '''
import torch
from torch import nn


class Wide(nn.Sequential):
    def __init__(self, width, size):
        layers = [nn.Linear(width, size), nn.LayerNorm(size)]
        super().__init__(*layers)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.side, self.last = Wide(6, 16), nn.Linear(6, 16), nn.Linear(16, 3)
        self.cap, self.limit = 0.5, 2.0

    def squash(self, hidden):
        if (cap := self.cap) > 0:
            hidden = torch.tanh(hidden / cap) * cap
        return hidden

    def forward(self, x):
        hidden = self.squash(self.first(x))
        gate = self.side(x)
        return self.mix(hidden, gate)

    def mix(self, hidden, gate):
        mixed = hidden * torch.sigmoid(gate)
        return self.last(mixed)


class Buffer:
    def __init__(self, net):
        self.params = list(net.parameters())
        self.flat = torch.zeros(sum(p.numel() for p in self.params))
        offset = 0
        for p in self.params:
            p.main_grad = self.flat[offset : offset + p.numel()].view_as(p)
            offset += p.numel()

    def zero(self):
        self.flat.zero_()

    def accumulate(self):
        for p in self.params:
            p.main_grad.add_(p.grad)
            p.grad = None

    def reduce(self):
        self.flat.mul_(2.0)
        self.flat.div_(4.0)


def clip(params, limit):
    params = list(params)
    grads = [p.main_grad for p in params]
    norm = torch.stack([part.sum() for part in map(torch.square, grads)]).sum().sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    for p in params:
        p.main_grad.mul_(scale)
    return norm
'''
TORCH_FILES = {"train.py": TORCH_TRAINING, "parts.py": PARTS}
MIX = """    def mix(self, hidden, gate):
        mixed = hidden * torch.sigmoid(gate)
        return self.last(mixed)
"""
FUSED = """def fused(last, states, doors):
    weights = torch.reciprocal(1.0 + torch.exp(-doors))
    kept = states.mul(weights).mul(1.02)
    return last(kept)


"""
TORCH_BUGS = {
    "buffer behind many views": ({"parts.py": [("        self.flat.div_(4.0)\n", "")]}, "parts.py", "self.flat.mul_(2.0)"),
    "guard around zeroing": ({"train.py": [("    buffer.zero()\n", "    if step == 1:\n        buffer.zero()\n")]}, "train.py", ("if step == 1", "buffer.zero()")),
    "order of two calls": ({"train.py": [("    buffer.reduce()\n    norm = clip(net.parameters(), 0.1)\n", "    norm = clip(net.parameters(), 0.1)\n    buffer.reduce()\n")]},
                           "train.py", ("norm = clip", "buffer.reduce()")),
    "argument that is a generator": ({"train.py": [("    norm = clip(net.parameters(), 0.1)\n", "    for part in (net.first, net.side, net.last):\n        norm = clip(part.parameters(), 0.1)\n")]},
                                     "train.py", ("for part in", "norm = clip(part")),
    "weights of a copy": ({"train.py": [("for p in net.parameters() if", "for p in copy.deepcopy(net).parameters() if"), ("m.mul_(0.9).add_(p.main_grad)", "m.mul_(0.9).add_(getattr(p, \"main_grad\", m))")]},
                          "train.py", ("trained =", "m.mul_(0.9)")),
    "detached input": ({"parts.py": [("return self.mix(hidden, gate)", "return self.mix(hidden, gate.detach())"), ("p.main_grad.add_(p.grad)", "p.main_grad.add_(p.grad if p.grad is not None else 0.0)")]},
                       "parts.py", ("return self.mix(hidden, gate.detach())", "p.main_grad.add_")),
    "value bound in a header": ({"parts.py": [("(cap := self.cap)", "(cap := self.limit)")]}, "parts.py", "if (cap := self.limit)"),
    "setting of a layer": ({"parts.py": [("nn.LayerNorm(size)", "nn.LayerNorm(size, eps=0.1)")]}, "parts.py", "layers = ["),
    "another function of the same meaning": ({"parts.py": [(MIX, ""), ("self.mix(hidden, gate)", "fused(self.last, hidden, gate)"), ("class Buffer", FUSED + "class Buffer")]}, "parts.py", ("weights =", "kept =")),
    "lambda called elsewhere": ({"parts.py": [("map(torch.square, grads)", "map(lambda grad: 1.01 * grad.square(), grads)")]}, "parts.py", "norm ="),
    "another way out": ({"parts.py": [("    def mix(self, hidden, gate):\n", "    def mix(self, hidden, gate):\n        if hidden.shape[0] > 4:\n            return self.last(hidden + 0.0 * gate)\n")]},
                        "parts.py", ("return self.last(hidden + 0.0", "if hidden.shape[0] > 4")),
}

BUGS = {
    "operator": ({"train.py": [("sum(hidden) / len(hidden)", "sum(hidden) / (len(hidden) - 1)")]}, "train.py", "mean = sum(hidden)"),
    "constant in a method": ({"layers.py": [("1.0 / math.sqrt(2.0)", "1.0 / math.sqrt(2.1)")]}, "layers.py", "self.scale ="),
    "default of an argument": ({"layers.py": [("slope=0.5", "slope=0.4")]}, "layers.py", "def activate"),
    "class attribute": ({"layers.py": [("shift = 0.25", "shift = 0.2")]}, "layers.py", "shift = 0.2"),
    "dataclass default": ({"train.py": [("decay: float = 0.01", "decay: float = 0.02")]}, "train.py", "decay: float"),
    "value in a JSON file": ({"model.json": [('"width": 8', '"width": 6')]}, "model.json", '"width": 6'),
    "missing statement": ({"layers.py": [("        inner = inner + self.shift\n", "")]}, "layers.py", "inner ="),
    "seed of the weights": ({"train.py": [("random.seed(3)", "random.seed(4)")]}, "train.py", "random.seed(4)"),
    "seed of the data": ({"train.py": [("random.Random(7)", "random.Random(8)")]}, "train.py", "generator = random.Random(8)"),
    "extra draw": ({"train.py": [("random.seed(3)\n", "random.seed(3)\nnoise = random.random()\n")]}, "train.py", "noise = random.random()"),
    "update": ({"train.py": [("layer.weight -= settings.rate * gradient", "layer.weight -= 1.01 * settings.rate * gradient")]}, "train.py", "layer.weight -="),
}


@pytest.mark.parametrize("name", [*BUGS, *TORCH_BUGS])
def test_the_changed_statement_is_named_in_one_rerun(tmp_path, name):
    changes, file, start = (BUGS | TORCH_BUGS)[name]
    done, report = locate(tmp_path, changes, TORCH_FILES if name in TORCH_BUGS else FILES)
    assert done.returncode == 1 and report["verdict"] == "located" and report["reruns"] == 1, done.stdout[-3000:]
    place = report["location"]["test"]
    lines = (tmp_path / "test" / "code" / place["file"]).read_text().splitlines()[place["line"] - 1 : place["end_line"]]
    assert place["file"] == file and any(line.strip().startswith(start) for line in lines), (place, report["location"]["explanation"])


def test_a_number_that_only_the_log_shows(tmp_path):
    files = {"train.py": "for step in range(1, 4):\n    loss = 2.5 - step * 0.1\n    print(f'iteration {step} | lm loss: {loss:.4f} | grad norm: 1.0')\nfor step in range(400):\n    rest = step\nprint('training success')\n"}
    done, report = locate(tmp_path, {"train.py": [("step * 0.1", "step * 0.2")]}, files)
    assert done.returncode == 1 and report["location"]["test"]["code"] == "loss = 2.5 - step * 0.2", done.stdout


LEFT_OVER = '''
import random


def batches(size):
    for epoch in range(9):
        waiting = []
        for number in random.Random(epoch).sample(range(5), 5):
            waiting.append(number)
            if len(waiting) == size:
                yield waiting
                waiting = []


weight = 0.5
for step, batch in zip(range(1, 7), batches(2)):
    loss = (weight * batch[0] - batch[1]) ** 2
    weight -= 0.01 * loss
    print(f"iteration {step} | lm loss: {loss:.12f} | grad norm: 1.0")
print("training success")
'''


def test_a_loop_in_which_the_sides_are_out_of_step(tmp_path):
    changes = [("    for epoch in range(9):\n        waiting = []\n", "    waiting = []\n    for epoch in range(9):\n")]
    done, report = locate(tmp_path, {"train.py": changes}, {"train.py": LEFT_OVER})
    assert done.returncode == 1 and report["location"]["test"]["code"] in ("waiting = []", "for epoch in range(9)"), report["location"]


KEPT = '''
import torch

torch.manual_seed(0)
weight, data = torch.ones(3, requires_grad=True), torch.randn(4, 3)


def batches(data):
    for rows in ([0, 1], [2, 3], [1, 2], [0, 3]):
        batch = data[rows]
        yield batch


def update(batch):
    loss = (batch @ weight - 1.0).square().mean()
    (gradient,) = torch.autograd.grad(loss, [weight])
    with torch.no_grad():
        weight.sub_(gradient, alpha=0.1)
    return loss.item(), gradient.norm().item()


for step, (loss, norm) in enumerate([update(batch) for batch in batches(data)], 1):
    print(f"iteration {step} | lm loss: {loss:.10f} | grad norm: {norm:.10f}", flush=True)
print("training success")
'''


def test_what_one_side_alone_stored_between_two_batches(tmp_path):
    done, report = locate(tmp_path, {"train.py": [("yield batch\n", "yield batch\n        data[rows] = 0.9 * batch\n")]}, {"train.py": KEPT})
    assert done.returncode == 1 and report["location"]["test"]["code"].startswith("data[rows] ="), report["location"]


HARMLESS = {
    "comments and order": {"train.py": [("def penalty", "# the usual\n\n\ndef penalty")]},
    "renamed local": {"layers.py": [("inner = self.weight * value * self.scale\n        inner = inner + self.shift\n        return activate(inner)",
                                     "x = self.weight * value * self.scale\n        x = x + self.shift\n        return activate(x)")]},
    "extracted helper": {"train.py": [("def forward(", "def average(values):\n    return sum(values) / len(values)\n\n\ndef forward("),
                                      ("    mean = sum(hidden) / len(hidden)\n", "    mean = average(hidden)\n")]},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_changes_are_consistent(tmp_path, name):
    done, report = locate(tmp_path, HARMLESS[name])
    assert done.returncode == 0 and report["verdict"] == "consistent" and report["reruns"] == 0


def test_harmless_changes_beside_a_bug_are_not_named(tmp_path):
    changes = {"train.py": HARMLESS["extracted helper"]["train.py"] + [("2.0 * mean + 2.0", "2.0 * mean + 2.2")], **{"layers.py": HARMLESS["renamed local"]["layers.py"]}}
    done, report = locate(tmp_path, changes)
    assert done.returncode == 1 and report["location"]["test"]["code"].startswith("gradient = 2.0 * mean + 2.2"), report["location"]
