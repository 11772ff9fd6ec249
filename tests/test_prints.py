"""Section 11: reading prints, agreement of printed values, pairing of two code trees and two runs."""

import json
import math
import zlib
from types import SimpleNamespace

import pytest

import precision_comparer as pc

TAG = "_pc0a1b2c"


def line(number, kind="o", site=1, values=None, rank="0", pid=7, invocation=1, parent=0, step=0):
    head = f"{TAG}|{rank}|{pid}|0|{number}|{kind}|{site}|{invocation}|{parent}|{step}|aa.bb.cc|model/a.py:3|{json.dumps(values or {})}"
    return f"{head}|{zlib.crc32(head.encode()):08x}".encode()


def tensor(values, dtype="float32", shape=None, grad=False, special=()):
    norm = math.sqrt(sum(v * v for v in values))
    weighted = sum(v * (i * 0.6180339887498949 % 1 - 0.5) for i, v in enumerate(values))
    return ["T", dtype, shape or [len(values)], [sum(values), norm, min(values), max(values), weighted], list(values[:6]), grad, list(special)]


def test_records_are_read_wherever_they_stand_in_a_line():
    found = pc.parse_records([b"step 1 loss 2.5", b"50%|####" + line(1, values={"x": 3}), line(2, values={"y": True})], TAG)
    assert [r.values for r in found.records] == [{"x": 3}, {"y": True}] and found.torn == 0


def test_a_torn_line_is_counted_and_not_believed():
    good, torn = line(1, values={"x": 3}), line(2, values={"x": 4})
    found = pc.parse_records([good, torn[:-5], torn.replace(b'"x": 4', b'"x": 5')], TAG)
    assert len(found.records) == 1 and found.torn == 2


def test_parts_of_one_record_are_joined_and_copies_dropped():
    found = pc.parse_records([line(1, values={"x": 3}), line(1, values={"y": 4}), line(1, values={"x": 3})], TAG)
    assert [r.values for r in found.records] == [{"x": 3, "y": 4}]


def test_versions_are_those_of_the_process_that_imported_most():
    told = [line(1, kind="v", values={"Python": "3.8.1"}), line(2, kind="v", values={"Python": "3.8.1", "torch": "2.1.0"}), line(3, kind="v", pid=8, values={"Python": "3.8.1"})]
    found = pc.parse_records([*told, line(4, values={"x": 3})], TAG)
    assert found.versions == "Python 3.8.1, torch 2.1.0" and [r.values for r in found.records] == [{"x": 3}] and found.errors == []


def test_references_are_expanded():
    big = ["m", 1, [["a", 1]]]
    found = pc.parse_records([line(1, values={"x": ["=", "0000beef", big]}), line(2, values={"z": ["#", "0000beef", "m", 1]})], TAG)
    assert found.records[1].values == {"z": big}


@pytest.mark.parametrize("baseline, test, error, weak", [
    (3, 3, 0, False), (3, 4, math.inf, False), (True, False, math.inf, False),
    (["f", "1.0"], ["f", "1.1"], 0.1 / 1.1, False), (["f", "nan"], ["f", "nan"], 0, False), (["f", "nan"], ["f", "1.0"], math.inf, False),
    (["s", "/a"], ["s", "/b"], math.inf, True), (["N"], ["f", "1.0"], math.inf, False), (["F", "gelu"], ["F", "tanh"], math.inf, False),
    (tensor([1.0, 2.0]), tensor([1.0, 2.0]), 0, False), (tensor([1.0, 2.0]), tensor([1.0, 2.0], shape=[2, 1]), math.inf, False),
    (tensor([0.0, 0.0]), tensor([0.0, 1.0]), 1.0, False), (["T", "int64", [2], [3, 1, 2, 9], [1, 2], False, []], ["T", "int64", [2], [3, 1, 2, 8], [2, 1], False, []], math.inf, False),
    (tensor([1.0], special=[0, 0, 5]), tensor([1.0]), math.inf, False),
])
def test_agreement_of_two_values(baseline, test, error, weak):
    found = pc.delta(baseline, test)
    assert found.error == pytest.approx(error) and (found.is_weak if error else False) == weak


