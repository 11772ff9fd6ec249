"""Section 11: reading prints, agreement of printed values, pairing of two code trees and two runs."""

import json
import math
import random
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


@pytest.mark.parametrize("old, new", [(["o", "Config", [["width", 8]]], 3), (3, ["o", "Config", [["width", 8]]]), (["s", "8"], 8), (None, ["m", 1, [["a", 1]]]), (True, ["N"]), (["T", "float32", [1], [1.0] * 5, [1.0], False, []], 1)])
def test_values_of_different_kinds_are_a_difference_and_no_crash(old, new):
    func = pc.parse_func_for_code("m.py", "def f(x):\n    y = x\n    return y\n")[1]
    site, call = SimpleNamespace(stmt=func.statements[0]), pc.Call(func)
    code = mapped("", "")
    pair = pc.Pair(*(pc.Exec("stmt", None, site, call, 0, 0, ins={"x": ["N"]}, outs={"y": value}) for value in (new, old)))
    pc._compare(pair, code)
    assert pair.outs["y"].error == math.inf and pc.Evidence([pair], code, 1e-3).keys(pair, "outs")


def any_value(rnd, depth=0):
    """A value of any form that the runtime prints, as it may come from two trainings that have little in common."""
    number = lambda: rnd.choice([0.0, 1.0, 2.5, float("nan"), float("inf"), 3])  # noqa: E731
    plain = [
        lambda: ["N"], lambda: rnd.random() < 0.5, lambda: rnd.randint(0, 3), lambda: ["f", rnd.choice(["1.0", "nan", "inf", "2.5"])], lambda: ["s", rnd.choice("ab")],
        lambda: ["s", "x" * 40, rnd.randint(61, 63), rnd.randint(0, 9)], lambda: ["n", rnd.choice(["(1+2j)", "range(0, 3)"])], lambda: ["d", "cpu"], lambda: ["g", rnd.choice(["00", "11"])],
        lambda: ["?", "X"], lambda: ["F", rnd.choice("ab")], lambda: ["i", "0x4", 70], lambda: ["M", "Net"],
        lambda: ["T", rnd.choice(["float32", "int64", "bfloat16", "bool"]), rnd.choice([[2], [2, 3], [], [0], [-1]]), [number() for _ in range(rnd.choice([5, 5, 4]))], [], rnd.random() < 0.5, rnd.choice([[], [1, 0, 0]])],
        lambda: ["A", rnd.choice([20, 21]), ["f", "1.0"], ["f", rnd.choice(["1.0", "2.0"])], [1.0, rnd.choice([2.0, 2.5]), 1.0, 1.0, 1.0, 1.0], rnd.randint(0, 9)],
        lambda: ["M", "Net", rnd.random() < 0.5, rnd.randint(1, 2), rnd.random(), rnd.random(), [rnd.randint(0, 2) for _ in range(rnd.randint(0, 3))]],
    ]  # fmt: skip
    inner = lambda: any_value(rnd, depth + 1)  # noqa: E731
    members = lambda: [[rnd.choice("abc"), inner()] for _ in range(rnd.randint(0, 3))]  # noqa: E731
    nested = [
        lambda: ["l", rnd.randint(0, 3), rnd.choice([None, [inner() for _ in range(rnd.randint(0, 3))]])], lambda: ["m", rnd.randint(0, 3), rnd.choice([None, members()])], lambda: ["o", rnd.choice("AB"), members()],
        lambda: ["P", "Adam", [[["lr", inner()], ["params", 3]] for _ in range(rnd.randint(0, 2))]], lambda: ["w", "Linear", [[".weight", tensor([1.0])]], [["eps", rnd.choice([0.1, 1, True])]]],
        lambda: ["#", rnd.choice(["aa", "bb"]), rnd.choice("lom"), rnd.choice([3, 4, "A"])], lambda: ["#", rnd.choice(["aa", "bb"]), rnd.choice("lom"), 3, [1.0, rnd.random(), 3]],
    ]  # fmt: skip
    return rnd.choice(plain + (nested if depth < 3 else []))()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_two_trainings_print_is_compared_judged_and_shown(seed):
    rnd = random.Random(seed)
    func = pc.parse_func_for_code("m.py", "def f(x):\n    y = g(x, x)\n    x.z = y\n    return y\n")[1]
    call, code = pc.Call(func), mapped("", "")
    for _ in range(400):
        pairs, known = [], [any_value(rnd) for _ in range(4)]
        for place, stmt in enumerate(func.statements):
            kind, done = rnd.choice(["stmt", "stmt", "target"]), []
            for _ in "test", "baseline":
                ins = {name: rnd.choice(known) for name in ("x", "y") if rnd.random() < 0.8}
                outs = {name: rnd.choice([*known, any_value(rnd)]) for name in ("y", "x", "return", "=") if rnd.random() < 0.6} | rnd.choice([{}, {"&y": 1}])
                memory = {(phase, name): [rnd.randint(1, 3)] for phase, names in (("ins", ins), ("outs", outs)) for name in names if rnd.random() < 0.6}
                done.append(pc.Exec(kind, None, SimpleNamespace(stmt=stmt, func=func), call, place, 0, ins=ins, outs=outs, memory=memory))
            pair = pc.Pair(done[0] if rnd.random() < 0.9 else None, done[1], place=place)
            if pair.is_both:
                pc._compare(pair, code)
            if pairs and rnd.random() < 0.5:
                pair.parent = pairs[-1]
                pairs[-1].children.append(pair)
            pairs.append(pair)
        for candidate in pc.judge(pairs, {"test": {}, "baseline": {}}, code, 1e-3):
            json.dumps(pc.location_report(candidate, []).model_dump(mode="json"), allow_nan=False)


