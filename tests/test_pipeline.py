"""The real command from config to verdict (section 14): on a copy of the shipped example, and on tiny trainings that go wrong."""

import ctypes
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from llm_server import Reply, completion, serving

import precision_comparer as pc

ROOT = Path(pc.__file__).resolve().parent
SCRIPT = ROOT / "precision_comparer.py"
GUILTY = ("model/rotary_pos_embedding.py", "emb = freqs.repeat_interleave(2, dim=-1)")
RIGHT = ("model/rotary_pos_embedding.py", "emb = torch.cat((freqs, freqs), dim=-1)")


# --- Running the command ---


@dataclass
class Ended:
    """A command that ended: its exit code, what it showed, and its output folder if it made one."""

    code: int
    out: str
    err: str
    folder: Path | None

    @property
    def report(self) -> dict:
        """`report.json`, read as strict JSON."""

        def refuse(name: str) -> None:
            raise AssertionError(f"{name} in report.json")

        return json.loads((self.folder / "report.json").read_text(encoding="utf-8"), parse_constant=refuse)

    @property
    def error(self) -> str:
        """The one error that was shown."""
        assert self.out.count("错误: ") == 1, self.out
        return self.out.partition("错误: ")[2]


def environment(**changes: str) -> dict[str, str]:
    """What the command runs under: this interpreter's programs first, nothing that would steer the trainings."""
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "PRECISION_COMPARER_RERUN", "PYTHON")}
    return env | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"} | changes


def reports_of(folder: Path) -> list[Path]:
    """The output folders of all runs so far, the newest last."""
    return sorted(folder.glob("precision_report/2*"), key=lambda path: path.stat().st_mtime_ns)


def compare(folder: Path, *words: str, script: Path = SCRIPT, preexec=None, **env: str) -> Ended:
    """Run the command in a folder with a `config.json` to its end."""
    before = reports_of(folder)
    done = subprocess.run([sys.executable, str(script), *words], cwd=folder, env=environment(**env), preexec_fn=preexec,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=900)  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr and not done.stderr, done.stdout + done.stderr
    new = [path for path in reports_of(folder) if path not in before]
    return Ended(done.returncode, done.stdout, done.stderr, new[-1] if new else None)


def trees(folder: Path) -> dict[str, tuple]:
    """Contents, permissions and modification time of every file of both code trees, as `git status` would look at them."""
    files = (path for side in ("baseline", "test") for path in (folder / side / "code").rglob("*"))
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }


def place_of(code: Path, file: str, text: str) -> tuple[str, int, str]:
    """File, line and code of the statement that holds `text`."""
    lines = (code / file).read_text(encoding="utf-8").split("\n")
    number = next(number for number, line in enumerate(lines, 1) if text in line)
    return file, number, lines[number - 1].strip()


# --- The shipped example ---