def test_a_permutation_is_a_difference():
    assert pc.delta(tensor([1.0, 2.0, 3.0, 4.0]), tensor([2.0, 1.0, 4.0, 3.0])).error > 0.1


def test_another_order_of_summation_is_none():
    base = tensor([0.1] * 100)
    moved = json.loads(json.dumps(base))
    moved[3][0] *= 1 + 1e-14
    assert pc.delta(base, moved).error == 0


def test_another_dtype_is_a_difference_of_at_least_its_rounding():
    found = pc.delta(tensor([1.0, 2.0]), tensor([1.0, 2.0], dtype="bfloat16"))
    assert found.note.startswith("类型") and found.error > 0


OLD = '''
def scale(x, factor):
    y = x * factor
    return y


def helper(values):
    total = 0
    for value in values:
        total += scale(value, 2)
    return total
'''


def mapped(old, new):
    return pc.map_code({"m.py": pc.parse_func_for_code("m.py", old)}, {"m.py": pc.parse_func_for_code("m.py", new)})


def statements(code_map, text):
    return {new: old for new, old in ((s.text, code_map.stmts[id(s)].text) for s in text if id(s) in code_map.stmts)}


@pytest.mark.parametrize("change, wanted", [
    (lambda t: "# a comment\n" + t.replace("    y = x", "\n    y = x"), False),
    (lambda t: t.replace("total", "amount"), False),
    (lambda t: t.replace("x * factor", "x + factor"), True),
    (lambda t: t.replace("scale(value, 2)", "scale(value, 3)"), True),
])
def test_changed_statements_are_told_from_moved_and_renamed_ones(change, wanted):
    new = {"m.py": pc.parse_func_for_code("m.py", change(OLD))}
    code = pc.map_code({"m.py": pc.parse_func_for_code("m.py", OLD)}, new)
    assert any(code.differs(s) for f in new["m.py"] for s in f.statements) == wanted


def test_a_renamed_function_keeps_its_twin():
    new = {"m.py": pc.parse_func_for_code("m.py", OLD.replace("helper", "accumulate"))}
    code = pc.map_code({"m.py": pc.parse_func_for_code("m.py", OLD)}, new)
    renamed = next(f for f in new["m.py"] if f.qualname == "accumulate")
    assert code.funcs[id(renamed)].qualname == "helper"


def test_a_name_swap_is_a_change_and_not_a_renaming():
    old, new = "def f(a, b):\n    c = a - b\n    return c\n", "def f(a, b):\n    c = b - a\n    return c\n"
    funcs = {"m.py": pc.parse_func_for_code("m.py", new)}
    code = pc.map_code({"m.py": pc.parse_func_for_code("m.py", old)}, funcs)
    assert code.differs(funcs["m.py"][1].statements[0])


def test_rounds_of_a_loop_are_paired_one_by_one():
    left = ["a"] + [("target", 1), "x", "y"] * 3
    right = ["a"] + [("target", 1), "x"] + [("target", 1), "x", "y"] * 2
    found = pc._matching(left, right)
    assert (3, None) in found and (4, 3) in found and (7, 6) in found


@pytest.mark.parametrize("shared, wanted", [(1, []), (None, ["&kept"])])
def test_whether_an_object_is_shared_is_compared_under_its_name_on_each_side(shared, wanted):
    """A renamed local that holds an object which was read, on both sides or on the test side alone."""
    texts = {"baseline": "def f(x):\n    kept = x\n    return kept\n", "test": "def f(x):\n    saved = x\n    return saved\n"}
    funcs = {side: {"m.py": pc.parse_func_for_code("m.py", text)} for side, text in texts.items()}
    code = pc.map_code(funcs["baseline"], funcs["test"])
    done = {}
    for side, name, value in (("baseline", "kept", 1), ("test", "saved", shared)):
        func = funcs[side]["m.py"][1]
        values = {name: tensor([1.0])} | ({f"&{name}": value} if value else {})
        done[side] = pc.Exec("stmt", None, SimpleNamespace(stmt=func.statements[0]), pc.Call(func), 0, 0, ins={"x": tensor([1.0])}, outs=values)
    pair = pc.Pair(done["test"], done["baseline"])
    pc._compare(pair, code)
    assert [name for name, difference in pair.outs.items() if difference.error] == wanted
