"""Section 10: prints are put into source without harm, and taken out again whatever happens."""

import ast
import os
import random
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import precision_comparer as pc
from injecting import TAG, equip, inject, printed

GOLDEN = Path(__file__).parent / "golden" / "inject"


def without_loader(text):
    """The injected text without the long line that loads the runtime."""
    tree = ast.parse(text)
    loader = next(n for n in tree.body if isinstance(n, ast.Expr) and ast.unparse(n).startswith("exec("))
    line = text.split("\n")[loader.lineno - 1].encode()
    return text.replace(line[loader.col_offset : loader.end_col_offset].decode(), "LOADER")


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.py")), ids=lambda p: p.stem)
def test_golden_pairs(path):
    _, data, _, reason = inject(path.read_bytes())
    expected = path.with_suffix(".expected").read_text()
    assert not reason and without_loader(data.decode()) == expected


TRICKY = '''# -*- coding: utf-8 -*-
from __future__ import annotations
import asyncio
名字 = "值"; other = 3

def unbound(c, y0=2):
    if y0 > 5:
        y = 1
    return (y if c else 0)

def walrus(n):
    while (m := n - 1) > 0: n = m
    return m

def caught(v):
    try:
        if v[3]: return 1
    except IndexError as e:
        kind = type(e).__name__
        return kind
    finally:
        v.append(9)

def gen(n):
    for i in range(n):
        got = yield i
        if got: yield got * 2

def outer(k):
    total = 0
    def inner(z):
        nonlocal total
        total += z
        return total
    add = lambda q: inner(q) + k
    return [add(i) for i in range(3)], {a: b for a, b in zip("ab", (1, 2))}, total

def match_it(v):
    match v, 1:
        case ([a, *rest], 1): return a, rest
        case _: return None

class C:
    __slots__ = ("w", "__p")
    def __init__(self): self.w = [1]; self.__p = 4
    def step(self): self.w[0] += self.__p; del self.w[1:]; return self
    @property
    def loud(self): raise RuntimeError("a print must not call this")

async def coro(x):
    async def inner(): return x * 2
    a = await inner(); return a

def run():
    g = gen(3); out = [next(g), g.send(5), next(g)]; g.close()
    v = [1]
    return (unbound(0), walrus(4), caught(v), v, out, outer(10), match_it([1, 2]), match_it(3), C().step().step().w, asyncio.run(coro(4)), 名字)
'''


@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.replace("\n", "\r\n"), lambda t: t.replace("    ", "\t")])
def test_injected_code_computes_the_same(tmp_path, change):
    plain, wanted = change(TRICKY), {}
    exec(compile(plain, "plain", "exec"), wanted)
    assert len(equip(tmp_path, plain)) > 30
    done = subprocess.run([sys.executable, "-c", "import m; print('RESULT', m.run())"], cwd=tmp_path, capture_output=True, text=True)
    assert f"RESULT {wanted['run']()}" in done.stdout, done.stdout[-500:] + done.stderr[-2000:]
    found = printed(done.stdout, TAG)
    assert len(found.records) > 60 and not found.errors


def test_the_standard_library_survives():
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    files = [f for f in files if "site-packages" not in f.parts and "lib2to3" not in f.parts and not f.name.startswith("bad")]
    random.Random(1).shuffle(files)
    tried = 0
    for file in files:
        if tried == 300:
            break
        try:
            source, data, kept, reason = inject(file.read_bytes())
        except (SyntaxError, UnicodeDecodeError, LookupError):
            continue
        tried += 1
        if data is not None:
            assert not reason, (file, reason)
            compile(data, str(file), "exec", dont_inherit=True)
            assert pc.verify(source, data, TAG)
    assert tried == 300


def host_and_files(tmp_path):
    files = {}
    for name, data in (("a.py", b"x = 1\n"), ("\u4e2d/b.py", "# \u4e2d\u6587\r\ny = 2\r\n".encode("gbk")), ("c.py", b"\xef\xbb\xbfz = 3")):
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.chmod(path, 0o640)
        os.utime(path, ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
        files[str(path)] = data
    return pc.LocalHost(), files


def state(files):
    return {p: (Path(p).read_bytes(), os.stat(p).st_mode, os.stat(p).st_mtime_ns) for p in files}


def injected_journal(tmp_path):
    host, files = host_and_files(tmp_path)
    before = state(files)
    journal = pc.Journal(host, str(tmp_path / "code"), TAG)
    host.makedirs(os.path.join(journal.folder, "originals"))
    for path, data in files.items():
        journal.add({path: (data, data + b"# print\n")})
    journal.save()
    journal.apply({path: data + b"# print\n" for path, data in files.items()})
    return host, journal, before


def test_restored_bytes_mode_and_mtime(tmp_path):
    host, journal, before = injected_journal(tmp_path)
    assert state(before) != before
    assert journal.restore() == [] and state(before) == before and not Path(journal.folder).exists()


def test_the_next_start_restores_what_a_kill_left(tmp_path):
    host, journal, before = injected_journal(tmp_path)
    text = Path(journal.folder, "journal.json").read_text().replace(f'"pid": {os.getpid()}', '"pid": 999999999')
    Path(journal.folder, "journal.json").write_text(text)
    left = pc.Journal.leftovers(host, str(tmp_path / "code"))
    assert len(left) == 1 and left[0].restore() == [] and state(before) == before


def test_a_file_edited_meanwhile_is_never_overwritten(tmp_path):
    host, journal, before = injected_journal(tmp_path)
    edited = tmp_path / "code" / "a.py"
    edited.write_text("x = 5  # mine\n")
    conflicts = journal.restore()
    assert len(conflicts) == 1 and str(edited) in conflicts[0] and edited.read_text() == "x = 5  # mine\n"
    assert Path(str(edited) + ".precision_comparer_original").read_bytes() == b"x = 1\n"


def test_the_runtime_is_python_3_8():
    ast.parse(pc.runtime_source(), feature_version=(3, 8))


TRAINING = '''
import torch
torch.manual_seed(0)

def block(w, x):
    h = torch.nn.functional.dropout(x @ w, 0.5)
    h.mul_(1.5)
    return torch.tanh(h).sum()

w = torch.randn(4, 4, requires_grad=True)
opt = torch.optim.Adam([w], lr=0.1)
for step in range(3):
    opt.zero_grad()
    loss = block(w, torch.randn(2, 4))
    loss.backward()
    opt.step()
print("RESULT", [v.hex() for v in w.detach().flatten().tolist()], torch.rand(1).item().hex())

@torch.compile(backend="eager", fullgraph=True)
def compiled(x):
    y = x * 2
    z = y + 1
    return z.sum()

print("COMPILED", compiled(torch.ones(3)).item())
'''


def test_prints_do_not_change_a_training_and_a_compiled_function_stays_one_graph(tmp_path):
    plain = subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True)
    equip(tmp_path, TRAINING, window=[0, 3])
    done = subprocess.run([sys.executable, "m.py"], cwd=tmp_path, capture_output=True, text=True)
    wanted = [line for line in plain.stdout.split("\n") if line.startswith(("RESULT", "COMPILED"))]
    assert len(wanted) == 2 and [line for line in done.stdout.split("\n") if line.startswith(("RESULT", "COMPILED"))] == wanted, done.stderr[-2000:]
    kinds = {r.kind for r in pc.parse_records(done.stdout.encode().split(b"\n"), TAG).records}
    assert {"i", "o", "e", "r", "d", "S", "s"} <= kinds
