"""Dumps, msprobe compare, its results, and the first inconsistent row (section 7).

`msprobe_samples/` holds real dumps and real results of six msprobe versions: a two-block net, whose test side scales its
attention scores by 0.3 and not by 0.25.
"""

import json
import math
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import precision_comparer as pc

SAMPLES = Path(__file__).parent / "msprobe_samples"
VERSIONS = ["1.0.4", "1.2.2", "8.2.1", "8.3.3", "26.0.0", "26.2.0"]
HOST = pc.LocalHost()
SCALE, SCALED = "Tensor.__mul__.2.forward.input.1", "Tensor.__mul__.2.forward.output.0"

# result -> (row, name) of the first inconsistent row; None: nothing differs
FIRST = {
    "1.0.4/s_json": (40, SCALE), "1.0.4/m_json": (41, SCALED),  # no MD5 of Python values in 1.0
    "1.2.2/s_json": (40, SCALE), "1.2.2/s_step": (40, SCALE), "1.2.2/m_json": (40, SCALE), "1.2.2/dp": (40, SCALE),
    "8.2.1/s_json": (40, SCALE), "8.2.1/m_json": (40, SCALE),
    "8.3.3/s_json": (40, SCALE), "8.3.3/s_step": (40, SCALE), "8.3.3/m_json": (40, SCALE), "8.3.3/dp": (40, SCALE),
    "8.3.3/hl": (40, SCALE), "8.3.3/t_json": (40, SCALE), "8.3.3/cross": None,
    "8.3.3/nan": (124, "Functional.linear.3.forward.input.1"),
    "8.3.3/extra": (62, "Torch.add.0.forward.input.1"), "8.3.3/extra_rev": (154, "Torch.add.0.forward.input.1"),
    "26.0.0/s_json": (36, SCALE), "26.0.0/s_step": (36, SCALE), "26.0.0/m_json": (36, SCALE), "26.0.0/m_csv": (36, SCALE),
    "26.2.0/s_json": (36, SCALE), "26.2.0/s_step": (36, SCALE), "26.2.0/s_xlsx": (36, SCALE), "26.2.0/m_json": (36, SCALE),
    "26.2.0/m_csv": (36, SCALE), "26.2.0/t_json": (36, SCALE), "26.2.0/dp": (36, SCALE), "26.2.0/cross": None,
    "26.2.0/nan": (102, "Functional.linear.3.forward.input.1"),
    "26.2.0/extra": (50, "Torch.add.0.forward.input.0"), "26.2.0/extra_rev": (123, "Torch.add.0.forward.input.0"),
}  # fmt: skip
RESULTS = sorted(SAMPLES.glob("*/*/compare_result*"))


def sample(path: Path) -> str:
    return f"{path.parts[-3]}/{path.parts[-2]}"


def load(version: str, name: str) -> pc.Dump:
    return pc.load_dump(HOST, pc.find_dump(HOST, str(SAMPLES / version / name), 0))


def tensor(*numbers, dtype="torch.float32", shape=(100, 100), **more) -> pc.TensorStat:
    return pc.TensorStat(dtype, shape, *map(lambda x: x if x is None else float(x), numbers), **more)


def row(test: pc.TensorStat, baseline: pc.TensorStat | None, name="Torch.add.0.forward.output.0", number=2) -> pc.Row:
    return pc.Row(number, name, name if baseline else None, test, baseline)


# --- results of every version ---


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: f"{sample(path)}/{path.name[15:21]}")
def test_first_row_of_every_sample(path):
    rows = pc.read_result(str(path))
    found = pc.first_mismatch(rows, 0.001)
    assert (found and (found.row, found.npu_name)) == FIRST[sample(path)]
    if found and found.npu_name in (SCALE, SCALED):
        code = [frame.code for frame in found.test_stack]
        assert code[:2] == ["h=s.q(s.n(x)); a=(h@h.transpose(-1,-2))*s.scale", "for b in s.b: h=b(h)"]
        assert found.test_stack[0].function == "forward" and found.test_stack[0].line in (20, 21)
        assert not any("site-packages" in frame.file for frame in found.test_stack)


def test_every_sample_is_expected_and_read():
    assert {sample(path) for path in RESULTS} == set(FIRST)


