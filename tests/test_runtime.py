"""Section 10, the runtime of the prints under real torch: it sees what is there and changes nothing."""

import ast
import glob
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time

import numpy
import pytest
import torch

import precision_comparer as pc
from injecting import TAG, equip, new_runtime, printed, run_here, run_there


def plain_run(text):
    """The names of a text that was run without prints."""
    names = {"__name__": "m"}
    exec(compile(text, "plain", "exec"), names)
    return names


@pytest.fixture
def traced(tmp_path, capsys):
    """Run a text with prints in this process."""
    return lambda text, **settings: run_here(tmp_path, capsys, text, **settings)


# --- It changes nothing ---

TRAINING = '''
import copy, random
import numpy, torch
torch.manual_seed(0); random.seed(0); numpy.random.seed(0)

class Block(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(size)
        self.wide = torch.nn.Linear(size, 4 * size)
        self.back = torch.nn.Linear(4 * size, size)
        self.scale = torch.nn.Parameter(torch.ones(size))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        h = self.norm(x)
        h = torch.nn.functional.dropout(self.wide(h).relu_(), 0.1)
        view = h[:, :4]
        view.mul_(1.5)
        out = self.back(h) * self.scale
        return x + out

model = torch.nn.Sequential(Block(8), Block(8))
average = copy.deepcopy(model)
opt = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
schedule = torch.optim.lr_scheduler.StepLR(opt, 2)
losses, norms = [], []
for step in range(6):
    x = torch.randn(16, 8) * random.random() + numpy.random.rand()
    y = model(x)
    loss = y.pow(2).mean() + torch.utils.checkpoint.checkpoint(model[0], x, use_reentrant=False).abs().mean()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    opt.step()
    opt.zero_grad(set_to_none=step % 2 == 0)
    schedule.step()
    with torch.no_grad():
        for old, new in zip(average.parameters(), model.parameters()): old.lerp_(new, 0.1)
    losses.append(loss.item().hex()); norms.append(norm.item().hex())

versions = [p._version for p in model.parameters()] + [b._version for b in model.buffers()]
weights = [v.hex() for p in list(model.parameters()) + list(average.parameters()) for v in p.detach().flatten().tolist()]
drawn = (torch.rand(1).item(), random.random(), numpy.random.rand())
mode = (torch.is_grad_enabled(), y.grad_fn is not None, [p.requires_grad for p in model.parameters()])
RESULT = (losses, norms, versions, weights, drawn, mode)
'''


def test_a_training_is_bitwise_the_same(traced):
    wanted, found = plain_run(TRAINING)["RESULT"], traced(TRAINING, window=[0, 6])
    assert found.names["RESULT"] == wanted and not found.errors
    assert {"i", "o", "e", "r", "h", "t", "d", "g", "p", "S", "s", "u"} <= {r.kind for r in found.records} and len(found.records) > 500


