"""The fast part of the localization benchmark, through its own command (all of it: `python tests/zoo/run_zoo.py`)."""

import json
import subprocess
import sys
from pathlib import Path

RUNNER = Path(__file__).resolve().parent / "zoo" / "run_zoo.py"


def test_the_fast_cases_meet_the_targets(tmp_path):
    command = [sys.executable, str(RUNNER), "--fast", "--no-dump", "--work", str(tmp_path / "work"), "--json", str(tmp_path / "zoo.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert json.loads((tmp_path / "zoo.json").read_text())