@pytest.mark.parametrize("path", [path for path in RESULTS if path.suffix == ".xlsx"][::6], ids=sample)
def test_openpyxl_reads_the_same(path, monkeypatch):
    fast = pc.read_result(str(path))
    monkeypatch.setattr(pc.importlib.util, "find_spec", lambda name: None)
    slow = pc.read_result(str(path), path.read_bytes())
    assert len(fast) == len(slow)
    for one, other in zip(fast, slow):
        assert replace(one, npu=other.npu, bench=other.bench) == other
        assert repr(one.npu) == repr(other.npu)  # NaN is not equal to itself


def test_cells_are_cleaned():
    csv = (
        "NPU Name,Bench Name,NPU Dtype,Bench Dtype,NPU Tensor Shape,Bench Tensor Shape,NPU max,NPU min,NPU mean,NPU l2norm,"
        "Bench max,Bench min,Bench mean,Bench l2norm,NPU MD5,BENCH MD5,Result\n"
        'A.x.0.forward.input.0,A.x.0.forward.input.0,torch.float32,torch.float32,"[2, 3]",[],'
        " inf,-inf\t,Nan,50%,None,N/A,unsupported, ,0012e456,12345678,pass\n"
        "A.x.0.forward.input.1,N/A ,<class 'bool'>,N/A,[],N/A,True,True,True,True,N/A,N/A,N/A,N/A,,,\n"
    )
    first, second = pc.read_result("r.csv", csv.encode("utf-8-sig"))
    assert (first.number, first.npu.shape, first.npu.max, first.npu.min, first.npu.norm) == (2, (2, 3), math.inf, -math.inf, 50)
    assert math.isnan(first.npu.mean) and first.bench == pc.TensorStat("torch.float32", (), md5="12345678")
    assert first.npu.md5 == "0012e456"
    assert second.bench is None and second.bench_name is None and second.npu == pc.TensorStat("bool", value=1.0)


@pytest.mark.parametrize("name, data, says", [
    ("r.csv", b"", "读不出来"), ("r.xlsx", b"PK no zip", "读不出来"), ("r.csv", b"a,b\n1,2\n", "缺少列"),
    ("r.csv", ",".join(pc.NEEDED_COLUMNS).encode(), "没有任何一行"),
])  # fmt: skip
def test_an_unusable_result_is_said(name, data, says):
    with pytest.raises(pc.MsprobeError, match=says):
        pc.read_result(name, data)


# --- dumps ---


@pytest.mark.parametrize("version", VERSIONS)
def test_dumps_alone_give_the_rows_of_the_result(version):
    baseline, test = load(version, "dump_s_base"), load(version, "dump_s_test")
    pc.check_pair(baseline, test)
    rows = pc.rows_from_dumps(baseline, test)
    result = pc.read_result(str(next((SAMPLES / version / "s_json").iterdir())))
    for ours, theirs in zip(rows, result):  # two of the csv are cut short
        assert ours.npu_name in (theirs.npu_name, theirs.npu_name.removesuffix(".0"))  # 1.0.4 has input.keepdim.0
        assert pc.row_difference(ours).value == pytest.approx(pc.row_difference(theirs).value, rel=1e-6, abs=1e-9)
    found = pc.first_mismatch(rows, 0.001, None, test, baseline)
    assert (found.row, found.npu_name) == FIRST[f"{version}/s_json"]
    assert found.reason == "数值不同: test 0.3, baseline 0.25" and not found.is_backward
    assert found.test_stack == found.baseline_stack and found.test_stack[0].code.endswith("*s.scale")
    assert [one.number for one in pc.complete_rows(result, baseline, test)][: len(result)] == [one.number for one in result]
    assert pc.bench_only(baseline, test) == [] and pc.shifted_counts(baseline, test) == {}


def test_rows_of_modules_and_parameters_are_named_as_in_the_result():
    baseline, test = load("26.2.0", "dump_s_base"), load("26.2.0", "dump_mix_base")
    rows = pc.rows_from_dumps(baseline, test)
    names = [one.npu_name for one in pc.read_result(str(next((SAMPLES / "26.2.0/cross").iterdir())))]
    assert [one.npu_name for one in rows if one.npu_name in names] == names
    assert pc.first_mismatch(rows, 0.001) is None
    gradient = next(name for name in names if ".parameters_grad" in name)
    assert pc.forward_of(pc.api_of(gradient)) in test.apis


def make_dump(folder: Path, text: str = '{"data": {"A.x.0.forward": {}}}', stack: str | None = "{}") -> Path:
    folder.mkdir(parents=True)
    (folder / "dump.json").write_text(text)
    if stack is not None:
        (folder / "stack.json").write_text(stack)
    return folder / "dump.json"


