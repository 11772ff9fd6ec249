"""What the tool's report is worth, given what a perfect localizer would have named."""
import ast
import json

_MODULE = "<module>"


def _text(path):
    return path.read_bytes().decode("utf-8").replace("\r\n", "\n")


def _header(node):
    """First and last line of a statement; of a compound one only its head."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.stmt):
        first = min((d.lineno for d in getattr(node, "decorator_list", [])), default=node.lineno)
        return first, max(node.lineno, body[0].lineno - 1)
    return node.lineno, node.end_lineno


def snippet_range(code, file, snippet, nth=None):
    """First and last line of the statements that `snippet` touches; it stands once in the file, or `nth` says which."""
    path = code / file
    if not path.is_file():
        raise ValueError(f"no file {file}")
    text = _text(path)
    places = [i for i in range(len(text)) if text.startswith(snippet, i)]
    if not places or (len(places) > 1 and nth is None) or (nth or 1) > len(places):
        raise ValueError(f"{len(places)} times in {file}: {snippet!r}")
    start = places[(nth or 1) - 1]
    first = text.count("\n", 0, start) + 1
    last = first + snippet.rstrip("\n").count("\n")
    return _whole_statements(text, first, last) if file.endswith(".py") else (first, last)


def _whole_statements(text, first, last):
    low, high = first, last
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            begin, end = _header(node)
            if begin <= last and end >= first:
                low, high = min(low, begin), max(high, end)
    return low, high


def function_at(code, file, line):
    """Qualified name of the function or class around a line."""
    if not file.endswith(".py"):
        return _MODULE
    names, nodes = [], ast.parse(_text(code / file)).body
    while True:
        inside = [n for n in nodes if n.lineno <= line <= n.end_lineno]
        if not inside:
            return ".".join(names) or _MODULE
        node = inside[0]
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.append(node.name)
        nodes = [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]


def _compound_end(code, file, line):
    """Last line of the compound statement that begins at a line, or None."""
    if not file.endswith(".py"):
        return None
    ends = [n.end_lineno for n in ast.walk(ast.parse(_text(code / file)))
            if isinstance(n, ast.stmt) and n.lineno == line and hasattr(n, "body")]
    return max(ends, default=None)


def names_statement(code, wanted, place):
    """Whether `place` (file, line, end_line) lies in one of the wanted statements, or is one with its body."""
    if not place or place.get("line") is None:
        return False
    line, end = place["line"], place.get("end_line") or place["line"]
    for item in wanted:
        if item[0] != place.get("file"):
            continue
        first, last = snippet_range(code, *item)
        if first <= line and end <= last:
            return True
        if line == first and end == _compound_end(code, item[0], first):
            return True
    return False


def _plain(name):
    name = (name or _MODULE).replace(".<locals>", "")
    return _MODULE if name in ("module", "") else name


def names_function(code, wanted, extra, place):
    """Whether `place` is in one of the functions around the wanted statements."""
    if not place:
        return False
    accepted = {(item[0], function_at(code, item[0], snippet_range(code, *item)[0])) for item in wanted}
    accepted |= {(item[0], name) for item in wanted for name in extra}
    return (place.get("file"), _plain(place.get("function"))) in accepted


def first_row_place(report, code):
    """What msprobe's first differing row alone says: the innermost frame in the model code."""
    mismatch = (report.get("msprobe") or {}).get("first_mismatch") or {}
    frames = []
    for frame in mismatch.get("stack") or []:
        file = (frame.get("file") or "").replace("\\", "/").rpartition("/code/")[2]
        if file and (code / file).is_file():
            frames.append(dict(frame, file=file))
    if not frames:
        return None
    # innermost first, as msprobe writes it, unless the report has turned it round
    return frames[-1] if frames[0]["file"] == "pretrain.py" else frames[0]


def read_report(space):
    """report.json, or an empty dict."""
    path = space.folder / "report" / "report.json"
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _named(place):
    if not place:
        return ""
    code = (place.get("code") or "").strip().partition("\n")[0]
    return f"{place.get('file')}:{place.get('line')} {code[:70]}"


def score(case, space, exit_code):
    """The row of one case."""
    report = read_report(space)
    code, old = space.code("test"), space.code("baseline")
    location = report.get("location") or {}
    test, baseline = location.get("test"), location.get("baseline")
    bug = case.expect == "located"
    statement = (names_statement(code, case.accept, test)
                 or names_statement(old, case.accept_baseline, baseline))
    function = (statement or names_function(code, case.accept, case.accept_functions, test)
                or names_function(old, case.accept_baseline, case.accept_functions, baseline))
    alone = names_statement(code, case.accept, first_row_place(report, code))
    return {
        "case": case.name, "phase": case.phase, "kind": case.kind, "bugs_id": case.bugs_id, "expect": case.expect,
        "exit_code": exit_code, "verdict": report.get("verdict", ""), "verdict_ok": report.get("verdict") == case.expect,
        "statement": statement if bug else None, "function": function if bug else None,
        "msprobe_alone": alone if bug and report.get("msprobe") else None,
        "reruns": report.get("reruns"), "location_kind": location.get("kind"),
        "named": _named(test or baseline),
    }
