"""This machine as a host (section 4): files are never harmed, processes never left behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import precision_comparer as pc

host = pc.LocalHost()
KILLED = (-9, 137)  # as subprocess has it, and as a shell on another machine does


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_for(condition, seconds: float = 10):
    """Wait until `condition()` is true and return it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def pids(folder: Path, count: int) -> list[int]:
    """Process numbers that a script wrote into `*.pid` files."""
    assert wait_for(lambda: len([f for f in folder.glob("*.pid") if f.read_text().endswith("\n")]) == count)
    return [int(file.read_text()) for file in sorted(folder.glob("*.pid"))]


def start(folder: Path, script: str):
    """Start bash with this script."""
    return host.start(["bash", "-c", script], str(folder), {"EXTRA": "yes"}, str(folder / "out.txt"))


# ---- commands ----


def test_run_gives_code_and_both_outputs(tmp_path):
    done = host.run(["sh", "-c", "pwd; echo $EXTRA; printf '\\377中' >&2; exit 3"], str(tmp_path), {"EXTRA": "x y"})
    assert (done.code, done.out, done.err) == (3, f"{tmp_path}\nx y\n", "\ufffd中")


def test_run_ends_after_the_timeout_with_all_its_children(tmp_path):
    begin = time.monotonic()
    done = host.run(["sh", "-c", "echo before; sleep 100 & echo $! > a.pid; wait"], str(tmp_path), timeout=0.5)
    assert done.code == 124 and done.out == "before\n" and time.monotonic() - begin < 5
    assert all(map(gone, pids(tmp_path, 1)))


def test_run_does_not_wait_for_what_is_left_in_the_background(tmp_path):
    begin = time.monotonic()
    assert host.run(["sh", "-c", "sleep 3 & echo done"], str(tmp_path)).out == "done\n"
    assert time.monotonic() - begin < 2


def test_commands_that_cannot_be_started():
    with pytest.raises(pc.HostError, match="no-such-command.*不存在"):
        host.run(["no-such-command"])
    with pytest.raises(pc.HostError, match="/no/such/folder"):
        host.run(["true"], "/no/such/folder")


def test_start_writes_both_outputs_and_polls_the_code(tmp_path):
    (tmp_path / "out.txt").write_text("kept\n")
    handle = start(tmp_path, "echo $EXTRA; echo err >&2; kill -9 $$")
    assert wait_for(lambda: host.poll(handle)) in KILLED
    assert (tmp_path / "out.txt").read_text() == "kept\nyes\nerr\n" and not host.alive(handle)


def test_background_processes_are_alive_and_are_stopped(tmp_path):
    script = """
    (sleep 100 & echo $! > a.pid)
    setsid bash -c 'echo $$ > b.pid; exec sleep 100' &
    nohup bash -c 'echo $$ > c.pid; exec sleep 100' >/dev/null 2>&1 &
    setsid bash -c '(sleep 100 & echo $! > d.pid)' &
    sleep 0.3
    """
    handle = start(tmp_path, script)
    children = pids(tmp_path, 4)
    assert wait_for(lambda: host.poll(handle) == 0)
    assert host.alive(handle) and set(children) <= set(host.processes(handle))
    host.stop(handle)
    assert all(map(gone, children)) and not host.alive(handle)


def test_children_without_the_mark_are_found_through_their_parent(tmp_path):
    handle = start(tmp_path, "setsid env -i /bin/sh -c 'echo $$ > a.pid; sleep 100; true' & wait")
    child, = pids(tmp_path, 1)
    assert child in host.processes(handle)
    host.stop(handle)
    assert gone(child)


def test_process_that_ignores_sigterm_is_killed_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(pc, "STOP_SECONDS", 0.5)
    handle = start(tmp_path, "trap '' TERM; echo $$ > a.pid; while true; do sleep 0.1; done")
    child, = pids(tmp_path, 1)
    host.stop(handle)
    assert gone(child) and host.poll(handle) in KILLED