HOSTILE = '''
import collections, functools, types
calls = []

def note(name):
    calls.append(name)
    raise RuntimeError("a print must not call " + name)

class Meta(type):
    def __getattribute__(cls, name): return type.__getattribute__(cls, name) if name.startswith("__") and name not in ("__name__", "__module__", "__mro__") else note("Meta." + name)
    def __instancecheck__(cls, other): note("instancecheck")
    def __subclasscheck__(cls, other): note("subclasscheck")
    def __eq__(cls, other): note("Meta.eq")
    __hash__ = type.__hash__

class Hostile(metaclass=Meta):
    def __init__(self): object.__setattr__(self, "x", 1)
    def __getattr__(self, name): note("getattr " + name)
    def __getattribute__(self, name): note("getattribute " + name)
    def __repr__(self): note("repr")
    def __str__(self): note("str")
    def __eq__(self, other): note("eq")
    def __hash__(self): note("hash")
    def __len__(self): note("len")
    def __iter__(self): note("iter")
    def __bool__(self): note("bool")
    def __contains__(self, item): note("contains")
    def __getitem__(self, key): note("getitem")
    def __index__(self): note("index")
    def __float__(self): note("float")
    def __reduce_ex__(self, version): note("reduce")
    @property
    def __class__(self): note("class")
    @property
    def __dict__(self): note("dict")

class Lazy:
    def __init__(self): self.made = 0
    @property
    def value(self): calls.append("property"); return 5
    @functools.cached_property
    def cached(self): calls.append("cached"); return 6
    def __getattr__(self, name): calls.append("getattr"); return 7

class L(list):
    def __iter__(self): note("L.iter")
    def __len__(self): note("L.len")
    def __getitem__(self, key): note("L.getitem")

class D(dict):
    def __iter__(self): note("D.iter")
    def __len__(self): note("D.len")
    def __getitem__(self, key): note("D.getitem")
    def __missing__(self, key): note("D.missing")
    def items(self): note("D.items")
    def get(self, *a): note("D.get")

class I(int):
    def __repr__(self): note("I.repr")
    def __index__(self): note("I.index")
    def __abs__(self): note("I.abs")
    def __lt__(self, other): note("I.lt")

class S(str):
    def __repr__(self): note("S.repr")
    def __str__(self): note("S.str")
    def encode(self, *a): note("S.encode")

class F(float):
    def __repr__(self): note("F.repr")
    def __float__(self): note("F.float")

class P(functools.partial):
    def __getattribute__(self, name): note("P." + name)

class Callable:
    def __call__(self): return 3
    def __getattr__(self, name): note("Callable." + name)

class Slots:
    __slots__ = ("a", "b")

Named = collections.namedtuple("Named", "a b")

class N(Named):
    def __getattribute__(self, name): note("N." + name)

class Module(types.ModuleType):
    def __getattr__(self, name): note("Module." + name)

def show(thing, *rest, **named):
    other = thing
    pair = (thing, other)
    return pair

def run():
    me = []; me.append(me)
    ring = {"k": None}; ring["k"] = [ring]
    slots = Slots(); slots.a = slots
    lazy = Lazy()
    proxy = types.SimpleNamespace(h=Hostile(), me=me)
    odd = {Slots(): 1, None: 2, (1, "a"): 3, b"x": 4, 2.5: 5, frozenset("qwertzuiop"): 6}
    every = [Hostile(), lazy, L([1, Hostile()]), D(a=Hostile()), I(3), S("text"), F(2.5), me, ring, slots, proxy, odd, P(show, 1), functools.partial(Callable(), flag=True),
             N(1, Hostile()), Module("m"), 10 ** 6000, -(10 ** 60), 1 << 60, "x" * 10 ** 6, "\\ud800 lone", b"\\xff" * 100, bytearray(9), memoryview(b"ab"), range(10 ** 12), iter([1]), (i for i in "ab"),
             Ellipsis, NotImplemented, slice(1, 2), float("nan"), float("-inf"), -0.0, complex(1, float("nan")), {1, "a", None}, frozenset([2]), collections.deque([me], 3),
             collections.OrderedDict(a=1), collections.Counter("aab"), collections.ChainMap({}), collections.UserDict(a=1), collections.UserList([1]), types.MappingProxyType({}),
             Hostile, Lazy.value, type(None), len, show, lambda: 0, lazy.__init__, open, __import__("os"), Exception("e"), [0] * 100000, [[1.5] * 17] * 20, {str(i): i for i in range(1000)}]
    for thing in every:
        held = show(thing, lazy, h=thing)
        got = lazy.made
        again = proxy.h
    return len(every)

COUNT = run()
'''


def test_no_object_is_asked(traced):
    found = traced(HOSTILE)
    assert found.names["calls"] == [] and not found.errors and found.names["COUNT"] > 50
    texts = [json.dumps(r.values) for r in found.records]
    assert len(texts) > 500 and any("Hostile" not in text and '["f", "nan"]' in text for text in texts)


