"""Run the localization benchmark: every planted bug and every control, through the tool's command line.

    python tests/zoo/run_zoo.py --validate          the cases themselves, without the tool
    python tests/zoo/run_zoo.py --fast              a few cases, for CI
    python tests/zoo/run_zoo.py --work DIR          all cases; DIR keeps the first runs for the next time

Exit code 0 when the targets are met (see `TARGETS`), else 1.
"""
import argparse
import concurrent.futures
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cases import CASES  # noqa: E402
from scoring import score, snippet_range  # noqa: E402
from workspace import Workspace, first_difference, read_curves, snapshot  # noqa: E402

TOOL = HERE.parents[1] / "precision_comparer.py"
TARGETS = {"statement": 0.90, "function": 0.95, "false_alarms": 0, "median_reruns": 1, "max_reruns": 3}
_BASELINES = threading.Lock()


def parse_args():
    """The command line of the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--validate", action="store_true", help="run the trainings only and check the cases")
    parser.add_argument("--fast", action="store_true", help="the marked cases only")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="this case only; repeatable")
    parser.add_argument("--no-dump", action="store_true", help="no msprobe dump at all")
    parser.add_argument("--full", action="store_true", help="the tool launches the first runs too")
    parser.add_argument("--work", type=Path, help="keep the workspaces here and reuse their first runs")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tool", type=Path, default=TOOL, help="the script under test")
    parser.add_argument("--time-limit", type=int, default=1200, metavar="SECONDS", help="for one call of the tool")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the raw results here")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    return parser.parse_args()


def chosen_cases(args):
    """The cases the command line asks for."""
    unknown = set(args.case) - {case.name for case in CASES}
    if unknown:
        sys.exit(f"no such case: {', '.join(sorted(unknown))}")
    cases = [case for case in CASES if not args.case or case.name in args.case]
    return [case for case in cases if case.fast] if args.fast else cases


def prepare(case, root, args):
    """A workspace whose first runs are there, unless the tool is to launch them."""
    space = Workspace(case, root, dump=not (args.no_dump or args.validate))
    space.build()
    if not args.full:
        with _BASELINES:
            space.baseline_run()
        space.test_run()
    return space


def call_tool(space, args):
    """Run the tool once; its exit code (None after the time limit) and the seconds it took."""
    out = space.folder / "report"
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, str(args.tool.resolve()), "--config", str(space.folder / "config.json"),
               "--output-dir", str(out), "--no-llm"]
    if not args.full:
        command.append("--reuse-runs")
    start = time.monotonic()
    with open(space.folder / "tool.log", "wb") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=space.folder,
                                  env=space.environment(), timeout=args.time_limit).returncode
        except subprocess.TimeoutExpired:
            code = None
    return code, time.monotonic() - start


def run_case(case, root, args):
    """One row of the table."""
    try:
        space = prepare(case, root, args)
    except (ValueError, subprocess.SubprocessError) as error:
        return {"case": case.name, "phase": case.phase, "expect": case.expect, "error": f"first run failed: {error}"}
    before = snapshot(space.folder)
    code, seconds = call_tool(space, args)
    row = score(case, space, code)
    row.update(seconds=round(seconds, 1), untouched=snapshot(space.folder) == before)
    return row


def check_case(case, root, args):
    """What is wrong with a case itself, and where its curves part."""
    problems = []
    row = {"case": case.name, "phase": case.phase, "part": None, "any": None, "problems": problems}
    try:
        space = prepare(case, root, args)
    except (ValueError, subprocess.SubprocessError) as error:
        problems.append(str(error))
        return row
    for side, wanted in (("test", case.accept), ("baseline", case.accept_baseline)):
        for item in wanted:
            try:
                snippet_range(space.code(side), *item)
            except ValueError as error:
                problems.append(str(error))
    if case.expect == "located" and not case.accept:
        problems.append("nothing to accept")
    curves = [read_curves(space.log(side)) for side in ("baseline", "test")]
    if len(curves[0]) != case.steps or len(curves[1]) != case.steps:
        problems.append(f"steps logged: {len(curves[0])} and {len(curves[1])}, not {case.steps}")
    part = first_difference(*curves, case.tolerance)
    if (part is None) == (case.expect == "located"):
        problems.append("curves agree" if part is None else f"curves differ at {part}")
    row.update(part=part, any=first_difference(*curves, 0.0))
    return row


def print_check(row):
    """One line of `--validate`."""
    part = "agree" if row["part"] is None else "step {} {} by {:.3g}".format(*row["part"])
    if row["part"] is None and row["any"]:
        part += " (step {} {} by {:.3g})".format(*row["any"])
    print(f"{'BAD ' if row['problems'] else 'ok  '} {row['case']:28} {row['phase']:12} {part}", *row["problems"], sep="  ", flush=True)


COLUMNS = (("case", 26), ("phase", 11), ("verdict", 12), ("statement", 9), ("function", 8), ("reruns", 6),
           ("seconds", 7), ("untouched", 9), ("msprobe alone", 13), ("named", 0))


def cells(row):
    """The texts of one row."""
    if "error" in row:
        return [row["case"], row["phase"], "ERROR", "", "", "", "", "", "", row["error"]]
    word = {True: "yes", False: "NO", None: "-"}
    verdict = row["verdict"] if row["verdict_ok"] else f"{row['verdict']} !"
    return [row["case"], row["phase"], verdict, word[row["statement"]], word[row["function"]], str(row["reruns"]),
            str(row["seconds"]), word[row["untouched"]], word[row["msprobe_alone"]], row["named"]]


def print_row(texts, markdown):
    """One line, aligned or as markdown."""
    if markdown:
        print("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |", flush=True)
    else:
        print("  ".join(text.ljust(width) for text, (_, width) in zip(texts, COLUMNS)), flush=True)


def print_header(markdown):
    """Column names."""
    print_row([name for name, _ in COLUMNS], markdown)
    if markdown:
        print("|" + " --- |" * len(COLUMNS))


def summarize(rows):
    """The figures the targets are about."""
    bugs = [row for row in rows if row["expect"] == "located"]
    controls = [row for row in rows if row["expect"] == "consistent"]
    reruns = [row["reruns"] for row in bugs if isinstance(row.get("reruns"), int)]

    def share(key):
        return sum(row.get(key) is True for row in bugs) / len(bugs) if bugs else 1.0

    return {
        "bugs": len(bugs), "controls": len(controls),
        "statement": share("statement"), "function": share("function"), "msprobe_alone": share("msprobe_alone"),
        "false_alarms": sum(row.get("verdict") in ("located", "not_located") for row in controls),
        "errors": sum("error" in row or not row.get("verdict") for row in rows),
        "median_reruns": statistics.median(reruns) if reruns else 0,
        "max_reruns": max(reruns, default=0),
        "touched": sum(row.get("untouched") is False for row in rows),
    }


def met(figures):
    """Whether the targets are met."""
    return (figures["statement"] >= TARGETS["statement"] and figures["function"] >= TARGETS["function"]
            and figures["false_alarms"] <= TARGETS["false_alarms"] and not figures["errors"] and not figures["touched"]
            and figures["median_reruns"] <= TARGETS["median_reruns"] and figures["max_reruns"] <= TARGETS["max_reruns"])


def print_summary(figures):
    """The last lines."""
    print(f"\n{figures['bugs']} bugs, {figures['controls']} controls"
          f"\nstatement hit {figures['statement']:.1%}, function hit {figures['function']:.1%}"
          f" (msprobe's first row alone: statement {figures['msprobe_alone']:.1%})"
          f"\nfalse alarms {figures['false_alarms']}, no report {figures['errors']}, code trees changed {figures['touched']}"
          f"\nreruns: median {figures['median_reruns']:g}, maximum {figures['max_reruns']}"
          f"\ntargets {'met' if met(figures) else 'NOT met'}")


def each(function, cases, root, args, show):
    """Call `function` for every case, `--jobs` at a time, and show each row when it ends."""
    rows = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        waiting = [pool.submit(function, case, root, args) for case in cases]
        for done in concurrent.futures.as_completed(waiting):
            rows.append(done.result())
            show(rows[-1])
    return rows


def main():
    """Validate the cases or run them through the tool."""
    args = parse_args()
    cases = chosen_cases(args)
    root = args.work or Path(tempfile.mkdtemp(prefix="zoo-"))
    root = root.resolve()
    root.mkdir(parents=True, exist_ok=True)
    try:
        if args.validate:
            rows = each(check_case, cases, root, args, print_check)
            good = not any(row["problems"] for row in rows)
            print(f"\n{len(rows)} cases, {sum(bool(row['problems']) for row in rows)} with problems")
        else:
            print_header(args.markdown)
            rows = each(run_case, cases, root, args, lambda row: print_row(cells(row), args.markdown))
            figures = summarize(rows)
            print_summary(figures)
            good = met(figures)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    finally:
        if not args.work:
            shutil.rmtree(root, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