def test_sigterm_gives_time_to_end_in_order(tmp_path):
    handle = start(tmp_path, "trap 'sleep 0.5; echo saved; exit 0' TERM; echo $$ > a.pid; while true; do sleep 0.1; done")
    pids(tmp_path, 1)
    host.stop(handle)
    assert (tmp_path / "out.txt").read_text().endswith("saved\n")


def test_stop_leaves_others_alone(tmp_path):
    other = subprocess.Popen(["sleep", "100"])
    handle = start(tmp_path, "sleep 100")
    host.stop(handle)
    host.stop(handle)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_signals_are_held_until_the_block_is_done():
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with pc.hold_signals():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
            steps.append("cleaned")
        steps.append("not reached")
    assert steps == ["cleaned"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_terminal_interrupt_does_not_reach_the_training(tmp_path):
    handle = start(tmp_path, "echo $$ > a.pid; sleep 100")
    child, = pids(tmp_path, 1)
    assert os.getsid(child) != os.getsid(0)
    host.stop(handle)


# ---- files ----


def test_stat(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    os.chmod(tmp_path / "file", 0o640)
    os.utime(tmp_path / "file", ns=(1, 1234567890123456789))
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nothing")
    found = host.stat(str(tmp_path / "link"))
    assert (found.size, found.mtime_ns, found.mode, found.is_dir) == (5, 1234567890123456789, 0o640, False)
    assert found.inode == os.stat(tmp_path / "file").st_ino and host.stat(str(tmp_path)).is_dir
    assert [host.stat(str(tmp_path / name)) for name in ("none", "dangling", "file/below")] == [None] * 3


def test_read_by_offset(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert (host.read(str(path)), host.read(str(path), 7), host.read(str(path), 2, 3), host.read(str(path), 99)) == (b"0123456789", b"789", b"234", b"")
    with pytest.raises(pc.HostError, match="无法读取 .*none.*不存在"):
        host.read(str(tmp_path / "none"))
    with pytest.raises(pc.HostError, match="文件夹"):
        host.read(str(tmp_path))


def test_write_keeps_mode_and_owner_and_sets_the_time(tmp_path):
    path = tmp_path / "file.py"
    path.write_bytes(b"old")
    os.chmod(path, 0o751)
    if os.getuid() == 0:
        os.chown(path, 12345, 54321)
    before = path.stat()
    host.write(str(path), b"new", mtime_ns=1_600_000_000_123_456_789)
    after = path.stat()
    assert path.read_bytes() == b"new" and after.st_mtime_ns == 1_600_000_000_123_456_789
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino  # replaced, so that nobody ever reads half a file
    host.write(str(path), b"again", mode=0o600)
    assert path.stat().st_mode & 0o7777 == 0o600 and abs(path.stat().st_mtime - time.time()) < 60
    assert os.listdir(tmp_path) == ["file.py"]


def test_new_file_gets_the_usual_mode(tmp_path):
    umask = os.umask(0o027)
    try:
        host.write(str(tmp_path / "new"), b"x")
    finally:
        os.umask(umask)
    assert (tmp_path / "new").stat().st_mode & 0o7777 == 0o640


def test_extended_attributes_are_kept(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    try:
        os.setxattr(path, "user.kept", b"value")
    except OSError:
        return  # this file system has none
    host.write(str(path), b"new")
    assert os.getxattr(path, "user.kept") == b"value"


def test_write_follows_symlinks(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"old")
    (tmp_path / "folder").symlink_to("real")
    (tmp_path / "link").symlink_to("folder/file")
    host.write(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder").is_symlink()
    assert (tmp_path / "real" / "file").read_bytes() == b"new" and os.listdir(tmp_path / "real") == ["file"]


def test_hard_links_stay_one_file(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a longer old text")
    os.link(first, second)
    host.write(str(first), b"new", mode=0o600, mtime_ns=1_600_000_000_000_000_001)
    assert second.read_bytes() == b"new" and first.samefile(second)
    assert second.stat().st_mode & 0o7777 == 0o600 and second.stat().st_mtime_ns == 1_600_000_000_000_000_001


@contextlib.contextmanager
def without_root_rights(folder: Path):
    """Act as nobody if the tests run as root, who may do everything."""
    if os.getuid() != 0:
        yield
        return
    for above in folder.parents[:-2]:
        above.chmod(above.stat().st_mode | 0o011)  # pytest closes its temporary folders to others
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def test_file_in_a_closed_folder_is_written_in_place_and_a_closed_file_refused(tmp_path):
    (tmp_path / "open").write_bytes(b"a longer old text")
    (tmp_path / "open").chmod(0o666)
    (tmp_path / "closed").write_bytes(b"old")
    (tmp_path / "closed").chmod(0o444)
    tmp_path.chmod(0o555)
    with without_root_rights(tmp_path):
        host.write(str(tmp_path / "open"), b"new")
        with pytest.raises(pc.HostError, match="没有权限"):
            host.write(str(tmp_path / "closed"), b"new")
        with pytest.raises(pc.HostError, match="没有权限"):
            host.write(str(tmp_path / "another"), b"new")
    tmp_path.chmod(0o755)
    assert (tmp_path / "open").read_bytes() == b"new" and (tmp_path / "open").stat().st_uid == os.getuid()
    assert (tmp_path / "closed").read_bytes() == b"old" and sorted(os.listdir(tmp_path)) == ["closed", "open"]


def test_file_of_another_user_keeps_its_owner(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o666)
    tmp_path.chmod(0o777)
    with without_root_rights(tmp_path):
        host.write(str(path), b"new")
    assert path.read_bytes() == b"new" and path.stat().st_uid == os.getuid() and os.listdir(tmp_path) == ["file"]


def test_write_into_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(pc.HostError, match="无法写入"):
        host.write(str(tmp_path / "none" / "file"), b"x")


def test_full_disk_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    pc.LocalHost().write(sys.argv[1], b"x" * 100000)
except pc.HostError as error:
    print(type(error).__name__)
"""
    program = f"import sys, precision_comparer as pc\n{code}"
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file")], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(Path(pc.__file__).parent)})
    assert done.stdout == "HostError\n" and (tmp_path / "file").read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_find(tmp_path):
    for name in ("a.py", "b.txt", "one/c.py", "one/two/d.py", ".git/e.py", "x[1]/f.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "one" / "loop").symlink_to("..")
    (tmp_path / "again").symlink_to(".")

    def names(pattern):
        return [os.path.relpath(path, tmp_path) for path in host.find(f"{tmp_path}/{pattern}")]

    assert names("*.py") == ["a.py"] and names("*/*.py") == ["again/a.py", "one/c.py", "x[1]/f.py"]
    assert names("**/*.py") == ["a.py", "one/c.py", "one/two/d.py", "x[1]/f.py"]
    assert names("**/two/*.py") == ["one/two/d.py"] and names("x[[]1]/*") == ["x[1]/f.py"]
    assert names("none/**/*") == [] and names("one/**") and names("a.py") == ["a.py"]


def test_makedirs_and_remove(tmp_path):
    host.makedirs(str(tmp_path / "a" / "b"))
    host.makedirs(str(tmp_path / "a" / "b"))
    (tmp_path / "a" / "b" / "file").touch()
    (tmp_path / "link").symlink_to("a")
    host.remove(str(tmp_path / "link"))
    assert (tmp_path / "a" / "b" / "file").exists() and not (tmp_path / "link").is_symlink()
    host.remove(str(tmp_path / "a"))
    host.remove(str(tmp_path / "a"))
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(pc.HostError, match="无法创建文件夹"):
        host.makedirs(str(tmp_path / "file" / "below"))


def test_connect():
    local = pc.SideConfig(log_path="/l", code_path="/c", run_script="/r")
    assert isinstance(pc.connect(local), pc.LocalHost) and pc.connect(local).name == pc.connect(local).name
