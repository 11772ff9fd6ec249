"""Section 8: what is read from the user's code before anything is printed."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

import precision_comparer as pc


def funcs_of(text):
    return {func.qualname: func for func in pc.parse_func_for_code("m.py", text)}


def statement(line, before="", params="a, b, self, x"):
    """The last statement of a function that holds `before` and `line`."""
    body = "".join(f"    {part}\n" for part in (before + "\n" + line).strip("\n").split("\n"))
    return funcs_of(f"def f({params}):\n{body}")["f"].statements[-1]


def names(paths):
    return [str(path) for path in paths]


# --- Functions and statements ---

SHAPES = '''"""Doc."""
import os
@deco
class Outer:
    level = 3
    def method(self, a, /, b, *rest, c=1, **more):
        """Doc."""
        def inner(): return a
        class Local:
            def deep(self): return 1
        return inner
async def co(): return 1
if os.sep:
    def chosen(): return 2
for i in range(2): total = i
f = lambda q: q + 1
'''


def test_every_function_is_found_with_its_place_and_parameters():
    funcs = funcs_of(SHAPES)
    assert list(funcs) == ["<module>", "Outer.method", "Outer.method.<locals>.inner", "Outer.method.<locals>.Local.deep", "co", "chosen"]
    method = funcs["Outer.method"]
    assert (method.line, method.end_line, method.class_name) == (6, 11, "Outer")
    assert method.params == ["self", "a", "b", "c", "rest", "more"]
    assert funcs["Outer.method.<locals>.inner"].outer is method and funcs["Outer.method.<locals>.inner"].is_local("a")
    assert [s.text for s in funcs["<module>"].statements] == ["if os.sep", "for i in range(2)", "total = i", "f = lambda q: q + 1"]


@pytest.mark.parametrize("name, expected", [("__w", "_Outer__w"), ("__w__", "__w__"), ("_w", "_w"), ("w", "w")])
def test_private_names_of_a_class(name, expected):
    assert funcs_of("class _Outer:\n    def f(self): return 1\n")["_Outer.f"].mangled(name) == expected


@pytest.mark.parametrize("line, reads, writes", [
    ("y = a + b", ["a", "b"], ["y"]), ("y: int = a", ["a"], ["y"]), ("y += a", ["y", "a"], ["y"]), ("self.w[0] += a", ["self.w[0]", "a"], ["self.w[0]"]),
    ("p, (q, *r) = a", ["a"], ["p", "q", "r"]), ("y = z = a", ["a"], ["y", "z"]), ("x[0] = a", ["x", "a"], ["x[0]"]), ("x[a] = b", ["x", "a", "b"], ["x"]),
    ("self.cache.key = a", ["self.cache", "a"], ["self.cache.key"]), ("self.a = b", ["b"], ["self.a"]), ("y = x['k'].t[1]", ["x['k'].t[1]"], ["y"]),
    ("y = self.norm(a)", ["self.norm", "a"], ["y"]), ("y = x.view(-1)", ["x.view", "x"], ["y"]), ("y = f(a, *b, k=x)", ["f", "a", "b", "x"], ["y"]),
    ("x.mul_(a)", ["x.mul_", "x", "a"], []), ("y = a.t().mm(b)", ["a.t", "a", "b"], ["y"]),
    ("y = a if x else b", ["x", "a", "b"], ["y"]), ("y = x and u", ["x"], ["y"]), ("y = a < b < u", ["a", "b"], ["y"]), ("y = u if x else a", ["x", "a"], ["y"]),
    ("y = [u * a for u in b if u]", ["b", "a"], ["y"]), ("y = {k: v for k, v in b}", ["b"], ["y"]), ("y = lambda u: u + a", ["a"], ["y"]), ("y = f'{a}'", [], ["y"]),
    ("y = (u := a) + b", ["a", "b"], ["y", "u"]), ("y = x and (u := a)", ["x", "a"], ["y"]), ("return a, b", ["a", "b"], []), ("assert a, b", ["a", "b"], []), ("raise a", ["a"], []),
    ("del x[0]", ["x"], []), ("y = yield a", ["a"], ["y"]), ("y = await a", ["a"], ["y"]), ("x[1:2] = a", ["x", "a"], ["x"]), ("y = a[b]", ["a", "b"], ["y"]), ("y = a[:, b]", ["a", "b"], ["y"]),
    ("y = unknown + a", ["unknown", "a"], ["y"]),
])
def test_what_a_statement_reads_and_writes(line, reads, writes):
    """A name that may be unbound (`u` is assigned on one way only) is not among the reads; a global is."""
    text = f"async def f(a, b, self, x):\n    if x: u = 1\n    {line}\n"
    found = funcs_of(text)["f"].statements[-1]
    assert (names(found.reads), names(found.writes)) == (reads, writes)


@pytest.mark.parametrize("line, reads, writes", [
    ("if a > 0: pass", ["a"], []), ("while a: pass", ["a"], []), ("for p, q in a.items(): pass", ["a.items", "a"], ["p", "q"]), ("with f(a) as h, g(b): pass", ["f", "a"], ["h"]),
    ("match a:\n    case 1: pass", ["a"], []), ("for x in x: pass", ["x"], ["x"]),
])
def test_headers(line, reads, writes):
    found = statement(line)
    assert (names(found.reads), names(found.writes), found.is_header) == (reads, writes, True)
    assert "pass" not in found.text and "case" not in found.text


@pytest.mark.parametrize("before, is_bound", [
    ("u = 1", True), ("if x: u = 1", False), ("if x: u = 1\nelse: u = 2", True), ("if x: u = 1\nelse: raise ValueError", True), ("for u in x: pass", False), ("while x: u = 1", False),
    ("with torch.no_grad(): u = 1", True), ("with suppress(E): u = 1", False), ("try: u = 1\nexcept E: pass", False), ("try: u = 1\nexcept E: return", True), ("try: u = 1\nexcept E: u = 2", True),
    ("try: pass\nfinally: u = 1", True), ("try: v = 1\nexcept E: return\nelse: u = 1", True), ("import u", True), ("def u(): pass", True), ("class u: pass", True), ("u = 1\ndel u", False),
    ("try: pass\nexcept E as u: pass", False), ("if (u := x): pass", True), ("match x:\n    case [u]: pass", False), ("u, v = x", True), ("[u for u in x]", False),
    ("u = 1\ndef g():\n    nonlocal u\n    u = 2", False),
])
def test_only_what_is_certainly_bound_is_handed_over(before, is_bound):
    """`x and u` reads `u` on one way only, so the print may ask for it only if it is bound anyway."""
    found = statement("y = x and u", before)
    assert ("u" in names(found.reads)) == is_bound


def test_statement_spans_and_forms():
    found = funcs_of("def f(a):\n    if (a\n            > 1):\n        b = (a +\n             1)\n    return b  # said\n")["f"].statements
    assert [(s.line, s.end_line, s.text, s.shape) for s in found] == [(2, 3, "if a > 1", "if _ > 1"), (4, 5, "b = a + 1", "_ = _ + 1"), (6, 6, "return b", "return _")]


@pytest.mark.parametrize("line, role", [
    ("loss.backward()", "backward"), ("scaler.scale(loss).backward()", "backward"), ("g = torch.autograd.grad(a, b)", "backward"), ("opt.step()", "update"), ("self.optimizers[0].step()", "update"),
    ("torch.nn.utils.clip_grad_norm_(p, 1)", "grads"), ("dist.all_reduce(a)", "collective"), ("x = torch.randn(3)", "random"), ("torch.manual_seed(1)", "random"), ("f(a)", "effect"),
])
def test_roles(line, role):
    assert role in statement(line).roles


@pytest.mark.parametrize("line", ["lr_scheduler.step()", "profiler.step()", "env.step(a)", "pbar.step()"])
def test_not_every_step_is_an_update(line):
    assert "update" not in statement(line).roles


@pytest.mark.parametrize("text, skipped", [
    ("@torch.jit.script\ndef f(a): return a\n", True), ("@triton.autotune(configs=[])\n@triton.jit\ndef f(a): return a\n", True), ("@numba.njit\ndef f(a): return a\n", True),
    ("@jit_fuser\ndef f(a): return a\n", True), ("def f(a): return a\ng = torch.jit.script(f)\n", True), ("class f:\n    def m(self): return 1\nm = f()\ns = torch.jit.script(m)\n", True),
    ("@functools.wraps(g)\ndef f(a): return a\n", False), ("@torch.compile\ndef f(a): return a\n", False), ("@torch.no_grad()\ndef f(a): return a\n", False), ("def f(a): return a\ng = describe(f)\n", False),
])
def test_functions_that_a_compiler_reads_are_skipped(text, skipped):
    funcs = [func for func in funcs_of(text).values() if not func.is_module]
    assert [bool(func.skip_reason) for func in funcs] == [skipped]
    assert all(site.func.is_module for site in pc.plan_sites(list(funcs_of(text).values()))) == skipped


# --- Bytes and text ---

@pytest.mark.parametrize("data, encoding, first", [
    ("x = '中'\n".encode(), "utf-8", "x = '中'"), (b"\xef\xbb\xbfx = 1\r\n", "utf-8", "x = 1"), ("# -*- coding: gbk -*-\nx = '中'\n".encode("gbk"), "gbk", "# -*- coding: gbk -*-"),
    ("#!/usr/bin/python\n# vim: set fileencoding=latin-1 :\nx = 'é'\n".encode("latin-1"), "iso-8859-1", "#!/usr/bin/python"), (b"", "utf-8", ""), ("# coding: big5\ny = '中'\n".encode("big5"), "big5", "# coding: big5"),
])
def test_declared_encodings(data, encoding, first):
    source = pc.decode_source(data)
    assert (source.encoding, source.lines()[0]) == (encoding, first) and source.encode(source.text) == data and source.is_lossless()


@pytest.mark.parametrize("data", ["x = '中'\n".encode("gbk"), b"# coding: nonsense\nx = 1\n", b"\xef\xbb\xbf# coding: gbk\n"])
def test_text_that_python_would_refuse_is_refused(data):
    with pytest.raises((SyntaxError, UnicodeDecodeError, LookupError)):
        pc.decode_source(data)


def test_lines_are_split_where_python_splits():
    source = pc.decode_source("a = 1\r\nb = '\u2028\x0c\x85'\rc = 3\n\x0cd = 4".encode())
    assert source.lines() == ["a = 1", "b = '\u2028\x0c\x85'", "c = 3", "\x0cd = 4"]
    assert [s.line for s in pc.parse_func_for_code("m.py", source.text)[0].statements] == [1, 2, 3, 4]


# --- The tree ---

def tree(tmp_path: Path, files: dict, script="") -> pc.CodeTree:
    for name, text in {**files, "run.sh": script}.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    config = SimpleNamespace(code_path=str(tmp_path / "code"), run_script=str(tmp_path / "code" / "run.sh"))
    return pc.CodeTree(pc.Side("test", config, pc.LocalHost()))


def test_files_that_cannot_be_read_are_named_with_the_line(tmp_path):
    found = tree(tmp_path, {"good.py": "x = 1\n", "bad.py": "x = 1\ndef f(:\n", "raw.py": "x = '中'\n".encode("gbk"), "deep.py": "x = " + "-" * 100_000 + "1\n", "null.py": b"x = 1\0\n"})
    (tmp_path / "code" / "gone.py").symlink_to("nowhere.py")
    found.files.append("gone.py")
    assert [bool(found.load(name)) for name in ("good.py", "bad.py", "raw.py", "deep.py", "null.py", "gone.py")] == [True] + [False] * 5
    assert found.broken["bad.py"].startswith("bad.py 第 2 行 不能解析") and set(found.broken) == {"bad.py", "raw.py", "deep.py", "null.py", "gone.py"}
    assert found.choose(["bad.py", "gone.py"], 100) == ["good.py"]


def test_hidden_and_installed_files_are_no_code_of_the_user(tmp_path):
    found = tree(tmp_path, {"a.py": "", ".venv/lib/b.py": "", "env/site-packages/c.py": "", "p/.hidden/d.py": "", "p/e.py": "", "node_modules/x/f.py": ""})
    assert sorted(found.files) == ["a.py", "p/e.py"]


IMPORTS = {
    "main.py": "import lm.model.block\nfrom lm.data import loader, Batch as B\nfrom lm import ops\ndef late():\n    from lm.late import x\n    return x\nimport torch, json\n",
    "lm/__init__.py": "", "lm/model/__init__.py": "", "lm/model/block.py": "from . import attention\nfrom .attention import Attention\nfrom ..ops import gelu\nfrom ...far import away\n",
    "lm/model/attention.py": "class Attention: pass\n", "lm/data/__init__.py": "from .batch import Batch\n", "lm/data/loader.py": "", "lm/data/batch.py": "class Batch: pass\n",
    "lm/ops/__init__.py": "import importlib\ndef __getattr__(name): return importlib.import_module(name)\n", "lm/ops/fused.py": "gelu = 1\n", "lm/late.py": "x = 1\n", "other/lm_data.py": "", "json_tools.py": "",
}


def test_imports_are_followed_to_the_defining_file(tmp_path):
    found = tree(tmp_path, IMPORTS)
    assert found.imported_files("main.py") == ["lm/model/block.py", "lm/data/loader.py", "lm/data/__init__.py", "lm/data/batch.py", "lm/ops/__init__.py", "lm/late.py"]
    assert found.imported_files("lm/model/block.py") == ["lm/model/attention.py", "lm/ops/__init__.py", "lm/ops/fused.py"]
    assert found.imported_files("lm/late.py") == []


def test_packages_that_import_in_a_circle_end(tmp_path):
    found = tree(tmp_path, {"p/__init__.py": "from .q import thing\n", "p/q/__init__.py": "from .. import thing\nfrom p import thing\n", "main.py": "from p import thing\nfrom p import *\n"})
    assert set(found.imported_files("main.py")) == {"p/__init__.py", "p/q/__init__.py"}


def test_of_two_modules_of_one_name_the_near_one_is_taken(tmp_path):
    found = tree(tmp_path, {"a/main.py": "import utils\nfrom utils import f\n", "a/utils.py": "f = 1\n", "b/utils.py": "f = 2\n", "b/main.py": "import utils\n"})
    assert found.imported_files("a/main.py") == ["a/utils.py"] and found.imported_files("b/main.py") == ["b/utils.py"]


@pytest.mark.parametrize("script, entries", [
    ("#!/bin/bash\ncd $(dirname $0)\npython -u ./train.py --lr 1\n", ["train.py"]), ("torchrun --nproc_per_node=8 \\\n    tools/pretrain_gpt.py \\\n    $ARGS 2>&1 | tee log\n", ["tools/pretrain_gpt.py"]),
    ("python -m torch.distributed.run /opt/code/tools/pretrain_gpt.py\n", ["tools/pretrain_gpt.py"]), ("SCRIPT=tools/../train.py\npython $SCRIPT\n", ["train.py"]), ("python -m tools.pretrain_gpt\n", ["tools/pretrain_gpt.py"]),
    ("python train.py & python eval.py\n", ["train.py", "eval.py"]), ("python /elsewhere/pretrain_gpt.py\n", ["tools/pretrain_gpt.py"]), ("./start\n", ["train.py"]), ("", ["train.py"]),
])
def test_entry_scripts_of_a_run_script(tmp_path, script, entries):
    found = tree(tmp_path, {"train.py": "if __name__ == '__main__': pass\n", "eval.py": "x = 1\n", "tools/pretrain_gpt.py": "x = 1\n", "my_train.py": ""}, script)
    assert found.entry_scripts() == entries


def test_a_run_script_that_is_python_is_the_entry(tmp_path):
    found = tree(tmp_path, {"train.py": "x = 1\n", "other.py": "if __name__ == '__main__': pass\n"})
    found.side.config.run_script = str(tmp_path / "code" / "train.py")
    assert found.entry_scripts() == ["train.py"]


def test_a_small_tree_is_taken_whole_and_of_a_library_what_is_imported(tmp_path):
    files = {"train.py": "import lib.core\nx = 1\n", "lib/__init__.py": "", "lib/core.py": "from lib import import_utils, layer\ny = 1\ndef f(a): return a\n", "lib/layer.py": "def g(a):\n    b = a\n    return b\n",
             "lib/import_utils.py": "def h(): return 1\n", "registry.py": "z = 1\n", "empty.py": "", "docs.py": "import os\n"}
    small = tree(tmp_path / "small", files, "python train.py\n")
    assert small.choose([], 1000)[:4] == ["train.py", "lib/core.py", "lib/import_utils.py", "lib/layer.py"] and "registry.py" in small.choose([], 1000)
    assert small.silent_modules == set()
    large = tree(tmp_path / "large", {**files, **{f"lib/part{i}.py": "q = 1\n" for i in range(310)}}, "python train.py\n")
    assert large.choose([], 1000) == ["train.py", "lib/core.py", "lib/layer.py"]
    assert "lib/core.py" in large.silent_modules and "train.py" not in large.silent_modules
    assert large.choose(["lib/part7.py", "gone.py"], 1000)[0] == "lib/part7.py"


def test_beyond_the_budget_of_a_library_what_the_sides_have_unlike_is_printed(tmp_path):
    body = "def big():\n" + "".join(f"    x{i} = function({i})\n" for i in range(200))
    far = "limit = {0}\ndef schedule(step):\n    return step * {0}\ndef same(step):\n    # {0}\n    return step\n"
    files = {"train.py": "import lib.big, lib.alike, lib.far\n", "lib/__init__.py": "from . import shelved\n", "lib/shelved.py": far.format(2), "lib/big.py": body, "lib/alike.py": body, "lib/far.py": far.format(2) + "class New:\n    def run(self):\n        return 1\n"}
    filler = {f"lib/part{i}.py": "q = 1\n" for i in range(310)}
    baseline = tree(tmp_path / "baseline", {**files, **filler, "lib/far.py": far.format(1), "lib/shelved.py": far.format(1)}, "python train.py\n")
    test = tree(tmp_path / "test", {**files, **filler}, "python train.py\n")
    assert test.choose([], 500) == ["train.py", "lib/big.py"]
    assert test.choose([], 500, baseline) == ["train.py", "lib/big.py", "lib/far.py"]
    assert [f.qualname for f in test.printed("lib/far.py")] == ["schedule", "New.run"] and [f.qualname for f in test.printed("lib/big.py")] == ["big"]
    assert baseline.choose([], 500, test)[-1] == "lib/far.py" and [f.qualname for f in baseline.printed("lib/far.py")] == ["schedule"]


def test_the_budget_ends_the_choice(tmp_path):
    body = "".join(f"x{i} = function(argument, another_argument, keyword={i})\n" for i in range(100))
    files = {f"m{i}.py": f"import m{i + 1}\n" + body * 20 for i in range(6)}
    found = tree(tmp_path, files, "python m0.py\n")
    assert found.choose([], 4500) == ["m0.py", "m1.py", "m2.py"]


def test_small_configuration_files_are_read(tmp_path):
    found = tree(tmp_path, {"conf/a.yaml": "lr: 1\n", "b.json": "{}", "big.txt": b"x" * (1 << 18), "c.py": "", "bytes.ini": b"\xff\xfe"}, "python c.py\n")
    assert set(found.data_files()) == {"conf/a.yaml", "b.json", "bytes.ini", "run.sh"} and found.data_files()["conf/a.yaml"] == "lr: 1\n"


def test_paths_are_values_and_nothing_else():
    expression = lambda text: ast.parse(text, mode="eval").body  # noqa: E731
    assert {text: str(pc.chain_of(expression(text))) for text in ("a", "a.b[0]['k'].c", "a[-1]", "a[b]", "a().b", "a[1.5]", "(a or b).c", "a[None]")} == {
        "a": "a", "a.b[0]['k'].c": "a.b[0]['k'].c", "a[-1]": "None", "a[b]": "None", "a().b": "None", "a[1.5]": "None", "(a or b).c": "None", "a[None]": "None"}  # fmt: skip
