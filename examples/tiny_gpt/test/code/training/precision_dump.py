"""msprobe dump of the first iteration."""

import json
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

CODE_DIR = Path(__file__).resolve().parents[1]
MSPROBE_CONFIG = CODE_DIR / "configs" / "msprobe.json"
DEFAULT_DUMP_PATH = CODE_DIR.parent / "dump"


def _remove_old_dump(dump_path):
    """A second process folder beside the old one would make the comparison ambiguous."""
    for step in json.loads(MSPROBE_CONFIG.read_text(encoding="utf-8"))["step"]:
        shutil.rmtree(dump_path / f"step{step}", ignore_errors=True)


def _create_debugger(dump_path):
    """Return msprobe's debugger, or None where no dump is wanted or possible."""
    if os.environ.get("PRECISION_COMPARER_RERUN") == "1":
        return None
    try:
        from msprobe.pytorch import PrecisionDebugger
    except ImportError as error:
        print(f"msprobe is not available ({error}); training without a dump")
        return None
    _remove_old_dump(dump_path)
    try:
        return PrecisionDebugger(config_path=str(MSPROBE_CONFIG), dump_path=str(dump_path))
    except Exception as error:  # e.g. a blank or a non-ASCII letter in the path; its type depends on the version
        print(f"msprobe refuses to dump to {dump_path} ({error}); training without a dump")
        return None


class PrecisionDump:
    """Dumps the iterations named in `configs/msprobe.json`."""

    def __init__(self, dump_path=""):
        self.debugger = _create_debugger(Path(dump_path).resolve() if dump_path else DEFAULT_DUMP_PATH)

    @contextmanager
    def iteration(self):
        """Watch one training iteration."""
        if self.debugger is None:
            yield
            return
        self.debugger.start()
        yield
        self.debugger.stop()
        self.debugger.step()