def test_find_dump_by_root_step_and_rank(tmp_path):
    root = tmp_path / "数据 [1]"
    paths = {(step, rank): make_dump(root / f"step{step}" / f"rank{rank}") for step in (10, 2) for rank in (0, 1)}
    (root / "step2" / "junk").mkdir()
    assert pc.steps_in(HOST, str(root)) == [2, 10]
    assert pc.find_dump(HOST, str(root) + "/", 1) == pc.DumpFiles(str(paths[2, 1]), str(paths[2, 1].with_name("stack.json")), 1, 2)
    assert pc.find_dump(HOST, str(root), 0, 10).dump == str(paths[10, 0])
    assert pc.find_dump(HOST, str(root / "step10"), 0).step == 10
    assert pc.find_dump(HOST, str(root / "step10" / "rank1"), 1).dump == str(paths[10, 1])
    assert pc.find_dump(HOST, str(root), 3) is None and pc.find_dump(HOST, str(root), 0, 5) is None
    assert pc.find_dump(HOST, str(tmp_path / "none"), 0) is None


def test_a_lone_process_is_rank_0_and_the_newest_of_several_is_taken(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(pc.terminal, "warn", said.append)
    new, old = make_dump(tmp_path / "step0/proc7"), make_dump(tmp_path / "step0/proc9", stack=None)
    os.utime(old, (1, 1))
    assert pc.find_dump(HOST, str(tmp_path), 0).dump == str(new) and pc.find_dump(HOST, str(tmp_path), 1) is None
    assert len(said) == 1 and "2 份" in said[0] and "proc7" in said[0]
    lone = make_dump(tmp_path / "other/step3/rank", stack=None)
    assert pc.find_dump(HOST, str(tmp_path / "other"), 0) == pc.DumpFiles(str(lone), None, 0, 3)


@pytest.mark.parametrize("text, says", [
    ("", "中止"), ('{"data": {"A.x.0.forward": {"out', "中止"), ("{}", "没有任何 API"), ('{"data": {}}', "没有任何 API"), ("[1]", "没有任何 API"),
])  # fmt: skip
def test_an_unusable_dump_is_said(tmp_path, text, says):
    path = make_dump(tmp_path / "step0/rank0", text)
    with pytest.raises(pc.MsprobeError, match=says) as error:
        pc.load_dump(HOST, pc.DumpFiles(str(path), None, 0, 0))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("stack", [None, "", '{"0": [["A.x.0.forward"], ["File', '{"0": 1}', "[]"])
def test_a_missing_or_cut_stack_is_only_a_warning(tmp_path, monkeypatch, stack):
    said = []
    monkeypatch.setattr(pc.terminal, "warn", said.append)
    make_dump(tmp_path / "step0/rank0", stack=stack)
    assert pc.load_dump(HOST, pc.find_dump(HOST, str(tmp_path), 0)).stacks == {}
    assert len(said) == 1 and "调用栈" in said[0]


def test_both_shapes_of_stack_json(tmp_path):
    frames = ["File /a b/t.py, line 3, in f, \n y = x[1, 2]", "File /a b/t.py, line 9, in <module>, \n f()"]
    both = [{"A.x.0.forward": frames, "A.x.1.forward": frames}, {"0": [["A.x.0.forward", "A.x.1.forward"], frames]}]
    stacks = []
    for name, content in zip("ab", both):
        make_dump(tmp_path / name / "step0/rank0", stack=json.dumps(content))
        stacks.append(pc.load_dump(HOST, pc.find_dump(HOST, str(tmp_path / name), 0)).stacks)
    assert stacks[0] == stacks[1] and stacks[0]["A.x.1.forward"][0] == pc.Frame("/a b/t.py", 3, "f", "y = x[1, 2]")


def test_dumps_of_two_kinds_or_versions_are_said(monkeypatch):
    said = []
    monkeypatch.setattr(pc.terminal, "warn", said.append)
    dump = load("26.2.0", "dump_s_base")
    pc.check_pair(dump, dump)
    assert said == []
    pc.check_pair(dump, replace(dump, is_md5=True))
    pc.check_pair(replace(dump, task="tensor"), dump)
    assert "test 是 statistics（md5）" in said[0] and "baseline 是 tensor" in said[1]
    pc.check_pair(dump, load("8.3.3", "dump_s_base"))
    assert "不同版本的 msprobe" in said[2]


def calls(*names: str) -> pc.Dump:
    """A dump of the calls, numbered by name; `a=5` gives the call another value, `a'` is the backward of the last `a`."""
    counts, apis = {}, {}
    for text in names:
        name, _, value = text.partition("=")
        if name.endswith("'"):
            apis[f"Torch.{name[:-1]}.{counts[name[:-1]] - 1}.backward"] = {"output": [{"type": "int", "value": 1}]}
            continue
        number = counts[name] = counts.get(name, 0) + 1
        apis[f"Torch.{name}.{number - 1}.forward"] = {"input_args": [{"type": "int", "value": int(value or 1)}]}
    return pc.Dump(apis, {}, False, "statistics", "L1")


def test_a_call_more_on_one_side_does_not_pair_strangers():
    test = calls("mul", "add=5", "sum", "add=1", "abs", "add=2", "add'", "abs'")
    baseline = calls("mul", "sum", "add=1", "abs", "add=2", "add'", "abs'")
    assert pc.shifted_counts(baseline, test) == {"Torch.add.forward": (2, 3)}
    assert pc.pair_calls(baseline, test)["Torch.add.1.forward"] == "Torch.add.0.forward"
    assert pc.pair_calls(baseline, test)["Torch.add.2.backward"] == "Torch.add.1.backward"
    assert "Torch.add.0.forward" not in pc.pair_calls(baseline, test)
    assert pc.bench_only(test, baseline) == ["Torch.add.0.forward"] and pc.bench_only(baseline, test) == []
    assert pc.first_mismatch(pc.rows_from_dumps(baseline, test), 0.001) is None
    test = calls("mul", "add=5", "sum", "add=1", "abs", "add=9", "add'", "abs'")  # and a true difference behind it
    assert pc.first_mismatch(pc.rows_from_dumps(baseline, test), 0.001).bench_name == "Torch.add.1.forward.input.0"
    test = calls("mul", "cos", "sum", "add=1", "cos", "abs", "add=2", "cos", "add=4", "add'", "abs'")  # what one side never calls
    assert pc.pair_calls(baseline, test)["Torch.add.1.forward"] == "Torch.add.1.forward"


# --- judging a row ---

EQUAL = (1.0, -1.0, 0.5, 60.0)


@pytest.mark.parametrize("test, baseline, expected", [
    (tensor(*EQUAL), tensor(*EQUAL), 0),
    (tensor(2, -2, 1, 120), tensor(*EQUAL), 0.5),  # everything doubled: msprobe says "pass"
    (tensor(1, 1e-9, 0.5, 60), tensor(1, 3e-9, 0.5, 60), 0),  # a minimum near 0 is no signal
    (tensor(1, -1, 1e-8, 60), tensor(1, -1, -1e-8, 60), 0),  # nor is a mean near 0
    (tensor(0, 0, 0, 0), tensor(1e-9, 0, 1e-11, 1e-9), 1),  # but zero on one side only is
    (tensor(0, 0, 0, 0), tensor(0, 0, 0, 0), 0),
    (tensor(*["nan"] * 4), tensor(*["nan"] * 4), 0),
    (tensor(*["nan"] * 4), tensor(*EQUAL), math.inf),
    (tensor("inf", -1, "inf", "inf"), tensor(*EQUAL), math.inf),
    (tensor(0, "-inf", "-inf", "inf"), tensor(0, -3.4e38, -1e38, 1e38), 0),  # a mask, filled either way
    (tensor(*EQUAL, shape=(3,)), tensor(*EQUAL, shape=(4,)), math.inf),
    (tensor(*EQUAL), tensor(*EQUAL, dtype="torch.float64"), math.inf),
    (tensor(7, 0, 3, 9, dtype="torch.int64"), tensor(7, 0, None, None, dtype="torch.int64"), 0),  # no mean since 26.1
    (tensor(50000, 0, dtype="torch.int64"), tensor(50001, 0, dtype="torch.int64"), math.inf),  # integers are exact
    (tensor(1, 0, dtype="torch.bool"), tensor(1, 1, dtype="torch.bool"), math.inf),
    (tensor(md5="a"), tensor(md5="b"), math.inf),
    (pc.TensorStat("float", value=0.3), pc.TensorStat("float", value=0.25), math.inf),
    (pc.TensorStat("float", value=1e-6), pc.TensorStat("float", value=1.1e-6), math.inf),
    (pc.TensorStat("float", value=0.52341237192), pc.TensorStat("float", value=0.52341999182), 1.46e-5),  # computed, no constant
    (pc.TensorStat("int", value=1), pc.TensorStat("float", value=1.0), 0),
    (pc.TensorStat("float", value=float("-inf")), pc.TensorStat("float", value=-3.4e38), 0),
    (pc.TensorStat("str", value="mean"), pc.TensorStat("str", value="sum"), math.inf),
    (pc.TensorStat("torch.device", value="npu:0"), pc.TensorStat("torch.device", value="cuda:1"), 0),
    (pc.TensorStat(), pc.TensorStat("float", value=1.0), math.inf),
    (pc.TensorStat(), tensor(*EQUAL), math.inf),
    (pc.TensorStat(), pc.TensorStat(), 0),
])  # fmt: skip
def test_row_difference(test, baseline, expected):
    for one in (row(test, baseline), row(baseline, test)):
        found = pc.row_difference(one)
        assert found.value == pytest.approx(expected, rel=0.01, abs=1e-6) and not found.weak
        assert bool(found.reason) == (found.value > 0)


def test_rounding_of_a_low_precision_dtype_is_weak_and_carried_on():
    half = [tensor(x, -1, 0.5, 60, dtype="torch.bfloat16") for x in (1.0, 1.0078125)]
    single = [tensor(x, -1, 0.5, 60) for x in (1.0, 1.005)]
    far = [tensor(x, -1, 0.5, 60) for x in (1.0, 1.05)]
    assert pc.row_difference(row(*half)).weak and not pc.row_difference(row(*single)).weak
    rows = [row(*pair, f"Torch.x.{at}.forward.output.0", at) for at, pair in enumerate((half, single, far))]
    assert pc.first_mismatch(rows, 0.001).row == 2
    assert "Torch.x.0.forward.output.0" in pc.first_mismatch(rows, 0.001).notes[0]
    assert pc.first_mismatch(rows[1:], 0.001).row == 1  # nothing was rounded before
    assert pc.first_mismatch(rows[:2], 0.001).row == 0  # there is nothing else


def test_what_equal_statistics_hide_counts_only_where_nothing_else_differs():
    order = row(tensor(*EQUAL, md5="a"), tensor(*EQUAL, md5="b"), number=2)
    grad = row(tensor(*EQUAL, requires_grad=True), tensor(*EQUAL, requires_grad=False), number=3)
    strong = row(tensor(2, 0, 1, 60), tensor(*EQUAL), number=4)
    assert pc.first_mismatch([order, grad, strong], 0.001).row == 4
    assert "MD5" in pc.first_mismatch([order, grad], 0.001).reason
    assert "requires_grad" in pc.first_mismatch([grad], 0.001).reason


def test_the_phase_decides_where_to_look_first():
    off, same = (tensor(2, 0, 1, 60), tensor(*EQUAL)), (tensor(*EQUAL), tensor(*EQUAL))
    grads = row(*off, "Module.h.Linear.parameters_grad.weight", 2)  # stands here up to 8.3, is known at the end only
    forward, backward = row(*off, "Torch.x.0.forward.output.0", 3), row(*off, "Torch.x.0.backward.output.0", 4)
    step, alone = row(*off, "Tensor.mul_.0.forward.output.0", 5), row(tensor(*EQUAL), None, "Torch.y.0.forward.input.0", 6)
    rows = [grads, forward, backward, step, alone]
    assert pc.first_mismatch(rows, 0.001).row == 3 and pc.first_mismatch(rows, 0.001, "forward_or_data").row == 3
    found = pc.first_mismatch(rows, 0.001, "backward")
    assert (found.row, found.is_backward) == (4, True)
    assert found.notes == ("test 的 1 个调用在 baseline 中没有对应，首个是 Torch.y.0.forward",)
    assert pc.first_mismatch([replace(grads, npu=same[0]), backward, step], 0.001, "optimizer").row == 5
    assert pc.first_mismatch([forward, row(*same, "Torch.x.0.backward.output.0", 4)], 0.001, "backward").row == 3
    assert pc.first_mismatch([alone], 0.001) is None and pc.first_mismatch([], 0.001) is None


# --- stacks and model frames ---


def test_a_backward_row_has_the_stack_of_its_forward_twin():
    test, baseline = load("8.3.3", "dump_s_test"), load("26.2.0", "dump_s_base")
    name = "Functional.linear.1.backward.output.0"
    ours, theirs = pc.stacks_of(pc.Row(2, name, name, pc.TensorStat(), pc.TensorStat()), test, baseline)
    assert ours[0].code == theirs[0].code == "return x+F.dropout(s.f(y),0.0,training=True)"
    assert pc.stacks_of(pc.Row(2, name, None, pc.TensorStat(), None, ours), None, baseline) == (ours, [])
    assert pc.forward_of("Module.b.0.q.Linear.backward.0") == "Module.b.0.q.Linear.forward.0"
    assert pc.forward_of("Module.b.0.q.Linear.parameters_grad") == "Module.b.0.q.Linear.forward.0"
    assert pc.api_of("Module.output.input.Linear.forward.3.output.0") == "Module.output.input.Linear.forward.3"


def test_model_frames():
    def frames(*files):
        return [pc.Frame(file, 1, "f") for file in files]

    def found(stack, fragment, files, code_path="/here/code"):
        return [path for _, path in pc.model_frames(stack, fragment, code_path, set(files).__contains__)]

    stack = frames("/ws/PanGu/model/attn.py", "/ws/megatron/core/x.py", "/usr/lib/python3.10/runpy.py", "/ws/PanGu/train.py")
    files = ["model/attn.py", "train.py", "megatron/core/x.py", "runpy.py"]
    assert found(stack, "/PanGu/", files) == ["model/attn.py", "train.py"]
    there = ["model/attn.py", "core/x.py", "PanGu/train.py"]
    assert found(stack, ["/PanGu/", "/megatron/"], there) == there
    assert found(stack, "", files) == ["model/attn.py", "megatron/core/x.py", "train.py"]  # the longest suffix that exists
    assert found(stack, "/Other/", files) == ["model/attn.py", "megatron/core/x.py", "train.py"]
    below = frames("/here/code/lib/python3.10/site-packages/own/m.py", "train.py", "<string>")
    there = ["lib/python3.10/site-packages/own/m.py", "train.py"]
    assert found(below, "", there) == there
    assert found(stack, "", []) == []


# --- running msprobe compare ---


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of our own, also for what would go to the system's temporary folder."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    return tmp_path


def fake_msprobe(folder: Path, version: str, body: str) -> str:
    """A command that runs `body` with `out` (the -o folder), `argv` and `copy(sample)`; its interpreter answers `version`."""
    interpreter, script = folder / "python3", folder / "msprobe"
    interpreter.write_text(f'#!/bin/sh\n[ "$1" = -c ] && echo "msprobe {version}" && exit\nexec "{sys.executable}" "$@"\n')
    script.write_text(
        f"#!{interpreter}\nimport os, shutil, sys, time\nargv = sys.argv\nout = argv[argv.index('-o') + 1]\n"
        f"def copy(sample):\n    folder = {str(SAMPLES)!r} + '/' + sample\n    os.makedirs(out, exist_ok=True)\n"
        f"    [shutil.copy(folder + '/' + name, out) for name in os.listdir(folder)]\n{body}\n"
    )
    for path in (interpreter, script):
        path.chmod(0o755)
    return str(script)


def compare(folder: Path, command: str) -> pc.ResultFile:
    pair = [pc.find_dump(HOST, str(SAMPLES / "26.2.0" / name), 0) for name in ("dump_s_base", "dump_s_test")]
    return pc.run_msprobe_compare(HOST, pc.MsprobeConfig(command=command), *pair, str(folder / "结果 out"), print)


NEW_STYLE = "assert argv[1:2] == ['compare'] and argv[2::2] == ['-tp', '-gp', '-o'] and len(argv) == 8"
OLD_STYLE = (
    "import json; given = json.load(open(argv[argv.index('-i') + 1]))\n"
    "assert argv[1:4] == ['-f', 'pytorch', 'compare'] and argv[-2:] == ['-s', '-c']\n"
    "assert set(given) == {'npu_path', 'bench_path', 'stack_path', 'is_print_compare_log'} and os.path.exists(given['stack_path'])\n"
    "assert '0.25' in open(given['bench_path']).read() and oct(os.stat(argv[argv.index('-i') + 1]).st_mode)[-3:] == '640'"
)


@pytest.mark.parametrize("version, check", [
    ("1.2.2", OLD_STYLE), ("8.3.3", OLD_STYLE), ("26.0.0", NEW_STYLE), ("26.1.0.post1", NEW_STYLE), ("27.1.0", NEW_STYLE),
])  # fmt: skip
def test_each_family_gets_its_own_command_line(folder, version, check):
    result = compare(folder, fake_msprobe(folder, version, check + "\ncopy('26.2.0/s_json')"))
    assert result.version == version and result.rows[0].number == 2
    assert Path(result.path).parent == folder / "结果 out" and Path(result.path).exists()
    assert os.listdir(folder / "temporary") == []


@pytest.mark.parametrize("body, says", [
    ("print('[ERROR] first'); print('2026 (1) [ERROR] the reason.'); print('[ERROR] verify that the CANN environment'); sys.exit(1)",
     "退出码 1.*: the reason。"),
    ("print('[WARNING] No valid data found.')", "退出码 0，结果文件 0 个.*No valid data"),
    ("import no_such_module", "No module named 'no_such_module'（请在 msprobe 的环境里 pip install no_such_module）"),
    ("copy('26.2.0/s_json'); copy('26.2.0/s_step')", "结果文件 2 个"),
    ("copy('26.2.0/s_json'); sys.exit(1)", "退出码 1"),
    ("os.makedirs(out); open(out + '/compare_result_1.csv', 'w').write('a,b')", "缺少列"),
    ("copy('26.2.0/s_json'); f = out + '/' + os.listdir(out)[0]\n"
     "lines = open(f).readlines(); open(f, 'w').writelines([lines[0], lines[1].replace(lines[1].split(',')[1], 'N/A')])",
     "没有一行能与 baseline 配对"),
])  # fmt: skip
def test_a_failure_is_said_with_its_reason_and_a_command(folder, body, says):
    command = fake_msprobe(folder, "26.2.0", body)
    with pytest.raises(pc.MsprobeError, match=says) as error:
        compare(folder, command)
    kept = folder / "temporary" / os.listdir(folder / "temporary")[0]
    assert f"可手动运行: {command} compare -tp {kept}/test/dump.json" in str(error.value)
    assert (kept / "msprobe.log").exists() and (kept / "test/stack.json").exists() and kept.stat().st_mode & 0o777 == 0o700


def test_a_run_that_hangs_is_stopped(folder, monkeypatch):
    monkeypatch.setattr(pc, "_time_limit", lambda program, size: 0.5)
    started = time.monotonic()
    body = f"open({str(folder / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(pc.MsprobeError, match="仍未结束，已停止"):
        compare(folder, fake_msprobe(folder, "26.2.0", body))
    assert time.monotonic() - started < 30
    assert not os.path.exists(f"/proc/{(folder / 'pid').read_text()}")


def test_an_interrupt_leaves_nothing_behind(folder, monkeypatch):
    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(HOST, "poll", interrupted)
    command = fake_msprobe(folder, "26.2.0", "time.sleep(600)")
    with pytest.raises(KeyboardInterrupt):
        compare(folder, command)
    assert os.listdir(folder / "temporary") == []


def test_the_time_limit_follows_the_size_of_the_dump():
    new, old = pc.Msprobe(["msprobe"], {}, "26.2.0"), pc.Msprobe(["msprobe"], {}, "8.3.3")
    assert pc._time_limit(new, 100_000) == pc.SHORTEST_LIMIT
    assert 1000 < pc._time_limit(new, 79_000_000) < pc._time_limit(old, 79_000_000)
    assert pc._time_limit(replace(new, version="26.0.0"), 79_000_000) == pc._time_limit(old, 79_000_000)


@pytest.mark.parametrize("script, says", [
    (None, "找不到 msprobe 命令"),
    ("#!/no/such/python3\n", "不能启动"),
    ("#!/bin/sh\necho hello\n", "不能启动: hello"),
    ("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'msprobe'\" >&2; exit 1\n", "pip install mindstudio-probe"),
])  # fmt: skip
def test_an_msprobe_that_cannot_start_is_said(folder, script, says):
    path = folder / "my msprobe"
    if script:
        path.write_text(script)
        path.chmod(0o755)
    with pytest.raises(pc.MsprobeError, match=says):
        compare(folder, str(path) if script else "no_such_msprobe --fast")
    assert os.listdir(folder / "temporary") == []


def test_the_version_behind_a_wrapper_or_several_words(folder):
    wrapper = folder / "wrapper"
    for answer, version in (("msprobe 26.2.0 (078e720)", "26.2.0"), ("usage: msprobe [-h] -f {pytorch,mindspore}", "8")):
        wrapper.write_text(f"#!/bin/sh\necho '{answer}'\n")
        wrapper.chmod(0o755)
        assert pc.find_msprobe(HOST, pc.MsprobeConfig(command=str(wrapper))).version == version
    found = pc.find_msprobe(HOST, pc.MsprobeConfig(command=f"env A=1 {wrapper}", pythonpath="/a:/b"))
    assert found.argv[0].startswith("/") and found.argv[1:] == ["A=1", str(wrapper)] and found.env["PYTHONPATH"] == "/a:/b"


@pytest.mark.parametrize("path, head, expected", [
    ("/v/bin/msprobe", b"#!/v/bin/python3\nimport re\n", ["/v/bin/python3"]),
    ("/v/bin/msprobe", b"#!/usr/bin/env python3\n", ["/usr/bin/env", "python3"]),
    ("/v w/bin/msprobe", b"#!/bin/sh\n'''exec' \"/v w/bin/python\" \"$0\" \"$@\"\n' '''\n", ["/v w/bin/python"]),
    ("/v/bin/msprobe", b"#!/bin/sh\n'''exec' /long/bin/python3.11 \"$0\" \"$@\"\n' '''\n", ["/long/bin/python3.11"]),
    ("/usr/bin/python3.11", b"\x7fELF", ["/usr/bin/python3.11"]),
    ("/usr/bin/conda", b"\x7fELF", []),
    ("/v/bin/msprobe", b"#!/bin/bash\nconda run python3\n", []),
])  # fmt: skip
def test_the_interpreter_that_owns_a_script(path, head, expected):
    assert pc._interpreter_of(path, head) == expected


def test_an_output_folder_that_cannot_be_made(folder):
    (folder / "结果 out").write_text("a file")
    with pytest.raises(pc.MsprobeError, match="compare_output_dir 不可用"):
        compare(folder, fake_msprobe(folder, "26.2.0", ""))
    assert os.listdir(folder / "temporary") == []


def test_tensor_data_and_a_temporary_folder_with_blanks(folder, monkeypatch):
    (folder / "临时 dir").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "临时 dir"))
    dumps = []
    for name in ("baseline", "test"):
        path = make_dump(folder / name / "step0/rank0", '{"task": "tensor", "data": {"A.x.0.forward": {}}}', stack="{cut")
        (path.parent / "dump_tensor_data").mkdir()
        (path.parent / "dump_tensor_data" / "A.x.0.forward.input.0.pt").write_text(name)
        dumps.append(pc.find_dump(HOST, str(folder / name), 0))
    body = (
        "for side in (argv[3], argv[5]):\n    here = os.path.dirname(side)\n"
        "    assert open(here + '/dump_tensor_data/A.x.0.forward.input.0.pt').read() == os.path.basename(here)\n"
        "    assert here.isascii() and ' ' not in here and not os.path.exists(here + '/stack.json')\n"
        "copy('26.2.0/t_json')"
    )
    command = fake_msprobe(folder, "26.2.0", body)
    result = pc.run_msprobe_compare(HOST, pc.MsprobeConfig(command=command), *dumps, str(folder / "out"), print)
    assert result.path.endswith(".xlsx") and os.listdir(folder / "临时 dir") == []


def test_the_real_msprobe(folder):
    """The msprobe of this environment (examples/requirements.txt), on dumps in a folder that it would refuse."""
    command = str(Path(sys.executable).with_name("msprobe"))
    for name in ("dump_s_base", "dump_s_test"):
        shutil.copytree(SAMPLES / "8.3.3" / name, folder / "数据 +@" / name)
    pair = [pc.find_dump(HOST, str(folder / "数据 +@" / name), 0) for name in ("dump_s_base", "dump_s_test")]
    result = pc.run_msprobe_compare(HOST, pc.MsprobeConfig(command=command), *pair, str(folder / "结果 out"), print)
    baseline, test = (pc.load_dump(HOST, files) for files in pair)
    rows = pc.rows_from_dumps(baseline, test)
    assert [(one.npu_name, one.bench_name) for one in result.rows] == [(one.npu_name, one.bench_name) for one in rows]
    found, direct = (pc.first_mismatch(each, 0.001, None, test, baseline) for each in (result.rows, rows))
    assert found == direct and (found.row, found.npu_name) == FIRST["8.3.3/s_json"]
    assert not list((folder / "temporary").glob("precision_comparer_*"))
    assert os.listdir(folder / "结果 out") == [Path(result.path).name]
