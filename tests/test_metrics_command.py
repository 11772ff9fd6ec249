"""Section 6 through the real command: `--reuse-runs --compare-only` over every real log, and over what users get wrong."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "precision_comparer.py"
LOGS = sorted((Path(__file__).parent / "logs").glob("*.json"))
NUMBER = re.compile(rb"(?<![\w.+-])[+-]?\d+\.\d+(?:[eE][+-]?\d+)?(?![\w.])")


def compare(folder: Path, logs: dict[str, dict[str, bytes]], keywords: list, log_path: str = "train.log") -> tuple[subprocess.CompletedProcess, dict | None]:
    """Run the command over ready logs, given as {side: {name: contents}}; returns the process and report.json."""
    config = {"debug": {"log_keywords": keywords, "tolerance": 1e-9}}
    for side, files in logs.items():
        (folder / side / "code").mkdir(parents=True)
        (folder / side / "run.sh").write_text("#!/bin/sh\nexit 1\n")
        for name, data in files.items():
            (folder / side / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / side / name).write_bytes(data)
        config[side] = {"mode": "local", "log_path": f"{side}/{log_path}", "code_path": f"{side}/code", "run_script": f"{side}/run.sh"}
    (folder / "config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    command = [sys.executable, str(SCRIPT), "--config", str(folder / "config.json"), "--output-dir", str(folder / "out"), "--reuse-runs", "--compare-only"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=120, env={**os.environ, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"})
    report = folder / "out" / "report.json"
    return done, json.loads(report.read_text(encoding="utf-8")) if report.exists() else None


def number(value) -> float | None:
    """A value of `series`, where NaN and infinities are texts."""
    return None if value is None else float(value)


def rows(series: dict) -> list[list]:
    """`[step, loss, grad norm]` rows as the json files beside the logs have them, values as text so that NaN equals NaN."""
    loss, norm = (dict(series.get(name, [])) for name in ("loss", "grad_norm"))
    return [[step, str(number(loss.get(step))), str(number(norm.get(step)))] for step in sorted({*loss, *norm})]


def changed(log: bytes, table: list[list]) -> tuple[bytes, int, float] | None:
    """The log with the loss of one step changed wherever it stands: (log, step, new value); `None` if no loss stands alone in it."""
    losses = [loss for _, loss, _ in table if loss is not None]
    for step, loss, norm in reversed(table):
        if not isinstance(loss, float) or not math.isfinite(loss) or losses.count(loss) > 1 or loss == norm:
            continue
        texts = {m.group() for m in NUMBER.finditer(log) if float(m.group()) == loss}
        if len(texts) == 1:
            text = texts.pop()
            other = re.sub(rb"[1-9]", lambda m: b"%d" % ((int(m.group()) + 3) % 9 + 1), text, count=1)
            return re.sub(rb"(?<![\w.+-])" + re.escape(text) + rb"(?![\w.])", other, log), step, float(other)
    return None


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_real_logs(tmp_path: Path, path: Path) -> None:
    """The series of report.json are the rows of the json; one changed loss is found at its step."""
    truth, log = json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".log").read_bytes()
    tables = [truth["expected"], *([truth["expected_alt"]] if "expected_alt" in truth else [])]
    other = changed(log, truth["expected"])
    keywords = [truth["loss_keyword"], truth["grad_norm_keyword"]]
    done, report = compare(tmp_path, {"baseline": {"train.log": log}, "test": {"train.log": other[0] if other else log}}, keywords)
    right = [[[step, str(number(loss)), str(number(norm))] for step, loss, norm in table] for table in tables]
    assert report is not None, done.stdout
    assert rows(report["series"]["baseline"]) in right
    if other is None:
        assert done.returncode == 0 and report["verdict"] == "consistent", done.stdout
        return
    assert done.returncode == 4 and report["verdict"] == "not_located" and report["reruns"] == 0, done.stdout
    assert report["metrics"]["loss"]["first_step_over_tolerance"] == other[1]
    assert dict(report["series"]["test"]["loss"])[other[1]] == other[2]


def test_most_logs_can_be_changed() -> None:
    """So that the test above does see differences."""
    truths = [(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".log").read_bytes()) for path in LOGS]
    assert sum(changed(log, truth["expected"]) is not None for truth, log in truths) >= 25


PLAIN = "".join(f"step {n} | 损失值: {2.5 - 0.1 * n:.4f} | lm loss={2.5 - 0.1 * n:.4f} | gnorm {1.0 / n:.4f}\n" for n in range(1, 6)).encode()
MARKED = b"training success\n"


@pytest.mark.parametrize("keywords, norm", [
    ([r"/lm loss=(\S+)/", r"/gnorm ([\d.]+)/"], 5), (["lm loss", None], None), (["损失值", "gnorm"], 5), (["lm loss=", "gnorm"], 5),
], ids=["regular expressions", "no grad norm", "Chinese", "with its separator"])
def test_kinds_of_keywords(tmp_path: Path, keywords: list, norm: int | None) -> None:
    done, report = compare(tmp_path, {side: {"train.log": PLAIN} for side in ("baseline", "test")}, keywords)
    assert done.returncode == 0, done.stdout
    assert report["series"]["test"]["loss"] == [[n, round(2.5 - 0.1 * n, 4)] for n in range(1, 6)]
    assert len(report["series"]["test"].get("grad_norm", [])) == (norm or 0)


@pytest.mark.parametrize("keyword, words", [("/loss (/", "正则"), ("/loss/", "正则")])
def test_a_wrong_regular_expression_is_a_config_error(tmp_path: Path, keyword: str, words: str) -> None:
    done, report = compare(tmp_path, {side: {"train.log": PLAIN} for side in ("baseline", "test")}, [keyword, None])
    assert done.returncode == 2 and report is None and words in done.stdout and "log_keywords" in done.stdout and "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("log_path", ["logs", "logs/rank_*.log"])
def test_the_rank_that_logs_is_found(tmp_path: Path, log_path: str) -> None:
    """Of a folder or a glob the file is read that holds the metrics."""
    files = {"logs/rank_0.log": b"NCCL version 2.20\n" * 50, "logs/rank_1.log": PLAIN, "logs/rank_2.log": b"", "logs/other.txt": b"gpu 0 util 97\n" * 9}
    done, report = compare(tmp_path, {side: files for side in ("baseline", "test")}, ["lm loss", "gnorm"], log_path)
    assert done.returncode == 0 and len(report["series"]["baseline"]["loss"]) == 5, done.stdout


def test_nothing_matches(tmp_path: Path) -> None:
    """The error names the keyword and the numeric fields that are there."""
    done, report = compare(tmp_path, {side: {"train.log": PLAIN} for side in ("baseline", "test")}, ["reward", "gnorm"])
    assert done.returncode == 3 and "reward" in done.stdout and "lm loss" in done.stdout and "gnorm" in done.stdout and "Traceback" not in done.stdout + done.stderr
