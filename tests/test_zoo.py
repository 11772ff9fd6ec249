"""The fast part of the localization benchmark, through its own command (all of it: `python tests/zoo/run_zoo.py`)."""

import json
import subprocess
import sys
from pathlib import Path

RUNNER = Path(__file__).resolve().parent / "zoo" / "run_zoo.py"


def test_the_fast_cases_are_named_and_no_control_is(tmp_path):
    """`sum-not-mean` is not named yet: its gradients are views of a buffer that no print shows."""
    command = [sys.executable, str(RUNNER), "--fast", "--no-dump", "--work", str(tmp_path / "work"), "--json", str(tmp_path / "zoo.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    rows = {row["case"]: row for row in json.loads((tmp_path / "zoo.json").read_text())}
    bugs = {name: row["statement"] for name, row in rows.items() if row["statement"] is not None}
    assert len(bugs) == 7 and all(hit for name, hit in bugs.items() if name != "sum-not-mean"), done.stdout[-4000:] + done.stderr[-1000:]
    assert {row["verdict"] for name, row in rows.items() if name not in bugs} == {"consistent"}
    assert "code trees changed 0" in done.stdout and "false alarms 0" in done.stdout
