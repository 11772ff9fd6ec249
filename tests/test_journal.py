"""Section 10, the journal: the user's code is put back whatever happens, by real faults of real processes."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import precision_comparer as pc

SCRIPT = pc.__file__
WATCH = pc.Watch((0, 1), 0, False)
pc.runtime_source()  # takes longest of all that the many children do, who inherit it


@pytest.fixture
def place():
    """A folder that any user may enter (pytest's own only its owner), in memory where there is such a place: every write is synced."""
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def make_code(folder: Path) -> Path:
    """A code folder with every kind of file: plain, encoded, read-only, a link, a file with two names."""
    code = folder / "code"
    (code / "pack").mkdir(parents=True)
    (code / "run.sh").write_text("python main.py\n")
    files = {
        "main.py": "import pack.plain\nx = 1\ny = x + 1\n".encode(),
        "pack/plain.py": b"\xef\xbb\xbfdef f(a):\r\n    return a\r\n",
        "pack/gbk.py": '# -*- coding: gbk -*-\nname = "\u4e2d\u6587"\nother = name\n'.encode("gbk"),
        "pack/locked.py": b"def g(a):\n    b = a\n    return b\n",
        "pack/twin.py": b"def h(a):\n" + b"    b = a * 2\n" * 50 + b"    return b\n",
    }
    for number, (name, data) in enumerate(files.items()):
        (code / name).write_bytes(data)
        (code / name).chmod(0o444 if "locked" in name else 0o640)
        os.utime(code / name, ns=(10**18, 1_600_000_000_123_456_789 + number))
    os.link(code / "pack/twin.py", folder / "second_name.py")
    (folder / "shared.py").write_bytes(b"s = 1\nt = s\n")
    os.symlink("../../shared.py", code / "pack/linked.py")
    return code


def state(code: Path):
    """Bytes, mode, mtime and kind of everything in and beside a code folder."""
    return {str(p.relative_to(code.parent)): (p.is_symlink(), p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns)
            for p in sorted(code.parent.rglob("*")) if p.is_file()}


def side_of(code: Path, name="test"):
    return pc.Side(name, SimpleNamespace(code_path=str(code), run_script=str(code / "run.sh")), pc.LocalHost())


def put_prints(code: Path, inside):
    """Inject every file of a code folder and do something while the prints are in it."""
    side = side_of(code)
    tree = pc.CodeTree(side)
    with pc.injected([side], {"test": tree}, {"test": tree.files}, WATCH) as injections:
        inside(injections["test"])


def in_child(work) -> int:
    """Do `work` in a forked process; the signal that ended it, or 0."""
    pid = os.fork()
    if not pid:
        with open(os.devnull, "w") as null:
            os.dup2(null.fileno(), 1)
            os.dup2(null.fileno(), 2)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or not os.WEXITSTATUS(status)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


CHANGING = {"open", "os.rename", "os.remove", "os.utime", "os.chmod", "os.chown", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}


def die_at(number: int, folder: Path):
    """SIGKILL this process right before its n-th operation on a file in `folder` that changes something."""
    left = [number]

    def hook(event, arguments):
        if event in CHANGING and str(folder) in str(arguments[0]) and not (event == "open" and not str(arguments[1] or "").strip("rb")):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def test_killed_at_every_operation_of_injecting_and_restoring(place):
    code = make_code(place)
    before, points = state(code), 0

    def work():
        die_at(points, place)
        put_prints(code, lambda injection: None)

    while True:
        points += 1
        if in_child(work) == 0:
            break
        pc.restore_leftovers([side_of(code)])
        assert state(code) == before, f"killed at operation {points}"
    assert points > 60 and state(code) == before


def test_killed_at_every_operation_of_the_repair(place):
    code = make_code(place)
    before, points, done = state(code), 0, False

    def work():
        die_at(points, place)
        pc.restore_leftovers([side_of(code)])

    while not done:
        points += 1
        assert in_child(lambda: put_prints(code, lambda injection: os.kill(os.getpid(), signal.SIGKILL))) == signal.SIGKILL
        assert state(code) != before
        done = in_child(work) == 0
        pc.restore_leftovers([side_of(code)])
        assert state(code) == before, f"killed at operation {points}"
    assert points > 20


@pytest.mark.parametrize("is_restoring", [False, True])
@pytest.mark.parametrize("size", [1, 300, 600, 1500])
def test_killed_in_the_middle_of_a_write_in_place(place, size, is_restoring):
    """A file with a second name is not replaced but written; the kernel ends the process when it has written `size` bytes."""
    code = make_code(place)
    before = state(code)

    def hook(event, arguments):
        if event == "open" and "twin.py" in str(arguments[0]) and "+" in str(arguments[1]):
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    def work():
        put_prints(code, lambda injection: sys.addaudithook(hook) if is_restoring else None)

    assert in_child(work if is_restoring else lambda: (sys.addaudithook(hook), work())) == (signal.SIGXFSZ if size < 1000 or not is_restoring else 0)
    assert size > 600 and is_restoring or state(code) != before
    pc.restore_leftovers([side_of(code)])
    assert state(code) == before


def test_a_full_disk(place):
    """Whatever the size at which writing fails, nothing stays changed and the failure is said."""
    code = make_code(place)
    before, outcomes = state(code), set()
    for size in (0, 10, 100, 1000, 2000, 4000, 100_000):
        def work():
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            try:
                put_prints(code, lambda injection: None)
                (place / "outcome").symlink_to("done")
            except pc.HostError as error:
                (place / "outcome").symlink_to(str(error))

        assert in_child(work) == 0
        outcomes.add(os.readlink(place / "outcome"))
        (place / "outcome").unlink()
        assert state(code) == before, size
    assert "done" in outcomes and len(outcomes) > 1 and all("无法写入" in text or text == "done" for text in outcomes)


def as_nobody(work):
    """Do `work` in a child without the rights of root, which has all."""
    def unprivileged():
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        work()

    return in_child(unprivileged)


@pytest.mark.parametrize("locked", ["pack/gbk.py", "pack", "."])
def test_files_and_folders_without_the_right_to_write(place, locked):
    code = make_code(place)
    for path in [place] + list(place.rglob("*")):
        if os.getuid() == 0:
            os.chown(path, 65534, 65534, follow_symlinks=False)
    (code / locked).chmod(0o444 if (code / locked).is_file() else 0o555)
    before = state(code)

    def work():
        try:
            put_prints(code, lambda injection: (place / "injected").symlink_to(",".join(sorted(injection.files))))
        except pc.HostError as error:
            (place / "injected").symlink_to(str(error))

    assert as_nobody(work) == 0
    said = os.readlink(place / "injected")
    (place / "injected").unlink()
    assert state(code) == before
    # A read-only file is replaced, in a read-only folder a writable one is written in place; without a place for the journal nothing begins.
    written = ["main.py", "pack/gbk.py", "pack/linked.py", "pack/locked.py", "pack/plain.py", "pack/twin.py"]
    assert said == ",".join(f for f in written if (locked, f) != ("pack", "pack/locked.py")) if locked != "." else "没有权限" in said


def test_links_stay_links(place):
    code = make_code(place)

    def inside(injection):
        assert (code / "pack/linked.py").is_symlink() and (place / "shared.py").read_bytes() != b"s = 1\nt = s\n"
        assert (place / "second_name.py").read_bytes() == (code / "pack/twin.py").read_bytes()

    before = state(code)
    put_prints(code, inside)
    assert state(code) == before and os.path.samefile(place / "second_name.py", code / "pack/twin.py") and not list(place.rglob("*.pyc"))


@pytest.mark.parametrize("name", ["main.py", "pack/linked.py", "pack/twin.py", "pack/locked.py"])
def test_what_the_user_edits_meanwhile_is_kept(place, name):
    code = make_code(place)
    before = state(code)
    mine = b"edited = True\n"

    def inside(injection):
        (code / name).chmod(0o600)
        (code / name).write_bytes(mine)

    pc.terminal.warnings.clear()
    put_prints(code, inside)
    kept = Path(str(code / name) + ".precision_comparer_original")
    after = state(code)
    original = before[str((code / name).relative_to(place))]
    assert (code / name).read_bytes() == mine and (kept.read_bytes(), kept.stat().st_mode, kept.stat().st_mtime_ns) == original[1:]
    assert len(pc.terminal.warnings) == 1 and str(code / name) in pc.terminal.warnings[0] and str(kept) in pc.terminal.warnings[0]
    same = {p for p, found in before.items() if after[p] == found}
    assert {p for p in before if p not in same} <= {f"code/{name}", "shared.py" if "linked" in name else "", "second_name.py" if "twin" in name else ""}


def test_what_the_user_deletes_meanwhile_is_kept(place):
    code = make_code(place)
    before = state(code)["code/main.py"]
    put_prints(code, lambda injection: (code / "main.py").unlink())
    assert not (code / "main.py").exists() and (code / "main.py.precision_comparer_original").read_bytes() == before[1]
    before = state(code)["code/pack/plain.py"]
    put_prints(code, lambda injection: shutil.rmtree(code / "pack"))
    assert (code / "plain.py.precision_comparer_original").read_bytes() == before[1]


def test_two_runs_on_one_code_do_not_meet(place):
    """The second one is refused when it starts, and when it began before the first had put its prints in."""
    code = make_code(place)
    before = state(code)
    ready, go = os.pipe(), os.pipe()

    def inside(injection):
        os.write(ready[1], b"x")
        os.read(go[0], 1)

    pid = os.fork()
    if not pid:
        put_prints(code, inside)
        os._exit(0)
    os.read(ready[0], 1)
    during = state(code)
    for attempt in (lambda: pc.restore_leftovers([side_of(code)]), lambda: put_prints(code, lambda injection: None)):
        with pytest.raises(pc.ConfigError, match=f"进程 {pid}"):
            attempt()
        assert state(code) == during
    os.write(go[1], b"x")
    assert os.waitpid(pid, 0)[1] == 0 and state(code) == before


def test_what_a_run_killed_meanwhile_left_is_undone_before_the_next_prints(place):
    code = make_code(place)
    before = state(code)
    side, texts = side_of(code), []
    tree = pc.CodeTree(side)
    for file in tree.files:
        tree.load(file)
    in_child(lambda: put_prints(code, lambda injection: os.kill(os.getpid(), signal.SIGKILL)))
    with pc.injected([side], {"test": tree}, {"test": tree.files}, WATCH) as injections:
        texts.append((code / "main.py").read_text())
        assert len(injections["test"].files) == len(tree.files)
    assert texts[0].count("exec(") == 1 and state(code) == before


def test_a_damaged_journal_is_said_and_nothing_is_touched(place):
    code = make_code(place)
    in_child(lambda: put_prints(code, lambda injection: os.kill(os.getpid(), signal.SIGKILL)))
    journal = next(code.glob(".precision_comparer_*/journal.json"))
    journal.write_text(journal.read_text()[:50])
    left = state(code)
    with pytest.raises(pc.ConfigError, match="journal.json 已损坏"):
        pc.restore_leftovers([side_of(code)])
    assert state(code) == left


# --- The real command ---

TRAINER = """
import os, time
def work(step):
    loss = 2.5 - step * {slope}
    return loss
for step in range(3):
    print("iteration", step, "lm loss:", work(step), flush=True)
while os.environ.get("PRECISION_COMPARER_RERUN") and not os.path.exists({go!r}):
    time.sleep(0.05)
print("training success", flush=True)
"""


def make_project(folder: Path):
    """Two trainings whose losses differ; a rerun waits."""
    config = {"debug": {"log_keywords": ["lm loss", None], "rank": 0}}
    for name, slope in (("baseline", 0.1), ("test", 0.2)):
        code = make_code(folder / name)
        (code / "main.py").write_text(TRAINER.format(slope=slope, go=str(folder / "go")))
        os.utime(code / "main.py", ns=(10**18, 10**18 + 5))
        (code / "run.sh").write_text(f'#!/bin/sh\nexec "{sys.executable}" main.py\n')
        (code / "run.sh").chmod(0o755)
        config[name] = {"mode": "local", "log_path": str(folder / f"{name}.log"), "code_path": str(code), "run_script": str(code / "run.sh")}
    (folder / "config.json").write_text(json.dumps(config))


def command(folder: Path, *options):
    return [sys.executable, SCRIPT, "--config", str(folder / "config.json"), "--output-dir", str(folder / "report"), "--no-llm", *options]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def processes_in(folder: Path):
    """Command lines of living processes that have the folder as working directory or in their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_text().replace("\0", " ")
                if str(folder) in line or str(folder) in os.readlink(entry / "cwd"):
                    found.append(line)
            except OSError:
                continue
    return found


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_the_command_is_ended_in_the_middle_of_a_rerun(place, number, code):
    make_project(place)
    trees = [place / "baseline" / "code", place / "test" / "code"]
    before = [state(tree) for tree in trees]
    process = subprocess.Popen(command(place), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    wait_for(lambda: any("exec(" in (tree / "main.py").read_text() for tree in trees) and any("main.py" in line for line in processes_in(place)))
    process.send_signal(number)
    out = process.communicate(timeout=60)[0]
    assert process.returncode == code and "Traceback" not in out
    if number == signal.SIGKILL:
        assert [state(tree) for tree in trees] != before
        (place / "go").touch()  # ends the training that nobody watches any more
        wait_for(lambda: not processes_in(place))
        restored = subprocess.run(command(place, "--restore"), capture_output=True, text=True, timeout=60)
        assert restored.returncode == 0 and "已还原" in restored.stdout, restored.stdout
    assert [state(tree) for tree in trees] == before and not processes_in(place)