def test_huge_containers_cost_little(traced):
    text = "def f(a):\n    b = a\n    return b\nbig = [1] * 10_000_000\nsame = tuple(big)\nnested = [big] * 20\ntable = dict.fromkeys(range(1_000_000), 1)\nkeys = set(table)\n"
    text += "import time\nstart = time.process_time()\nfor thing in (big, same, nested, table, keys): f(thing)\nSECONDS = time.process_time() - start\n"
    found = traced(text)
    assert not found.errors and found.names["SECONDS"] < 2
    assert [v[:2] for v in found.values("b", "o")] == [["A", 10_000_000]] * 2 + [["l", 20], ["m", 1_000_000], ["l", 1_000_000]]


def test_a_set_in_a_key_is_told_in_any_process_alike(tmp_path):
    text = "def f(table, group):\n    return table\nf({frozenset('qwertz'): 1}, {frozenset('asdfgh'), 'zz'})\n"
    values = {json.dumps([r.values for r in run_there(tmp_path, text, env={"PYTHONHASHSEED": seed}).records]) for seed in "123"}
    assert len(values) == 1


KEPT = '''
import gc, weakref
import torch
gc.disable()
gone = []

def work(x):
    h = x * 2
    watch(h)
    h = h + 1
    gone.append([r() is None for r in refs])
    parts = [h, h * 2]
    watch(parts[1])
    del parts[1]
    gone.append([r() is None for r in refs])
    return h

def watch(t):
    refs.append(weakref.ref(t))

refs = []
w = torch.ones(3, requires_grad=True)
for i in range(2):
    out = work(w)
    watch(out)
    model = torch.nn.Linear(3, 3)
    watch(model.weight)
    loss = model(out).sum()
    loss.backward()
    del model, loss
    out = None
    gone.append([r() is None for r in refs])
gc.enable()
'''


def test_no_reference_is_kept(traced):
    found = traced(KEPT)
    wanted = plain_run(KEPT)["gone"]
    assert found.names["gone"] == wanted and all(wanted[-1]) and not found.errors and len(found.records) > 30


def test_memory_is_given_back_and_weights_can_be_swapped(traced):
    text = """
import torch
torch.__future__.set_swap_module_params_on_conversion(True)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
    def forward(self, x):
        w = self.inner.weight
        return self.inner(x) + w.sum()
def convert(model, weight):
    model = model.to(torch.float64)
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items()})
    return model
try:
    net = Net()
    y = net(torch.ones(2, 3))
    del y
    net = convert(net, net.inner.weight)
    RESULT = net.inner.weight.dtype
finally:
    torch.__future__.set_swap_module_params_on_conversion(False)
"""
    assert plain_run(text)["RESULT"] == torch.float64
    found = traced(text)
    assert found.names["RESULT"] == torch.float64 and not found.errors


def test_no_warning_is_added(tmp_path):
    text = """
import torch
def f(x, y):
    z = x.T
    s = torch.save(y.detach(), buffer)
    q = y.storage_offset()
    return z
import io
buffer = io.BytesIO()
w = torch.ones(2, 3, requires_grad=True)
y = w * 2
f(torch.ones(2, 3), y)
torch.save(y, buffer)
sparse = torch.eye(3).to_sparse()
g = y.grad_fn
"""
    found = run_there(tmp_path, text, options=["-W", "error"])
    assert not found.errors and found.names["stderr"] == ""


# --- It sees what is there ---

NUMBERS = [0.5, -2.0, 3.25, 0.0, 8.0, -0.125]


def summary_of(traced, expression):
    """How the value of an expression is printed."""
    found = traced(f"import numpy, torch\ndef f(v):\n    return v\nf({expression})\n")
    assert not found.errors, found.errors
    return found.values("return", "r")[0]