WITHIN = ("self", lambda kind: ["o", "Net", [["kind", ["s", kind]]]])
READ = ("self.kind", lambda kind: ["s", kind])


@pytest.mark.parametrize("text, made, wanted", [
    (WITHIN, (tensor([1.0]), tensor([2.0])), "y = x"),
    (WITHIN, (tensor([1.0]), tensor([1.0])), "KIND = 'plain'"),
    (WITHIN, (["F", "gelu"], ["F", "gelu_tanh"]), "KIND = 'plain'"),
    (WITHIN, (7, 8), "KIND = 'plain'"),
    (READ, (tensor([1.0]), tensor([2.0])), "KIND = 'plain'"),
    (READ, (7, 8), "KIND = 'plain'"),
])
def test_a_text_is_followed_to_its_line_unless_a_tensor_differs_and_some_object_holds_the_text(text, made, wanted):
    name, printed = text
    texts = {side: f"KIND = '{kind}'\n\n\ndef f(x):\n    y = x\n    return y\n" for side, kind in (("baseline", "flat"), ("test", "plain"))}
    funcs = {side: {"m.py": pc.parse_func_for_code("m.py", text)} for side, text in texts.items()}
    trees = {side: SimpleNamespace(sources={"m.py": pc.decode_source(text.encode())}, funcs=funcs[side], data_files=dict) for side, text in texts.items()}
    code = pc.map_code(funcs["baseline"], funcs["test"])
    done = {}
    for side, kind, value in (("baseline", "flat", made[0]), ("test", "plain", made[1])):
        func = funcs[side]["m.py"][1]
        outs = {"y": value, name: printed(kind)}
        done[side] = pc.Exec("stmt", None, SimpleNamespace(stmt=func.statements[0]), pc.Call(func), 0, 0, ins={"x": tensor([1.0])}, outs=outs)
    pair = pc.Pair(done["test"], done["baseline"])
    pc._compare(pair, code)
    candidate = pc.make_candidate(pc.Outcome.ORIGIN, pair, pc.Evidence([pair], code, 1e-3), "")
    pc.refine([candidate], trees, code)
    assert candidate.test.code == wanted
