"""What the user sees on a terminal, in a narrow window, without colours and without a terminal; console.log is complete in each."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import precision_comparer as pc

SHOW = """
import sys; sys.path.insert(0, {root!r}); import precision_comparer as pc; from pathlib import Path
t = pc.terminal; t.open_log(Path({log!r})); t.secrets.add("hunter2")
t.rule("开始第 1 次对比")
t.progress("baseline: step 1/9, loss 5.1, 已用 1 s, 预计还需 8 s " + "x" * 60, "baseline"); t.progress("test: step 2/9", "test")
t.progress("baseline: step 7/9", "baseline")
t.panel("定位结果", [("第一处不一致: hunter2\\x1b[2J\\x1b]0;x\\x07", "bold red"), ("    emb = torch.cat((freqs, freqs), dim=-1)[tag]", "bold")], "red")
t.table(["", "检查", "怎么办"], [(["✗", "baseline.code_path 不存在: /a/long/path/to/the/code/of/the/model", "请改成训练代码所在的文件夹"], "bold red")])
t.progress("test: step 8/9", "test"); t.warn("磁盘")
"""


def show(folder: Path, columns: int = 0, **env: str) -> tuple[str, str]:
    """What is shown on a terminal of so many columns (0: through a pipe), and console.log."""
    program = SHOW.format(root=str(Path(pc.__file__).parent), log=str(folder / "console.log"))
    settings = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")} | {"TERM": "xterm-256color", "PYTHONDONTWRITEBYTECODE": "1", **env}
    if not columns:
        shown = subprocess.run([sys.executable, "-c", program], env=settings, capture_output=True, text=True, check=True).stdout
    else:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        process = subprocess.Popen([sys.executable, "-c", program], env=settings, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        data = b""
        try:
            while piece := os.read(ours, 4096):
                data += piece
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0, data.decode()
        shown = data.decode()
    return shown, (folder / "console.log").read_text(encoding="utf-8")


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")


@pytest.mark.parametrize("columns", [40, 120])
def test_on_a_terminal(tmp_path, columns):
    shown, log = show(tmp_path, columns)
    assert "╭" in shown and "定位结果" in shown and "hunter2" not in shown + log and "\x1b[1;31m" in shown
    assert not any(code in shown for code in ("\x1b[2J", "\x1b]", "\x07"))  # what stands in the user's code or log steers no terminal
    assert f"{'=' * min(columns, 60)}\n" in plain(shown) and "=" * 60 in log
    frames = [line for line in plain(shown).split("\n") if line.startswith(("│", "╭", "┃"))]
    assert frames and all(pc.Text(line).cell_len <= columns for line in frames)
    assert re.search(r"baseline: step 7/9 *\ntest: step 2/9", plain(shown)) and shown.endswith("\n") and shown.count("\x1b[?25h") == 2  # the cursor is back
    assert "[tag]" in re.sub(r"[│\s]", "", plain(shown)) and "请改成训练代码所在的文件夹" in log


def test_without_colours(tmp_path):
    shown, _ = show(tmp_path, 80, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", shown) and "╭" in shown


def test_the_located_statement_is_shown_in_its_code(monkeypatch):
    """Two lines on each side; of a statement of many lines the beginning; without the file the statement alone."""
    around = [pc.CodeLine(number=n, parts=[(f"line {n}", False), (" end", True)], is_guilty=9 <= n <= 9) for n in range(4, 15)]
    place = pc.PlaceReport(file="model/rope.py", function="Rope.forward", line=9, end_line=9, code="line 9 end", around=around)
    assert pc.code_lines(place) == [("        7 | line 7 end", "dim"), ("        8 | line 8 end", "dim"), ("  >     9 | line 9 end", "bold"), ("       10 | line 10 end", "dim"), ("       11 | line 11 end", "dim")]
    assert pc.code_lines(place.model_copy(update={"around": []})) == [("  >     9 | line 9 end", "bold")]
    long = place.model_copy(update={"end_line": 99, "around": [pc.CodeLine(number=n, parts=[], is_guilty=n > 8) for n in range(4, 104)]})
    assert len(pc.code_lines(long)) == pc.LONGEST_CODE and pc.code_lines(long)[-1][0].startswith("  >    22 |")


def test_through_a_pipe(tmp_path):
    shown, log = show(tmp_path)
    assert shown == log and "\x1b" not in shown and "╭" not in shown
    assert "第一处不一致: ******]0;x\n    emb = torch.cat((freqs, freqs), dim=-1)[tag]\n" in shown
    assert shown.count("baseline: step") == 1 and "✗  baseline.code_path 不存在" in shown