@pytest.mark.parametrize("expression, dtype, shape, low, high", [
    *[(f"torch.tensor({NUMBERS}, dtype=torch.{t})", t, [6], -2.0, 8.0) for t in ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")],
    *[(f"torch.tensor([[3, 0], [-7, 100]], dtype=torch.{t})", t, [2, 2], -7, 100) for t in ("int8", "int16", "int32", "int64")],
    *[(f"torch.tensor([3, 0, 200]).to(torch.{t})", t, [3], 0, 200) for t in ("uint8", "uint16", "uint32", "uint64")],
    ("torch.tensor([True, False])", "bool", [2], 0, 1), ("torch.tensor(2.5)", "float32", [], 2.5, 2.5), ("torch.tensor([1+2j, -3j])", "complex64", [2], -3.0, 2.0),
    ("torch.tensor([1+2j, -3j]).conj()", "complex64", [2], -2.0, 3.0), ("torch.tensor([1+2j, -3j]).conj().imag", "float32", [2], -2.0, 3.0), ("torch.tensor([1+2j], dtype=torch.complex32)", "complex32", [1], 1.0, 2.0),
    ("torch.arange(6.).reshape(2, 3).t()", "float32", [3, 2], 0.0, 5.0), ("torch.ones(3).expand(4, 3)", "float32", [4, 3], 1.0, 1.0), ("torch.eye(3).to_sparse()", "float32", [3, 3], 1.0, 1.0),
    ("torch.tensor([7, 200], dtype=torch.uint8).view(torch.float4_e2m1fn_x2)", "float4_e2m1fn_x2", [2], 7, 200), ("torch.tensor([1.0, 4.0]).to(torch.float8_e8m0fnu)", "float8_e8m0fnu", [2], 1.0, 4.0),
    ("torch.nested.nested_tensor([torch.ones(2), torch.ones(3) * 2], layout=torch.jagged)", "float32", [2], 1.0, 2.0), ("torch.nn.Parameter(torch.ones(2))", "float32", [2], 1.0, 1.0),
    ("numpy.array([1.5, -2.0], 'float16')", "float16", [2], -2.0, 1.5), ("numpy.array([[1, 2]], 'int32')[:, ::-1]", "int32", [1, 2], 1, 2), ("numpy.array([1+2j])", "complex128", [1], 1.0, 2.0),
    ("numpy.asfortranarray(numpy.arange(6.).reshape(2, 3))", "float64", [2, 3], 0.0, 5.0), ("numpy.ma.masked_array([1.0, 9.0], [0, 1])", "float64", [2], 1.0, 9.0),
])
def test_dtypes_and_layouts(traced, expression, dtype, shape, low, high):
    kind, found, size, stats, samples, *_ = summary_of(traced, expression)
    assert (kind, found, size) == ("T", dtype, shape) and stats[-3:-1] == [low, high] and 0 < len(samples) <= 12


@pytest.mark.parametrize("expression, head", [
    ("torch.empty(0, 3)", ["T", "float32", [0, 3]]), ("torch.ones(2, 3, device='meta')", ["T", "float32", [2, 3]]), ("numpy.empty((0,))", ["T", "float64", [0]]),
    ("torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)", ["T", "quint8", [2]]), ("torch.eye(2).to_sparse_csr()", ["T", "float32", [2, 2]]),
    ("numpy.array([object()])", ["T", "object", [1]]), ("numpy.array(['a', 'b'])", ["T", "<U1", [2]]), ("numpy.float32(1.5)", ["f", "1.5"]), ("numpy.int8(3)", ["n", "3"]),
    ("torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])", ["T", "float32"]),
    ("torch.float16", ["d", "torch.float16"]), ("torch.device('cpu')", ["d", "cpu"]), ("torch.Size([2, 3])", ["l", 2]), 
])
def test_values_without_statistics(traced, expression, head):
    assert summary_of(traced, expression)[: len(head)] == head


def test_statistics_are_right(traced):
    values = torch.tensor([[3.0, -1.0], [2.0, float("inf")], [float("nan"), -4.0]])
    _, _, _, (total, norm, low, high, _), _, grad, specials = summary_of(traced, f"torch.tensor({values.tolist()}, requires_grad=True)".replace("nan", "float('nan')").replace("inf", "float('inf')"))
    assert (total, norm, low, high, grad, specials) == (0.0, pytest.approx(30**0.5), -4.0, 3.0, True, [1, 1, 0])
    torch.manual_seed(0)
    big = torch.randn(3, 1500, 1000)
    runtime = new_runtime()
    whole = runtime.summary(big, 0)
    assert whole[3][:4] == pytest.approx([big.double().sum().item(), big.double().norm().item(), big.min().item(), big.max().item()], rel=1e-12)
    assert runtime.summary(big.transpose(0, 2).contiguous().transpose(0, 2), 0)[3] == pytest.approx(whole[3], rel=1e-11)  # another layout in memory
    assert runtime.summary(big.numpy(), 0)[3] == pytest.approx(whole[3], rel=1e-11)
    moved = runtime.summary(big.flip(0), 0)
    assert moved[3][:4] == pytest.approx(whole[3][:4], rel=1e-11) and abs(moved[3][4] - whole[3][4]) > 1e-3 * whole[3][1]


def test_a_hundred_million_numbers_in_bounded_time_and_memory():
    import resource

    runtime = new_runtime()
    big = torch.ones(100_000_000, dtype=torch.int8)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    found = runtime.summary(big, 0)
    seconds, grown = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found[3][:3] == [100_000_000, 1, 1] and seconds < 20 and grown < 600_000


# --- When it prints ---

STEPS = '''
import torch
def model(x, w):
    y = x * w
    return y.sum()
w = torch.ones(3, requires_grad=True)
opt = torch.optim.SGD([w], lr=0.1)
for step in range(8):
    loss = model(torch.ones(3) * step, w)
    opt.zero_grad()
    loss.backward()
    opt.step()
'''


def test_only_the_window_of_steps_is_printed(traced):
    found = traced(STEPS, window=[3, 5], init=False, soft=0)
    steps = {r.step for r in found.records if r.kind in "iotehryd"}
    assert steps == {3, 4, 5} and sum(r.kind == "u" for r in found.records) == 8
    assert [v[3][0] for v in found.values("y", "o")] == pytest.approx([3 * k * w for k, w in zip((3, 4, 5), (0.7, 0.4, 0.0))], abs=1e-6)


@pytest.mark.parametrize("variable", ["RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"])
@pytest.mark.parametrize("own, prints", [("0", False), ("3", True)])
def test_only_the_wanted_rank_prints(traced, monkeypatch, variable, own, prints):
    monkeypatch.setenv(variable, own)
    found = traced(STEPS, rank=3)
    assert ({r.rank for r in found.records} == {"3"} and len(found.records) > 20) if prints else [r.kind for r in found.records] == ["u"]


def test_volume_is_capped(traced):
    text = "def f(i):\n    j = i + 1\n    return j\nfor i in range(5000): f(i)\n"
    assert len(traced(text, total=300).records) <= 301
    found = traced(text, per_site=10)
    counts = {}
    for r in found.records:
        counts[r.kind, r.site] = counts.get((r.kind, r.site), 0) + 1
    assert max(counts.values()) == 10 and found.names["i"] == 4999


# --- Threads and processes ---

def test_threads(traced):
    text = """
import threading
def work(k):
    total = started.wait() * 0
    for i in range(50): total += i * k
    return total
started = threading.Barrier(4)
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""
    found = traced(text)
    results = {r.thread: r.values["return"] for r in found.records if r.kind == "r"}
    assert sorted(results.values()) == [0, 1225, 2450, 3675] and len(results) == 4 and not found.errors


WORKERS = '''
import multiprocessing, os, sys
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, index):
        item = torch.full((4,), float(index))
        return item

def child(x, queue):
    y = x[:3] * 2
    queue.put(float(y[0]))
    return y

def main():
    big = torch.ones(3_000_000)
    ready = (big + 1).sum()  # starts the threads of torch, which no forked process has
    seen = [batch.sum().item() for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2)]
    got = []
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=child, args=(big if method == "fork" else big[:3].clone(), queue))
        process.start()
        process.join(20)
        got.append(queue.get() if process.exitcode == 0 else process.exitcode)
        process.kill()
    print("RESULT", seen, got)

if __name__ == "__main__":
    main()
'''


def test_data_loader_workers_and_children(tmp_path):
    found = run_there(tmp_path, WORKERS)
    assert "RESULT [4.0, 20.0, 36.0] [2.0, 2.0]" in found.out and not found.errors
    by_pid = {}
    for r in found.records:
        by_pid.setdefault(r.pid, set()).update(r.values)
    assert len(by_pid) == 5 and sum("item" in names for names in by_pid.values()) == 2 and sum("y" in names for names in by_pid.values()) == 2


SENT = """
def task(n):
    total = 0
    for i in range(n):
        if i: total += i
    return total
"""


def test_a_function_sent_to_a_process_without_the_code_works_there(tmp_path):
    """`cloudpickle` sends a function of the main script by value, with the prints that it calls."""
    equip(tmp_path, SENT)
    sender = "import cloudpickle, runpy, sys; names = runpy.run_path('m.py', run_name='other'); open('sent', 'wb').write(cloudpickle.dumps(names['task']))"
    receiver = "import cloudpickle, sys; print(cloudpickle.load(open(sys.argv[1], 'rb'))(5), [m for m in sys.modules if m.startswith('_pc')])"
    subprocess.run([sys.executable, "-c", sender], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run([sys.executable, "-c", receiver, str(tmp_path / "sent")], cwd="/", capture_output=True, text=True)
    assert done.stdout == "10 []\n", done.stderr[-2000:]


# --- Compilers, tracers, modes ---

MODES = '''
import copy
import torch
from torch.fx.experimental.proxy_tensor import make_fx
graphs = []

def counting(graph, inputs):
    graphs.append(len(graph.graph.nodes))
    return graph.forward

def body(x, w):
    y = x * w
    if y.shape[0] > 1: y = y + 1
    for _ in range(2):
        y = torch.tanh(y)
    return y.sum()

@torch.jit.script
def scripted(x):
    y = x * 2
    return y + 1

class Small(torch.nn.Module):
    def forward(self, x):
        y = x * 3
        return y

def traced_by_jit(x):
    y = x * 2
    return y + 1

x, w = torch.arange(3.0), torch.ones(3, requires_grad=True)
compiled = torch.compile(body, backend=counting, fullgraph=True)
RESULT = [compiled(x, w).item()]
RESULT.append(len(graphs))
RESULT.append(scripted(x).tolist())
RESULT.append(torch.jit.script(Small())(x).tolist())
RESULT.append([node.kind() for node in torch.jit.trace(traced_by_jit, x).graph.nodes()])
RESULT.append([node.op for node in torch.fx.symbolic_trace(traced_by_jit).graph.nodes])
RESULT.append([str(node.target) for node in make_fx(traced_by_jit)(x).graph.nodes])
RESULT.append(torch.vmap(body)(torch.ones(2, 3), torch.ones(2, 3)).tolist())
RESULT.append(torch.func.grad(body)(x, w.detach()).tolist())
RESULT.append([str(node.target) for node in torch.export.export(Small(), (x,)).graph.nodes])
with torch.inference_mode():
    RESULT.append(body(x, w).item())
with torch.autocast("cpu", torch.bfloat16):
    RESULT.append((x[None] @ w.reshape(3, 1)).dtype)
with torch.device("meta"):
    m = torch.nn.Linear(2, 2)
    RESULT.append(m.weight.device.type)
with torch.autograd.detect_anomaly(check_nan=False):
    y = body(x, w)
    y.backward()
RESULT.append(w.grad.tolist())
RESULT.append(copy.deepcopy(Small())(x).tolist())
'''


def test_compilers_tracers_and_modes_see_the_same_code(traced):
    plain = plain_run(MODES.replace("@torch.jit.script\n", "").replace("torch.jit.script(Small())", "Small()"))  # which has no source file to compile
    found = traced(MODES)
    assert found.names["RESULT"] == plain["RESULT"] and found.names["graphs"] == plain["graphs"] and not found.errors


# --- Trainings without torch ---

PURE = '''
import random
random.seed(3)
def grad(w, x): return [2 * (a * b) * b for a, b in zip(w, x)]
w = [0.5, -1.0]
for step in range(4):
    x = [random.random(), 1.0]
    g = grad(w, x)
    w = [a - 0.1 * b for a, b in zip(w, g)]
print("RESULT", [v.hex() for v in w], random.random().hex())
'''
ARRAYS = '''
import numpy as np
rng = np.random.default_rng(0); np.random.seed(1)
def forward(x, w):
    h = x @ w
    h *= 2
    return np.tanh(h)
w = rng.normal(size=(3, 2))
for step in range(4):
    x = rng.normal(size=(4, 3)).astype("float32")
    out = forward(x, w)
    w -= 0.1 * (x.T @ (1 - out ** 2))
record = np.zeros(1, [("a", "O")])[0]
shown = record
print("RESULT", [v.hex() for v in w.ravel().tolist()], float(rng.normal()).hex(), np.random.rand().hex())
'''


@pytest.mark.parametrize("text", [PURE, ARRAYS], ids=["pure", "numpy"])
def test_trainings_without_torch(tmp_path, text):
    plain = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    found = run_there(tmp_path, text + "import sys\nassert 'torch' not in sys.modules\n")
    assert [line for line in found.out.splitlines() if line.startswith("RESULT")] == plain.stdout.splitlines()
    assert len(found.values("w", "o")) == 5 and not found.errors  # before the loop, and four steps


OLD_FORMS = """
import asyncio
class Layer:
    __slots__ = ("w",)
    def __init__(self, w): self.w = w
    def __call__(self, x):
        if (y := self.w * x) > 3: return y
        with open("/dev/null") as source: pass
        return -y
def numbers(n):
    for i in range(n): got = yield i
async def later(x):
    y = await asyncio.sleep(0, x)
    return y
def run():
    layer, found = Layer(2), {}
    for i in numbers(4): found[i], *rest = layer(i), i
    try: found[9]
    except KeyError as error: found["e"] = str(error)
    finally: found["l"] = asyncio.run(later(5))
    return found
print("RESULT", run())
"""


def interpreters():
    """Every Python from 3.8 on that can be started here, this one at least."""
    found = {sys.version_info[:2]: sys.executable}
    for minor in range(8, 20):
        for path in [shutil.which(f"python3.{minor}"), *glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python"))]:
            if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
                found.setdefault((3, minor), path)
    return found


def test_the_prints_run_on_every_python(tmp_path):
    equip(tmp_path, OLD_FORMS)
    results = {}
    for version, path in interpreters().items():
        done = subprocess.run([path, "-I", "m.py"], cwd=tmp_path, capture_output=True, text=True)
        found = printed(done.stdout, TAG)
        assert not found.errors and len(found.records) > 30, (version, done.stderr[-1000:])
        results[version] = ([line for line in done.stdout.splitlines() if line.startswith("RESULT")], [r.values for r in found.records])
    assert results[sys.version_info[:2]][0] == ["RESULT {0: 0, 1: -2, 2: 4, 3: 6, 'e': '9', 'l': 5}"]
    assert all(found == results[sys.version_info[:2]] for found in results.values())


# --- msprobe ---

DUMPED = '''
import sys
import torch
from msprobe.pytorch import PrecisionDebugger
torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
    def forward(self, x):
        h = torch.relu(self.inner(x)) * 2
        h = h.reshape(-1)[None]
        return torch.nn.functional.softmax(h, -1).sum()

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
debugger = PrecisionDebugger(dump_path=sys.argv[1] if len(sys.argv) > 1 else "dump", task="statistics", level="L1", step=[0, 1])
for step in range(2):
    debugger.start(model=net)
    loss = net(torch.ones(2, 4))
    loss.backward()
    opt.step()
    opt.zero_grad()
    debugger.stop()
    debugger.step()
print("training success")
'''


def test_a_dump_has_the_same_rows(tmp_path):
    dumps = {}
    (tmp_path / "plain").mkdir()
    (tmp_path / "printed").mkdir()
    (tmp_path / "plain" / "m.py").write_text(DUMPED)
    equip(tmp_path / "printed", DUMPED, window=[0, 2])
    runs = {name: subprocess.Popen([sys.executable, "m.py"], cwd=tmp_path / name, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for name in ("plain", "printed")}
    for name, process in runs.items():
        out, err = process.communicate(timeout=200)
        assert "training success" in out, err[-2000:]
        dumps[name] = {}
        for path in sorted((tmp_path / name).rglob("*.json")):
            if path.name in ("dump.json", "stack.json"):
                found = json.loads(path.read_text())
                frames = re.findall(r"/(m\.py, line \d+, in \w+)", path.read_text())  # the code in a frame has the prints in it
                dumps[name][path.parts[-3], path.name] = found["data"] if path.name == "dump.json" else (list(found), frames)
    assert len(dumps["plain"]) == 4 and dumps["printed"] == dumps["plain"]
    assert len(dumps["plain"]["step1", "dump.json"]) > 10 and len(dumps["plain"]["step1", "stack.json"][1]) > 2
    assert len(printed(out, TAG).records) > 30


def test_the_shipped_text_is_python_3_8():
    tree = ast.parse(pc.runtime_source(), feature_version=(3, 8))
    ast.parse(pc.LOADER.format(tag=TAG, relative="'r'", absolute="'a'"), feature_version=(3, 8))
    methods = {n.func.attr for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)}
    assert not methods & {"removeprefix", "removesuffix", "bit_count", "is_relative_to"}
    top = {a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    bound = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)} | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in sys.stdlib_module_names}
    assert used - bound <= top <= sys.stdlib_module_names


# --- What a person reads of it ---

LINEAR = torch.nn.Linear(2, 2)
ADAM = torch.optim.AdamW(LINEAR.parameters(), lr=0.25)
SHOWN = {
    "a number": (0.5, 0.5), "nothing": (None, None), "a text": ("gelu", "gelu"),
    "a long text": ("x" * 61, "x" * 40 + "…（共 61 个字符"), "a large integer": (1 << 70, "0x4"), "a complex": (1 + 2j, "(1+2j)"),
    "many numbers": ([1.0] * 20 + [2.0], "[21 个数] sum=22"), "a list": ([1, "a", None], "[1, a, None]"), "a dictionary": ({"lr": 0.5, "on": True}, "(lr=0.5, on=True)"),
    "a tensor": (torch.tensor([1.0, math.nan]), "nan/inf/-inf=[1, 0, 0]"), "an array": (numpy.ones(3), "float64[3] sum=3"), "a dtype": (torch.bfloat16, "torch.bfloat16"),
    "weights": (LINEAR, "Linear(.weight=float32[2, 2]"), "an optimizer": (ADAM, "lr=0.25"), "a slice": (slice(-65, None), "[-65, None, None]"), "a range": (range(3), "range(0, 3)"),
    "random numbers": (torch.Generator(), "随机数状态 "),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_every_form_of_a_value_is_text_for_people(name):
    item, wanted = SHOWN[name]
    value = json.loads(json.dumps(new_runtime().summary(item, 0)))
    value = value[2] if isinstance(value, list) and value[0] == "=" else value
    shown = pc.readable(value)
    assert shown == wanted or (isinstance(shown, str) and wanted in shown and '["' not in shown), shown