def copy_example(folder: Path) -> Path:
    """The example and its config as a clone has them, without logs, dumps and reports."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("logs", "dump", "__pycache__"))
    shutil.copy2(ROOT / "config.json", folder / "config.json")
    shutil.copy2(SCRIPT, folder / SCRIPT.name)
    return folder


def sides_of(folder: Path) -> Path:
    """Where both sides of the example are."""
    return folder / "examples" / "tiny_gpt"


def change_config(folder: Path, **sections: dict) -> None:
    """Put some keys into the `config.json` of a folder."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, keys in sections.items():
        config.setdefault(name, {}).update(keys)
    (folder / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")


@dataclass
class Full:
    """The main job: where it ran, both code trees before it, and how it ended."""

    folder: Path
    before: dict[str, tuple]
    ended: Ended


@pytest.fixture(scope="session")
def full(tmp_path_factory) -> Full:
    """`python precision_comparer.py` on a copy of the example: two trainings with dumps, msprobe, one rerun."""
    folder = copy_example(tmp_path_factory.mktemp("full"))
    before = trees(sides_of(folder))
    return Full(folder, before, compare(folder, script=folder / SCRIPT.name))


@pytest.fixture
def ready(full, tmp_path) -> Path:
    """A copy of the example with the logs and dumps of the first runs; msprobe is not to be found."""
    folder = tmp_path / "ready"
    shutil.copytree(full.folder, folder, ignore=shutil.ignore_patterns("precision_report", "__pycache__"))
    change_config(folder, msprobe={"command": "no-such-msprobe"})
    return folder


def check_located(report: dict, folder: Path) -> None:
    """The planted statement was found on both sides, after one rerun."""
    code = sides_of(folder)
    assert report["verdict"] == "located" and report["reruns"] == 1 and len(report["rounds"]) == 1
    found = {side: report["location"][side] for side in ("test", "baseline")}
    assert {side: (place["file"], place["line"], place["code"]) for side, place in found.items()} == {
        "test": place_of(code / "test/code", *GUILTY),
        "baseline": place_of(code / "baseline/code", *RIGHT),
    }
    assert {place["function"] for place in found.values()} == {"RotaryEmbedding.forward"}
    seen = {(row["phase"], row["name"]): row["agree"] for row in report["location"]["evidence"]}
    assert seen["in", "freqs"] and not seen["out", "emb"]


def test_main_job_names_the_planted_statement_after_one_rerun(full):
    ended = full.ended
    assert ended.code == 1
    check_located(ended.report, full.folder)
    assert "精度一致性: ✗ 不一致" in ended.out and "model/rotary_pos_embedding.py:21" in ended.out
    code = [(number, line) for number, line in re.findall(r"^  >? +(\d+) \| (.*)$", ended.out, re.MULTILINE)]
    assert [number for number, _ in code] == ["19", "20", "21", "22", "23", "15", "16", "17", "18", "19"] and code[2][1] == f"        {GUILTY[1]}"
    assert re.search(r"条记录一致; 出处在 model/rotary_pos_embedding.py:21: ", ended.out)
    assert ended.report["msprobe"]["first_mismatch"]["npu_name"].startswith("Tensor.__mul__.")
    assert ended.report["msprobe"]["first_mismatch"]["stack"][0]["function"] == "apply_rotary_pos_emb"
    assert Path(ended.report["msprobe"]["result_file"]).is_file() and ended.report["warnings"] == []


def test_the_readme_shows_what_the_main_job_shows(full):
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("### 样例的输出")[1].split("\n## ")[0]
    shown = [line[4:] for line in section.splitlines() if line.startswith("    ") and line.strip() != "…"]

    def pattern(line: str) -> str:  # the last digits of a float may depend on the processor
        return re.sub(r"\d+", r"\\d+", re.escape(line).replace("…", ".*"))

    said = full.ended.out.splitlines()
    assert len(shown) > 30 and [line for line in shown if not any(re.fullmatch(pattern(line), other) for other in said)] == []


def test_main_job_leaves_the_code_as_it_was(full):
    assert trees(sides_of(full.folder)) == full.before
    assert not list(full.folder.rglob(".precision_comparer_*"))


def test_console_log_is_complete_and_the_prints_are_kept(full):
    assert (full.ended.folder / "console.log").read_text(encoding="utf-8") == full.ended.out
    for side in ("baseline", "test"):
        assert (full.ended.folder / f"prints_round1_{side}.txt").stat().st_size
        assert b"training success" in (full.ended.folder / f"first_{side}.log").read_bytes()


def metric_lines(log: Path) -> list[str]:
    """The lines with loss and grad norm, without the time a step took."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith(" iteration")]
    return [re.sub(r"elapsed time[^|]*", "", line) for line in lines]


@pytest.mark.parametrize("side", ["baseline", "test"])
def test_prints_do_not_change_the_training(full, side):
    first, rerun = (metric_lines(full.ended.folder / f"{tag}_{side}_1_train.log") for tag in ("first", "rerun1"))
    assert first == rerun and len(first) == 6


NUMBER = (int, float, {"nan", "inf", "-inf"})
PLACE = {"file": str, "function": str, "line": int, "end_line": int, "code": str}
FRAME = {"file": str, "line": int, "function": str, "code": str}
LOCATION = {
    "kind": {"operator", "code_differs", "constant", "parameter", "data", "random", "backward", "optimizer", "communication", "control_flow"},
    "test": (PLACE, {None}),
    "baseline": (PLACE, {None}),
    "evidence": [{"phase": {"in", "out"}, "name": str, "baseline": object, "test": object, "agree": bool}],
    "call_stack": [FRAME],
    "explanation": str,
}
METRIC = {
    "keyword": str, "steps_compared": int, "mean_abs_diff": NUMBER, "max_abs_diff": NUMBER, "mean_rel_diff": NUMBER,
    "max_rel_diff": NUMBER, "first_step_over_tolerance": (int, {None}),
}  # fmt: skip
ALONE = {"baseline": {"count": int, "first": [int]}, "test": {"count": int, "first": [int]}}
SERIES = {"loss": [[NUMBER]], "grad_norm": [[NUMBER]]}
REPORT = {
    "schema_version": {1},
    "verdict": {"consistent", "located", "not_located"},
    "metrics": {"loss": METRIC, "grad_norm": METRIC, "unmatched_steps": {"loss": ALONE, "grad_norm": ALONE}},
    "msprobe": (
        {
            "result_file": (str, {None}), "rows": int,
            "first_mismatch": ({"row": int, "npu_name": str, "bench_name": (str, {None}), "reason": str, "stack": [FRAME]}, {None}),
        },
        {None},
    ),
    "location": (LOCATION, {None}),
    "candidates": [LOCATION],
    "series": {"baseline": SERIES, "test": SERIES},
    "rounds": [{"injected_files": [str], "sites": int, "records": int, "records_equal_before": int, "conclusion": str}],
    "reruns": int,
    "not_traced": [str],
    "warnings": [str],
    "opinion": (str, {None}),
}  # fmt: skip


def misfits(value, shape, where="report") -> list[str]:
    """Where `value` has not the shape: a type, a set of values, [shape of all], {key: shape}, or a tuple of alternatives."""
    if isinstance(shape, tuple):
        return [] if any(not misfits(value, one) for one in shape) else [f"{where}: {value!r}"]
    if isinstance(shape, dict):
        if not isinstance(value, dict) or set(value) != set(shape):
            return [f"{where} has {sorted(value) if isinstance(value, dict) else value!r}"]
        return [text for key, inner in shape.items() for text in misfits(value[key], inner, f"{where}.{key}")]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r}"]
        return [text for at, item in enumerate(value) for text in misfits(item, shape[0], f"{where}[{at}]")]
    if isinstance(shape, set):
        return [] if isinstance(value, (str, int, type(None))) and value in shape else [f"{where}: {value!r}"]
    return [] if isinstance(value, shape) and (shape is not int or not isinstance(value, bool)) else [f"{where}: {value!r}"]


def test_the_page_shows_both_places_the_curves_and_the_way_to_them(full):
    page = (full.ended.folder / "report.html").read_text(encoding="utf-8")
    assert re.findall(r'<div class="guilty"><i>(\d+)</i>', page)[:2] == ["21", "17"] and "第一处不一致在 test 的 model/rotary_pos_embedding.py:21" in page
    assert "<mark>.repeat_interleave(2</mark>" in page and re.search(r"msprobe：26\.", page) and '<tr class="first"><td class="n">144</td>' in page
    versions = re.findall(r"<li>(?:baseline|test) 的训练：(.*?)</li>", page)
    assert len(set(versions)) == 1 and len(versions) == 2 and re.fullmatch(r"Python 3\.[\d.]+, torch 2\.\S+, numpy \S+", versions[0])
    data = json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1])
    assert [curve["steps"] for curve in data["curves"]] == [[1, 2, 3, 4, 5, 6]] * 2 and [curve["first"] for curve in data["curves"]] == [1, 1]
    at = next(at for at, point in enumerate(data["errors"]) if point[3])
    before = [point[0] for point in data["errors"][:at]]
    assert data["errors"][at][2].startswith("model/rotary_pos_embedding.py:21 ") and data["errors"][at][0] > 1e-6
    assert len(before) > 500 and sum(error > 1e-6 for error in before) < 3  # how one argument is parsed differs, to no effect


def test_report_has_the_documented_shape(full):
    report = full.ended.report
    assert misfits(report, REPORT) == []
    assert len(report["candidates"]) <= 5 and report["location"]["test"] and report["msprobe"]["rows"] > 100
    assert [step for step, _ in report["series"]["test"]["loss"]] == [1, 2, 3, 4, 5, 6]
    assert all(len(point) == 2 for side in report["series"].values() for points in side.values() for point in points)
    assert report["rounds"][0]["records"] > report["rounds"][0]["records_equal_before"] > 0


def test_without_the_bug_both_agree_and_nothing_is_touched(tmp_path):
    folder = copy_example(tmp_path)
    guilty = sides_of(folder) / "test" / "code" / GUILTY[0]
    guilty.write_text(guilty.read_text(encoding="utf-8").replace(GUILTY[1], RIGHT[1]), encoding="utf-8")
    trap = tmp_path / "msprobe"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    trap.chmod(0o755)
    change_config(folder, msprobe={"command": str(trap)})
    before = trees(sides_of(folder))
    ended = compare(folder, PRECISION_COMPARER_RERUN="1")  # the example leaves its dump out
    assert ended.code == 0 and "精度一致性: ✓ 一致" in ended.out and "插入" not in ended.out and "[5/6]" not in ended.out
    assert "Loss - 平均差异: 0.000000, 最大差异: 0.000000\nGrad Norm - 平均差异: 0.000000, 最大差异: 0.000000\n" in ended.out
    report = ended.report
    assert misfits(report, REPORT) == [] and (report["verdict"], report["location"], report["msprobe"]) == ("consistent", None, None)
    assert report["rounds"] == [] and report["reruns"] == 0 and report["warnings"] == []
    assert trees(sides_of(folder)) == before and not (tmp_path / "called").exists()


def dumped(folder: Path, side: str) -> dict:
    """Every call in the dump of a side, with its statistics."""
    (path,) = (sides_of(folder) / side / "dump" / "step0").glob("*/dump.json")
    return json.loads(path.read_text(encoding="utf-8"))["data"]


def test_reuse_runs_without_msprobe_gives_the_same_verdict(full, ready):
    for side in ("baseline", "test"):  # a script that dumps in the rerun too
        script = sides_of(ready) / side / "run.sh"
        script.write_text(script.read_text().replace("\nexport", "\nunset PRECISION_COMPARER_RERUN\nexport", 1))
    ended = compare(ready, "--reuse-runs")
    assert ended.code == 1 and not list(ended.folder.glob("first_*.log"))
    check_located(ended.report, ready)
    assert "找不到 msprobe 命令" in "".join(ended.report["warnings"]) and ended.report["msprobe"]["result_file"] is None
    mine, theirs = (report["msprobe"]["first_mismatch"] for report in (ended.report, full.ended.report))
    assert (mine["row"], mine["npu_name"], mine["stack"]) == (theirs["row"], theirs["npu_name"], theirs["stack"])
    assert trees(sides_of(ready)) == full.before
    for side in ("baseline", "test"):  # the prints left no trace in the dump
        assert dumped(ready, side) == dumped(full.folder, side)


def test_without_any_dump_the_verdict_is_the_same(full, ready):
    for side in ("baseline", "test"):
        shutil.rmtree(sides_of(ready) / side / "dump")
    ended = compare(ready, "reuse_runs=true", "max_iterations=1")
    assert ended.code == 1
    check_located(ended.report, ready)
    assert ended.report["msprobe"] is None and "没有可用的 msprobe dump" in "".join(ended.report["warnings"])
    assert trees(sides_of(ready)) == full.before


LIES = {"inputs": ["position_ids", "exit()"], "outputs": ["cos", "sin"], "in_place": ["self.inv_freq"], "hypothesis": "两侧一致", "explanation": "没有问题", "opinion": "两侧一致"}
SERVERS = {"lying": Reply(completion(json.dumps(LIES))), "slow": Reply(completion(json.dumps(LIES)), blank_lines=10000, pause=0.05), "down": None}


def test_with_the_model_down_slow_or_lying_the_verdict_is_the_same(full, ready, tmp_path):
    def ask(name: str) -> Ended:
        folder = tmp_path / name / "project"
        shutil.copytree(ready, folder)
        with serving(lambda body, number: SERVERS[name]) as server:
            url = server.url if SERVERS[name] else "http://127.0.0.1:9"
            change_config(folder, deepseek={"base_url": url, "timeout_seconds": 3})
            ended = compare(folder, "--reuse-runs", DEEPSEEK_API_KEY="sk-0123456789", NO_PROXY="127.0.0.1")
            return replace(ended, out=ended.out + f"\nasked {len(server.requests)} times")

    with ThreadPoolExecutor(len(SERVERS)) as pool:
        runs = dict(zip(SERVERS, pool.map(ask, SERVERS)))
    for name, ended in runs.items():
        assert ended.code == 1 and ended.report["reruns"] == full.ended.report["reruns"] == 1, ended.out
        check_located(ended.report, full.folder)
        assert ended.report["opinion"] == ("两侧一致" if name == "lying" else None)
        assert ("DeepSeek 没有给出可用的回答" in ended.out) == (name != "lying") and ("asked 0 times" in ended.out) == (name == "down"), ended.out


def test_reuse_and_compare_only_starts_nothing(full, ready):
    for side in ("baseline", "test"):
        (sides_of(ready) / side / "run.sh").unlink()
    began = time.monotonic()
    ended = compare(ready, "reuse_runs=true", "--compare-only")
    assert ended.code == 4 and time.monotonic() - began < 60
    report = ended.report
    assert misfits(report, REPORT) == [] and report["verdict"] == "not_located" and report["rounds"] == []
    assert report["msprobe"]["first_mismatch"]["row"] == full.ended.report["msprobe"]["first_mismatch"]["row"]
    assert report["metrics"] == full.ended.report["metrics"] and report["series"] == full.ended.report["series"]
    assert trees(sides_of(ready)) == full.before
    assert "run_script 不存在" in compare(ready, "--reuse-runs").error  # a rerun would need it


def test_words_override_the_config(ready):
    ended = compare(ready, "reuse_runs=true", "tolerance=1000", "output-dir=my report")
    assert ended.code == 0 and "✓ 一致" in ended.out and ended.folder is None
    assert json.loads((ready / "my report" / "report.json").read_text(encoding="utf-8"))["verdict"] == "consistent"
    assert "--tolerance" in (refused := compare(ready, "tolerence=1")).error and refused.code == 2 and refused.folder is None


# --- Interrupted while the prints are in the code ---


def wait_for(condition, seconds: float = 60):
    """Wait until `condition()` is true and return it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert value
    return value


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


class Rerun:
    """The command in the middle of its rerun: the prints are in the code, and the training `pid` hangs."""

    def __init__(self, folder: Path, preexec=None):
        self.folder, self.code, started = folder, sides_of(folder), sides_of(folder) / "baseline" / "started"
        (self.code / "baseline" / "run.sh").write_text(f'#!/bin/bash\necho $$ > "{started}"\nexec sleep 300\n')
        self.before = trees(self.code)
        self.process = subprocess.Popen([sys.executable, str(SCRIPT), "--reuse-runs"], cwd=folder, env=environment(), preexec_fn=preexec,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, encoding="utf-8")  # fmt: skip
        wait_for(lambda: started.exists() and started.read_text().endswith("\n"))
        self.pid = int(started.read_text())
        assert trees(self.code) != self.before and not gone(self.pid)

    def end(self) -> Ended:
        """Wait for the command."""
        out, _ = self.process.communicate(timeout=60)
        return Ended(self.process.returncode, out, "", reports_of(self.folder)[-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_rerun_restores_the_code_and_leaves_no_process(ready, number):
    rerun = Rerun(ready)
    rerun.process.send_signal(number)
    ended = rerun.end()
    assert ended.code == 130 and "已中断" in ended.out and "Traceback" not in ended.out
    assert trees(rerun.code) == rerun.before and gone(rerun.pid) and not list(ready.rglob(".precision_comparer_*"))
    assert ended.report["verdict"] == "not_located" and "被中断" in ended.report["warnings"][-1]
    assert misfits(ended.report, REPORT) == []


def test_impatient_interrupts_do_not_cut_the_restoration_short(ready):
    rerun = Rerun(ready)
    while rerun.process.poll() is None:
        rerun.process.send_signal(signal.SIGINT)
        time.sleep(0.03)
    ended = rerun.end()
    assert ended.code == 130 and "Traceback" not in ended.out and ended.report["verdict"] == "not_located"
    assert trees(rerun.code) == rerun.before and gone(rerun.pid)


def test_nohup_survives_the_end_of_the_terminal(ready):
    rerun = Rerun(ready, preexec=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    rerun.process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert rerun.process.poll() is None and not gone(rerun.pid)
    rerun.process.send_signal(signal.SIGINT)
    assert rerun.end().code == 130 and trees(rerun.code) == rerun.before and gone(rerun.pid)


@pytest.fixture
def killed(ready) -> Rerun:
    """A rerun whose command was killed with -9: nothing could clean up behind it."""
    rerun = Rerun(ready)
    rerun.process.kill()
    rerun.process.communicate(timeout=60)
    os.kill(rerun.pid, signal.SIGKILL)
    assert trees(rerun.code) != rerun.before
    return rerun


def test_restore_undoes_what_a_killed_run_left(killed):
    ended = compare(killed.folder, "--restore")
    assert ended.code == 0 and "已还原" in ended.out and trees(killed.code) == killed.before
    assert not list(killed.folder.rglob(".precision_comparer_*"))
    again = compare(killed.folder, "restore=true")
    assert again.code == 0 and "没有需要还原的文件" in again.out


def test_the_next_run_undoes_it_too(killed):
    ended = compare(killed.folder, "--reuse-runs", "--tolerance", "1000")
    assert ended.code == 0 and "已还原" in ended.out and trees(killed.code) == killed.before


def test_a_file_edited_after_the_kill_is_never_overwritten(killed):
    edited = killed.code / "test" / "code" / GUILTY[0]
    mine = edited.read_bytes() + b"# mine\n"
    edited.write_bytes(mine)
    ended = compare(killed.folder, "--restore")
    assert ended.code == 3 and str(edited) in ended.out and edited.read_bytes() == mine
    kept = Path(re.search(r"保存在 (\S+)", ended.out)[1])
    assert kept.read_bytes() == killed.before[f"test/code/{GUILTY[0]}"][0]
    after = trees(killed.code)
    assert {name for name in killed.before if after[name] != killed.before[name]} == {f"test/code/{GUILTY[0]}"}


# --- Wrong inputs, on trainings that take no time ---

TRAIN = """import model

weight = 0.5
for step in range(1, 5):
    loss, gradient = model.forward(weight, step * 0.25)
    weight = weight - 0.1 * gradient
    print(f" iteration {step}/ 4 | lm loss: {loss:.6E} | grad norm: {abs(gradient):.6f} |", flush=True)
print("training success")
"""
MODEL = """import math

FACTOR = 2.0


def forward(weight, data):
    hidden = weight * FACTOR
    return math.pow(hidden - data, 2), 2 * (hidden - data)
"""
RUN = '#!/bin/bash\nset -eo pipefail\ncd "$(dirname "$0")"\nmkdir -p logs\npython3 -u code/train.py | tee logs/train.log\n'
LOG = " iteration 1/ 2 | lm loss: 1.0E+00 | grad norm: {} |\ntraining success\n"


@pytest.fixture
def tiny(tmp_path) -> Path:
    """Two trainings without torch that take no time and differ in a factor; logs of earlier runs are there."""
    for side, factor in (("baseline", "2.0"), ("test", "2.5")):
        (tmp_path / side / "code").mkdir(parents=True)
        (tmp_path / side / "logs").mkdir()
        (tmp_path / side / "logs" / "train.log").write_text(LOG.format(factor))
        (tmp_path / side / "code" / "train.py").write_text(TRAIN)
        (tmp_path / side / "code" / "model.py").write_text(MODEL.replace("2.0", factor))
        (tmp_path / side / "run.sh").write_text(RUN)
    sides = {side: {"log_path": f"{side}/logs/train.log", "code_path": f"{side}/code", "run_script": f"{side}/run.sh"} for side in ("baseline", "test")}
    (tmp_path / "config.json").write_text(json.dumps(sides | {"debug": {"log_keywords": ["lm loss", "grad norm"]}}))
    return tmp_path


def remove(name: str):
    """A change that removes a file or a folder."""
    return lambda folder: shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink()


def put(name: str, text: str):
    """A change that writes a file."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return change


def configure(section: str, **keys):
    """A change of the config."""
    return lambda folder: change_config(folder, **{section: keys})


FAILS = RUN.replace(" |", " | grep -v success |") + "echo 'RuntimeError: out of memory' >&2\nexit 7\n"
HANGS = '#!/bin/bash\necho "loading data"\nsleep 100\n'
FAILS_AGAIN = RUN.replace("set -eo", "[ -z $PRECISION_COMPARER_RERUN ] || exit 5\nset -eo")
ERRORS = {
    "missing config": ([remove("config.json")], [], 2, ["找不到配置文件", "--config"]),
    "broken JSON": ([put("config.json", '{"baseline": {},}')], [], 2, ["不是合法的 JSON", "第 1 行"]),
    "empty config": ([put("config.json", "")], [], 2, ["文件是空的"]),
    "unknown key": ([configure("debug", tolerence=1)], [], 2, ["未知的配置项 debug.tolerence", "tolerance"]),
    "wrong type": ([configure("debug", max_iterations="many")], [], 2, ['debug.max_iterations 的值 "many" 类型不对', "整数"]),
    "two wrong values": ([configure("debug", rank=-1), configure("test", mode="ssh")], [], 2, ["2 处错误", "debug.rank", "test.mode"]),
    "unknown machine": ([configure("test", mode="remote", ssh={"host": "no-such-host.invalid"}, log_path="/l", code_path="/c", run_script="/r")], [], 3, ["找不到主机"]),
    "wrong option": ([], ["--reuse-run"], 2, ["无法识别的参数 --reuse-run", "--reuse-runs"]),
    "bad value of an option": ([], ["max_iterations=0"], 2, ["debug.max_iterations", "不能小于 1"]),
    "missing code folder": ([remove("test/code")], [], 2, ["test.code_path 不存在", "请改成"]),
    "missing run_script": ([remove("baseline/run.sh")], [], 2, ["baseline.run_script 不存在"]),
    "missing both": ([remove("baseline/run.sh"), remove("test/code")], [], 2, ["baseline.run_script 不存在", "test.code_path 不存在"]),
    "output folder cannot be made": ([], ["--output-dir", "config.json/report"], 2, ["不能在", "config.json/report", "--output-dir"]),
    "script fails": ([put("test/run.sh", FAILS)], [], 3, ["退出码 7", "成功标志", "out of memory"]),
    "script fails at once": ([put("baseline/run.sh", "echo no NPU found\nexit 9\n")], [], 3, ["退出码 9", "no NPU found", "baseline/run.sh"]),
    "script hangs": ([put("test/run.sh", HANGS), configure("debug", stall_minutes=0.03)], [], 3, ["判定为卡住", "loading data", "stall_minutes"]),
    "no such keyword": ([configure("debug", log_keywords=["lm losses", None])], ["--reuse-runs"], 3, ["找不到关键字 'lm losses'", "lm loss "]),
    "no log": ([remove("test/logs/train.log")], ["--reuse-runs"], 3, ["test 侧没有可用的日志"]),
    "no common step": ([put("test/logs/train.log", LOG.format(1).replace(" 1/", " 2/"))], ["--reuse-runs"], 3, ["没有共同的步"]),
    "rerun fails": ([put("test/run.sh", FAILS_AGAIN)], [], 3, ["test 侧训练已退出（退出码 5）"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_a_wrong_input_is_one_clear_sentence(tiny, name):
    changes, words, code, says = ERRORS[name]
    for change in changes:
        change(tiny)
    before = trees(tiny)
    ended = compare(tiny, *words)
    assert ended.code == code and all(word in ended.error for word in says), ended.out
    assert re.search(r"[\u4e00-\u9fff]", ended.error) and trees(tiny) == before
    assert not list(tiny.rglob(".precision_comparer_*"))
    if code == 3 or name in ("missing code folder", "missing run_script", "missing both"):  # the config is valid
        assert "没有完成：" in (ended.folder / "report.html").read_text(encoding="utf-8")
        assert (ended.folder / "console.log").read_text(encoding="utf-8") == ended.out


def test_a_rerun_that_fails_still_leaves_a_report(tiny):
    put("test/run.sh", FAILS_AGAIN)(tiny)
    ended = compare(tiny)
    report = ended.report
    assert ended.code == 3 and "定位没有完成" in ended.out and "report.json" in ended.out
    page = (ended.folder / "report.html").read_text(encoding="utf-8")
    assert "没有完成：test 侧训练已退出（退出码 5）" in page and "Loss 最大差异（4 步）" in page
    assert misfits(report, REPORT) == [] and report["verdict"] == "not_located" and report["location"] is None
    assert "定位没有完成" in report["warnings"][-1] and "退出码 5" in report["warnings"][-1]
    assert report["metrics"]["loss"]["steps_compared"] == 4


LATE_TRAIN = """import model

weight = 0.5
for step in range(1, 41):
    model.tick()
    loss, gradient = model.forward(weight, step * 0.25)
    weight = weight - 0.1 * gradient
    print(f" iteration {step}/ 40 | lm loss: {loss:.6E} | grad norm: {abs(gradient):.6f} |", flush=True)
print("training success")
"""
LATE_MODEL = """import os

SEEN = {"batches": 0, "calls": 0}
jit = staticmethod


@jit
def tick():
    SEEN["batches"] += int(open(os.path.join(os.path.dirname(__file__), "sizes.txt")).readlines()[SEEN["calls"]])
    SEEN["calls"] += 1


def forward(weight, data):
    warmed_up = SEEN["batches"] > 40
    hidden = weight * (2.0 if warmed_up else 1.0)
    return (hidden - data) ** 2, 2 * (hidden - data)
"""
FAILS_LATER = RUN.replace("set -eo", "[ -z $PRECISION_COMPARER_RERUN ] || { echo >> reruns; [ $(wc -l < reruns) -lt 2 ] || exit 5; }\nset -eo")


def test_what_a_round_found_is_kept_when_the_next_rerun_fails(tiny):
    for side, first in (("baseline", 1), ("test", 12)):  # wrong from the first step on, seen from the 30th on
        put(f"{side}/code/train.py", LATE_TRAIN)(tiny)
        put(f"{side}/code/model.py", LATE_MODEL)(tiny)
        put(f"{side}/code/sizes.txt", f"{first}\n" + 39 * "1\n")(tiny)
        put(f"{side}/run.sh", FAILS_LATER)(tiny)
    ended = compare(tiny)
    report = ended.report
    assert ended.code == 3 and "退出码 5" in ended.error and report["reruns"] == 2 and report["location"] is None
    assert any(place["test"]["file"] == "model.py" for place in report["candidates"]) and len(report["rounds"]) == 1
    assert "候选" in (ended.folder / "report.html").read_text(encoding="utf-8")


def no_large_files() -> None:
    """As on a full disk: no file may grow beyond 1 MiB, and the page is larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def test_a_report_that_cannot_be_written_costs_neither_the_verdict_nor_the_reason(tiny):
    located = compare(tiny, preexec=no_large_files)
    assert located.code == 3 and "第一处不一致" in located.out and "model.py:3" in located.out and "report.html" in located.error
    assert located.report["verdict"] == "located" and "报告: " not in located.out and not list(located.folder.glob("*.tmp"))
    put("test/run.sh", FAILS_AGAIN)(tiny)
    failed = compare(tiny, preexec=no_large_files)
    assert failed.code == 3 and "退出码 5" in failed.error and "报告没有写成" in failed.out and "已有的结果" not in failed.out


def test_an_interrupted_first_run_leaves_a_page(tiny):
    put("test/run.sh", HANGS)(tiny)
    put("out/report.json", "of an earlier run")(tiny)
    process = subprocess.Popen([sys.executable, SCRIPT, "--output-dir", "out"], cwd=tiny, env=environment(), stdout=subprocess.PIPE, text=True)
    wait_for(lambda: list(tiny.glob("out/first_test.log")))
    process.send_signal(signal.SIGINT)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 130 and "对比没有完成, 经过写在: " in out and "已中断" in out
    page = (tiny / "out" / "report.html").read_text(encoding="utf-8")
    assert "没有完成：被中断" in page and not (tiny / "out" / "report.json").exists()


def bound_by_permissions() -> None:
    """Have root's commands obey file permissions: take CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH away for good."""
    for capability in (1, 2):
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)


def test_code_that_may_not_be_changed_is_said_and_left_alone(tiny):
    code = tiny / "test" / "code"
    for path in [*code.iterdir(), code]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = trees(tiny)
    try:
        ended = compare(tiny, "--reuse-runs", preexec=bound_by_permissions)
        assert ended.code == 3 and "没有权限" in ended.error and str(code) in ended.error, ended.out
        assert "test.code_path 不可写" in ended.out and trees(tiny) == before
        assert ended.report["verdict"] == "not_located"
        assert compare(tiny, "--reuse-runs", "--compare-only", preexec=bound_by_permissions).code == 4
    finally:
        code.chmod(0o755)


DUMP = '{"task": "statistics", "level": "L1", "data": %s}'
CALL = '{"Torch.add.0.forward": {"input_args": [], "output": [{"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "Max": %s, "Min": 0.0, "Mean": 1.0, "Norm": 2.0, "requires_grad": false}]}}'  # fmt: skip
STACK = '{"0": [["Torch.add.0.forward"], ["File /away/code/model.py, line 7, in forward, \\n hidden = weight * FACTOR"]]}'
WARNINGS = {
    "no dump": ({}, "没有可用的 msprobe dump", None),
    "dump folder without a dump": ({"baseline/step0/rank0/notes.txt": ""}, "没有可用的 msprobe dump", None),
    "empty dump.json": ({f"{side}/step0/rank0/dump.json": "" for side in ("baseline", "test")}, "dump 不能使用", None),
    "dump without a call": ({f"{side}/step0/rank0/dump.json": DUMP % "{}" for side in ("baseline", "test")}, "没有任何 API", None),
    "no stack.json": ({f"{side}/step0/rank0/dump.json": DUMP % CALL % n for n, side in enumerate(("baseline", "test"))}, "没有 stack.json", 0),
    "with stacks": ({f"{side}/step0/rank0/{name}": text for n, side in enumerate(("baseline", "test"))
                     for name, text in (("dump.json", DUMP % CALL % n), ("stack.json", STACK))}, "msprobe", 1),
    "equal dumps": ({f"{side}/step0/rank0/{name}": text for side in ("baseline", "test")
                     for name, text in (("dump.json", DUMP % (CALL % 1 if side == "test" else CALL[:-1] % 1 + ', "Torch.mul.0.forward": {}}')),
                                        ("stack.json", STACK))}, "baseline 的 1 个调用在 test 中没有对应, 首个是 Torch.mul.0.forward", None),
}  # fmt: skip


@pytest.mark.parametrize("name", WARNINGS)
def test_an_unusable_dump_is_a_warning_and_the_comparison_goes_on(tiny, name):
    files, says, frames = WARNINGS[name]
    for file, text in files.items():
        put(f"dump/{file}", text)(tiny)
    change_config(tiny, msprobe={"baseline_data_dir": "dump/baseline", "test_data_dir": "dump/test", "command": "no-such-msprobe"})
    ended = compare(tiny, "--reuse-runs", "--compare-only")
    report = ended.report
    assert ended.code == 4 and misfits(report, REPORT) == [] and says in "\n".join(report["warnings"]), ended.out
    mismatch = report["msprobe"] and report["msprobe"]["first_mismatch"]
    assert (mismatch and len(mismatch["stack"])) == frames


def test_a_file_with_a_syntax_error_is_left_out_and_the_run_goes_on(tiny):
    put("test/code/broken.py", "def broken(:\n")(tiny)
    before = trees(tiny)
    ended = compare(tiny, "--max-iterations", "1")
    assert ended.code in (1, 4) and ended.report["reruns"] == 1 and trees(tiny) == before
    assert f"{tiny}/test/code/broken.py 第 1 行有语法错误" in "".join(ended.report["warnings"])


def test_check_launches_nothing(tiny):
    put("test/run.sh", f"touch {tiny}/ran\n")(tiny)
    ended = compare(tiny, "--check")
    assert ended.code == 0 and "检查通过" in ended.out and not (tiny / "ran").exists()
    assert "✓  test.code_path: 2 个 .py 文件\n" in ended.out and "✓  baseline.log_path: 1 个已有的日志\n" in ended.out and "test 的磁盘剩余" in ended.out
    remove("test/run.sh")(tiny), put("baseline/code/model.py", "def broken(:\n")(tiny)
    ended = compare(tiny, "check=true")
    assert ended.code == 2 and "✗  test.run_script 不存在" in ended.out and "有 1 处会使运行失败" in ended.out and "请改成启动训练的脚本" in ended.out
    assert f"!  {tiny}/baseline/code/model.py 第 1 行有语法错误" in ended.out and not (ended.folder / "report.html").exists()


def test_check_says_which_dumps_are_there_and_what_is_missing(ready):
    ended = compare(ready, "--check", DEEPSEEK_API_KEY="sk-1234567")
    assert ended.code == 0 and ended.out.count("的 dump: 1 个, step 0, rank") == 2 and "sk-1234567" not in ended.out
    assert "DeepSeek: 已设置" in ended.out and "找不到 msprobe 命令: no-such-msprobe" in ended.out
    remove("examples/tiny_gpt/test/dump")(ready)
    assert "test 的 dump 还没有" in compare(ready, "--check").out


def test_a_bug_of_ours_is_one_sentence_and_the_code_is_restored(tiny):
    before = trees(tiny)
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); sys.dont_write_bytecode = True; import precision_comparer as pc\n"
        "def launch(*args): raise ZeroDivisionError('a bug')\n"
        "pc.launch = launch; sys.exit(pc.main(['--reuse-runs']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tiny, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 3 and "错误: 内部错误 ZeroDivisionError: a bug" in done.stdout and "Traceback" not in done.stdout + done.stderr
    log = (reports_of(tiny)[-1] / "console.log").read_text(encoding="utf-8")
    assert "插入" in log and "Traceback" in log and "in launch" in log and trees(tiny) == before


def test_a_closed_pipe_or_a_foreign_encoding_does_not_end_the_run(tiny):
    command = f"exec {sys.executable} {SCRIPT} --reuse-runs --compare-only"
    done = subprocess.run(["bash", "-c", f"{{ {command}; }} | true; exit ${{PIPESTATUS[0]}}"], cwd=tiny, env=environment(), capture_output=True, timeout=120)
    assert done.returncode == 4 and not done.stderr, done.stderr
    done = subprocess.run(["bash", "-c", command], cwd=tiny, env=environment(PYTHONIOENCODING="gbk"), capture_output=True, timeout=120)
    assert done.returncode == 4 and not done.stderr and "精度一致性: ? 不一致" in done.stdout.decode("gbk")
