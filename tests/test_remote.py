"""Trainings over SSH (sections 4, 5, 7, 9, 13), with real OpenSSH servers on loopback and real faults."""

import contextlib
import getpass
import inspect
import json
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import precision_comparer as pc
import test_hosts
import test_narrowing
import test_pipeline
import test_runs

SUDO = [] if os.getuid() == 0 else ["sudo", "-n"]
PATH = f"PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


# ---- servers ----


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def make_key(path: Path) -> str:
    """A new key pair; returns the public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return path.with_name(path.name + ".pub").read_text()


def below(pid: int) -> list[int]:
    """A process and everything below it that still has its parent."""
    table = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.name.isdigit():
                table[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:
        found += [child for child, above in table.items() if above == parent]
    return found


class Server:
    """An OpenSSH server with its own keys on a high port, and the client's side of it: key, known_hosts, `ssh` section."""

    def __init__(self, folder: Path, *lines: str, prefix: tuple[str, ...] = ()):
        folder.mkdir(parents=True)
        self.folder, self.port, self.prefix, self.process = folder, free_port(), prefix, None
        make_key(folder / "host_key")
        (folder / "authorized_keys").write_text(make_key(folder / "id"))
        self.trust()
        settings = [f"Port {self.port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host_key", f"AuthorizedKeysFile {folder}/authorized_keys",
                    f"PidFile {folder}/pid", "StrictModes no", "UsePAM no", "PermitRootLogin yes", "LogLevel VERBOSE", "MaxStartups 100",
                    *lines, "Subsystem sftp internal-sftp", f"SetEnv {PATH} PYTHON={sys.executable}"]  # fmt: skip
        settings = list({line.split()[0]: line for line in reversed(settings)}.values())  # the first of a kind counts
        (folder / "config").write_text("\n".join(settings) + "\n")
        self.start()

    def trust(self) -> None:
        """Note the server's key in the client's known_hosts."""
        words = (self.folder / "host_key.pub").read_text().split()[:2]
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {' '.join(words)}\n")

    def start(self) -> None:
        """Listen."""
        subprocess.run([*SUDO, "mkdir", "-p", "/run/sshd"], check=True)
        command = [*SUDO, *self.prefix, SSHD, "-D", "-f", str(self.folder / "config"), "-E", str(self.folder / "log")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        assert test_hosts.wait_for(self.answers), (self.folder / "log").read_text()

    def answers(self) -> bool:
        """Whether it accepts connections."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def kill(self) -> None:
        """kill -9 of the listener and of every session that it serves, as when the machine's sshd dies."""
        victims = []
        for pid in below(self.process.pid):
            with contextlib.suppress(OSError):  # it ended meanwhile
                victims += [pid] if "sshd" in Path(f"/proc/{pid}/comm").read_text() else []
        subprocess.run([*SUDO, "kill", "-9", *map(str, victims)])
        self.process.wait()

    def ssh(self, **changes) -> dict:
        """The `ssh` section that reaches it."""
        section = {"host": "127.0.0.1", "port": self.port, "username": getpass.getuser(), "key_filename": str(self.folder / "id"),
                   "known_hosts": str(self.folder / "known_hosts")}
        return {key: value for key, value in {**section, **changes}.items() if value is not None}

    def host(self, **changes) -> "pc.SshHost":
        """A host connected to it."""
        host = pc.SshHost(pc.SshConfig(**self.ssh(**changes)))
        host.open()
        return host


@contextlib.contextmanager
def serving(folder: Path, *lines: str, prefix: tuple[str, ...] = ()):
    """A server for the time of a block."""
    server = Server(folder, *lines, prefix=prefix)
    try:
        yield server
    finally:
        with contextlib.suppress(OSError):
            server.kill()


@pytest.fixture(scope="session")
def first(tmp_path_factory):
    """A machine."""
    with serving(tmp_path_factory.mktemp("first") / "ssh") as server:
        yield server


@pytest.fixture(scope="session")
def second(tmp_path_factory):
    """Another machine."""
    with serving(tmp_path_factory.mktemp("second") / "ssh") as server:
        yield server


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path_factory):
    """A home of our own, shorter waits, and no warnings of another test."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(pc, "RETRY_SECONDS", (0.1, 0.5))
    monkeypatch.setattr(pc.terminal, "warnings", [])


@pytest.fixture
def remote(first):
    """A connected host."""
    host = first.host()
    yield host
    host.close()


# ---- the same as on this machine ----

# Not those that change the rights of this process: a server keeps its own.
LOCAL_TESTS = [
    name for name, test in inspect.getmembers(test_hosts, inspect.isfunction)
    if name.startswith("test_") and re.search(r"\bhost\b|\bstart\(", text := inspect.getsource(test)) and not re.search("without_root_rights|umask", text)
]  # fmt: skip


@pytest.mark.parametrize("name", LOCAL_TESTS)
def test_a_remote_host_does_what_this_machine_does(name, tmp_path, monkeypatch, remote):
    monkeypatch.setattr(test_hosts, "host", remote)
    test = getattr(test_hosts, name)
    given = {"tmp_path": tmp_path, "monkeypatch": monkeypatch}
    test(**{key: given[key] for key in inspect.signature(test).parameters})


# ---- small trainings through the real command ----

SCRIPT = Path(pc.__file__).resolve()
PYTHON = next(filter(os.path.exists, ("/usr/bin/python3", "/usr/local/bin/python3", sys.executable)))  # that any user may run


def training(pause: float = 0.0) -> dict[str, str]:
    """The files of a pure-Python training of four steps that waits `pause` seconds before each."""
    text = test_narrowing.TRAINING.replace("import random\n", "import random\nimport time\n", 1)
    step = "    loss, mean = forward("
    assert text.count(step) == 1
    return {**test_narrowing.FILES, "train.py": text.replace(step, f"    time.sleep({pause})\n{step}")}


@dataclass
class Ended:
    """A command that ended: its exit code and everything that it showed."""

    code: int
    out: str
    folder: Path

    @property
    def report(self) -> dict:
        """`report.json`."""
        return json.loads((self.folder / "out" / "report.json").read_text())

    def located(self) -> bool:
        """Whether the planted bug was named."""
        return self.code == 1 and self.report["location"]["test"]["code"].startswith("self.scale = 1.0 / math.sqrt(2.1)")


class Trial:
    """Two trainings that differ in one constant, each on a server (or here), and the command that compares them.

    Every launch of a training is noted in `starts` of its side.
    """

    def __init__(self, folder: Path, baseline: dict | None, test: dict | None, pause: float = 0.0, test_folder: Path | None = None, **debug):
        self.folder, self.home = folder, folder / "home"
        self.places = {"baseline": folder / "baseline", "test": test_folder or folder / "test"}
        self.home.mkdir(parents=True)
        config = {"debug": {"log_keywords": ["lm loss", "grad norm"], "tolerance": 1e-9, **debug}}
        for side, ssh in (("baseline", baseline), ("test", test)):
            place = self.places[side]
            (place / "code").mkdir(parents=True)
            for name, text in training(pause).items():
                changed = text.replace("math.sqrt(2.0)", "math.sqrt(2.1)") if side == "test" else text
                (place / "code" / name).write_text(changed)
                os.utime(place / "code" / name, ns=(1, 1_600_000_000_123_456_789))
                (place / "code" / name).chmod(0o640)
            command = f"{PYTHON} train.py | tee ../train.log"
            note = "date +%s.%N >> ../"
            (place / "run.sh").write_text(f"cd {shlex.quote(str(place / 'code'))}\n{note}starts\n{command}\n{note}ends\n")
            config[side] = {"mode": "remote" if ssh else "local", "log_path": f"{place}/train.log", "code_path": f"{place}/code", "run_script": f"{place}/run.sh"}
            config[side] |= {"ssh": ssh} if ssh else {}
        self.before = self.state()
        (folder / "config.json").write_text(json.dumps(config))

    def state(self) -> dict[str, tuple]:
        """Contents, permissions, owner and modification time of every file of both code trees."""
        found = {}
        for side, place in self.places.items():
            for path in (place / "code").rglob("*"):
                if path.is_file() and "__pycache__" not in path.parts:
                    status = path.stat()
                    found[f"{side}/{path.name}"] = path.read_bytes(), status.st_mode, status.st_uid, status.st_mtime_ns
        return found

    def starts(self, side: str, name: str = "starts") -> list[float]:
        """When the trainings of a side started (or ended)."""
        path = self.places[side] / name
        return [float(line) for line in path.read_text().split()] if path.exists() else []

    def begin(self, *words: str, stdin: int = subprocess.DEVNULL, **env: str) -> subprocess.Popen:
        """Start the command."""
        quick = f"import sys; sys.path.insert(0, {str(SCRIPT.parent)!r}); import precision_comparer as pc; pc.RETRY_SECONDS = (0.1, 0.5); pc.HURRY_SECONDS = 3; sys.exit(pc.main())"
        command = [sys.executable, "-c", quick, "--config", str(self.folder / "config.json"), "--output-dir", str(self.folder / "out"), "--no-llm", *words]
        env = {**os.environ, "HOME": str(self.home), "NO_COLOR": "1", **env}
        return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

    def end(self, process: subprocess.Popen, is_restored: bool = True) -> Ended:
        """Wait for a command; whatever happened, the code is as it was."""
        out, _ = process.communicate(timeout=120)
        assert "Traceback" not in out, out
        if is_restored:
            assert self.state() == self.before, out
            assert not list(self.folder.glob("*/code/.precision_comparer_*")) and not list(self.home.glob(".cache/*/journals/*"))
        return Ended(process.returncode, out, self.folder)

    def run(self, *words: str) -> Ended:
        """Run the command to its end."""
        return self.end(self.begin(*words))


def test_both_sides_on_one_machine_run_one_after_the_other(tmp_path, first):
    trial = Trial(tmp_path, first.ssh(), first.ssh(), pause=0.1)
    done = trial.run()
    assert done.located() and done.report["reruns"] == 1, done.out
    user = getpass.getuser()
    assert f"[1/6] 连接到baseline服务器...\n正在连接到 {user}@127.0.0.1:{first.port}\n成功连接到 127.0.0.1\n" in done.out
    assert len(trial.starts("baseline")) == len(trial.starts("test")) == 2
    assert trial.starts("baseline", "ends")[0] < trial.starts("test")[0]
    assert "本机" not in done.out and (tmp_path / "out" / "first_test.log").read_text().endswith("training success\n")


def test_two_machines_train_at_the_same_time(tmp_path, first, second):
    trial = Trial(tmp_path, first.ssh(), second.ssh(), pause=0.4)
    done = trial.run("--compare-only")
    assert done.code == 4, done.out
    assert trial.starts("test")[0] < trial.starts("baseline", "ends")[0] and trial.starts("baseline")[0] < trial.starts("test", "ends")[0]


def test_one_side_here_and_one_there(tmp_path, first):
    done = Trial(tmp_path, None, first.ssh()).run()
    assert done.located() and "本机运行" in done.out, done.out


# ---- a machine that is not like ours ----


@pytest.fixture(scope="session")
def open_folder():
    """A folder that every user may enter: pytest closes its own ones to others."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def user(open_folder):
    """A user with a password, whose home has spaces and Chinese characters and whose shell greets at every login."""
    name, password = f"pc{os.urandom(4).hex()}", "geheim-密 '1$"
    home = open_folder / "家 目录 of $USER"
    crypted = subprocess.run(["openssl", "passwd", "-6", "-stdin"], input=password, capture_output=True, text=True, check=True).stdout.strip()
    subprocess.run([*SUDO, "useradd", "-m", "-d", str(home), "-s", "/bin/bash", "-p", crypted, name], check=True)
    banner = "echo '欢迎使用 ****** 计算集群'\necho 'No space left on device 0 running' >&2\nprintf '\\n%s' 'no newline at the end'\n"
    subprocess.run([*SUDO, "tee", str(home / ".bashrc"), str(home / ".profile")], input=banner, text=True, stdout=subprocess.DEVNULL, check=True)
    yield {"name": name, "password": password, "home": home}
    subprocess.run([*SUDO, "userdel", "-r", name], capture_output=True)


@pytest.fixture(scope="session")
def strange(open_folder, user):
    """A machine that runs an external SFTP server in the greeting shell and shows a banner of its own."""
    folder = open_folder / "strange"
    folder.mkdir()
    (folder / "banner").write_text("Authorized users only\n")
    server = next(path for path in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server") if os.path.exists(path))
    with serving(folder / "ssh", f"Banner {folder}/banner", f"Subsystem sftp {server}", "PasswordAuthentication yes") as machine:
        yield machine


def test_password_greeting_shell_and_a_home_with_spaces_and_chinese(tmp_path, strange, user, monkeypatch):
    place = user["home"] / "训练 1"
    monkeypatch.setenv("REMOTE_PASSWORD", user["password"])
    by_password = strange.ssh(username=user["name"], key_filename=None, password_env="REMOTE_PASSWORD")
    trial = Trial(tmp_path, strange.ssh(), by_password, test_folder=place, pause=0.2)
    subprocess.run([*SUDO, "chown", "-R", user["name"], str(place)], check=True)
    trial.before = trial.state()
    process = trial.begin()
    seen = set()
    while process.poll() is None and not trial.starts("test", "ends"):
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                seen.add(path.read_bytes())
        time.sleep(0.1)
    done = trial.end(process)
    assert done.located(), done.out
    kept = done.out + "".join(path.read_text(errors="replace") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert user["password"] not in kept and user["password"].encode() not in b"".join(seen) and b"train.py" in b"".join(seen)
    assert "欢迎" not in kept


def test_code_that_may_not_be_written(tmp_path, open_folder, strange, user):
    place = open_folder / "closed"
    trial = Trial(tmp_path, strange.ssh(), strange.ssh(username=user["name"], key_filename=None, password=user["password"]), test_folder=place)
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for name in ("train.log", "starts", "ends"):
        (trial.places["test"] / name).touch()
        (trial.places["test"] / name).chmod(0o666)
    trial.before = trial.state()
    done = trial.run()
    assert "test.code_path 不可写" in done.out and "没有权限" in done.out and done.code == 3, done.out
    assert len(done.report["metrics"]["loss"]) and done.report["verdict"] == "not_located"


def test_a_clock_an_hour_ahead(tmp_path, first):
    library = next(path for path in map(Path, ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1")) if path.exists())
    with serving(tmp_path / "ssh", f"SetEnv LD_PRELOAD={library} FAKETIME=+3600 FAKE_UTIME=1 {PATH}") as ahead:
        assert float(ahead.host().run(["date", "+%s"]).out) - time.time() > 3500
        trial = Trial(tmp_path / "trial", first.ssh(), ahead.ssh())
        trial.places["test"].joinpath("train.log").write_text("iteration 1 | lm loss: 9.0 | grad norm: 9.0\ntraining success\n")
        done = trial.run()
    assert done.located() and trial.starts("test")[0] - trial.starts("baseline")[0] > 3500, done.out


# ---- connections that break ----


class Wire:
    """A TCP proxy in front of a server that cuts connections, and counts them and the bytes that came from the server."""

    def __init__(self, server: Server, cut_after: int | None = None):
        self.server, self.cut_after, self.connections, self.received, self.cuts = server, cut_after, 0, 0, 0
        self.open: set[socket.socket] = set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        words = (server.folder / "host_key.pub").read_text().split()[:2]
        self.known_hosts = server.folder / f"known_hosts_{self.port}"
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {' '.join(words)}\n")
        threading.Thread(target=self._accept, daemon=True).start()

    def ssh(self) -> dict:
        """The `ssh` section that reaches the server through here."""
        return self.server.ssh(port=self.port, known_hosts=str(self.known_hosts))

    def _accept(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                near = self.listener.accept()[0]
                far = socket.create_connection(("127.0.0.1", self.server.port))
                self.connections += 1
                self.open |= {near, far}
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, target, source is far), daemon=True).start()
            if self.listener.fileno() < 0:
                return

    def _copy(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        count = 0
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                count += len(data)
                self.received += len(data) * counts
                if counts and self.cut_after and count > self.cut_after:
                    break
        self._reset({source, target})

    def _reset(self, ends: set[socket.socket]) -> None:
        """Close without a farewell, as a network that fails."""
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            self.open.discard(end)

    def cut(self) -> None:
        """Break every connection."""
        self.cuts += bool(self.open)
        self._reset(set(self.open))

    def cut_often(self, times: int, is_over) -> None:
        """Break each connection a while after it was made, ever later, so that every kind of work is hit and some gets through."""
        for number in range(times):
            seen = self.connections
            if test_hosts.wait_for(lambda: self.connections > seen or is_over(), 20) and is_over():
                return
            time.sleep(0.1 + 0.08 * (number % 9))
            self.cut()

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()
        self.cut()


@pytest.fixture
def wire(first):
    """A wire to the first machine."""
    wire = Wire(first)
    yield wire
    wire.close()


def test_a_server_that_is_killed_and_started_again_during_a_training(tmp_path):
    with serving(tmp_path / "ssh") as server:
        trial = Trial(tmp_path / "trial", server.ssh(), server.ssh(), pause=0.8)
        process = trial.begin("--compare-only")
        assert test_hosts.wait_for(lambda: trial.starts("baseline"), 30)
        server.kill()
        time.sleep(1)
        server.start()
        done = trial.end(process)
    assert done.code == 4 and "的连接断开" in done.out and "已重新连接到 127.0.0.1" in done.out, done.out
    assert len(trial.starts("baseline")) == len(trial.starts("test")) == 1
    assert done.report["metrics"]["loss"]["steps_compared"] == 4


def test_twenty_dropped_connections(tmp_path, wire):
    trial = Trial(tmp_path, wire.ssh(), wire.ssh(), pause=0.3)
    process = trial.begin()
    assert test_hosts.wait_for(lambda: trial.starts("baseline"), 30)
    wire.cut()
    wire.cut_often(24, lambda: process.poll() is not None)
    done = trial.end(process)
    assert done.located() and done.report["reruns"] == 1, done.out
    assert wire.cuts > 20 and wire.connections > 20 and "已重新连接到" in done.out, (wire.cuts, wire.connections, done.out)
    assert len(trial.starts("baseline")) == len(trial.starts("test")) == 2  # the first run and one rerun


def test_a_cut_in_the_middle_of_a_transfer_costs_one_piece(tmp_path, first, monkeypatch):
    monkeypatch.setattr(pc, "PIECE", 1 << 20)
    data = os.urandom(16 << 20)
    (tmp_path / "big").write_bytes(data)
    wire = Wire(first, cut_after=5 << 20)
    host = pc.SshHost(pc.SshConfig(**wire.ssh()))
    host.open()
    path = pc.fetch(host, str(tmp_path / "big"), str(tmp_path / "here" / "big"))
    assert Path(path).read_bytes() == data and wire.connections >= 4
    assert wire.received < 22 << 20  # every cut lost at most the piece under way
    wire.cut_after = None
    host.close()
    wire.close()


def test_contents_are_compressed_on_their_way(tmp_path, wire):
    (tmp_path / "dump.json").write_text(json.dumps({"data": {f"Tensor.__mul__.{n}.forward": {"Max": n, "Min": 0.25} for n in range(60000)}}))
    host = pc.SshHost(pc.SshConfig(**wire.ssh()))
    host.open()
    data = host.read(str(tmp_path / "dump.json"))
    assert data == (tmp_path / "dump.json").read_bytes() and wire.received < len(data) / 4
    host.close()


def test_a_write_that_is_cut_leaves_the_old_file_or_the_new(tmp_path, wire):
    host = pc.SshHost(pc.SshConfig(**wire.ssh()))
    host.open()
    paths = [tmp_path / f"{number}.py" for number in range(30)]
    for path in paths:
        path.write_bytes(b"old")
    written = []

    def write():
        for text in (b"first" * 5000, b"second" * 5000, b"third" * 5000):
            assert host.write_all(pc.Content(str(path), text, 0o600, 123456789 * 10**9 + 7) for path in paths) == {}
            written.append({(path.read_bytes(), path.stat().st_mode & 0o777, path.stat().st_mtime_ns) for path in paths} == {(text, 0o600, 123456789 * 10**9 + 7)})

    thread = threading.Thread(target=write)
    thread.start()
    while thread.is_alive():
        assert {path.read_bytes()[:5] for path in paths} <= {b"old", b"first", b"secon", b"third"}
        wire.cut_often(1, lambda: not thread.is_alive())
    thread.join()
    assert written == [True] * 3
    host.close()
    assert len(os.listdir(tmp_path)) == 30


# ---- connecting ----


def refusal(**section) -> str:
    """What the user is told about a connection that cannot be made."""
    remote = pc.SideConfig(mode="remote", log_path="/l", code_path="/c", run_script="/r", ssh=section)
    with pytest.raises(pc.HostError) as caught:
        pc.connect(remote)
    assert caught.value.exit_code == 3 and caught.value.__class__ is pc.HostError
    return str(caught.value)


def test_a_wrong_password_is_one_sentence_and_no_secret(tmp_path, strange, user):
    trial = Trial(tmp_path, strange.ssh(), strange.ssh(username=user["name"], key_filename=None, password="wrong-geheim"))
    done = trial.run()
    assert done.code == 3 and done.out.count("错误: ") == 1 and trial.starts("baseline") == []
    assert f"无法连接到 {user['name']}@127.0.0.1:{strange.port}: 用户名或密码不正确，登录被拒绝。请检查" in done.out
    assert "wrong-geheim" not in done.out + (tmp_path / "out" / "console.log").read_text()


def test_connections_that_cannot_be_made(tmp_path, first, monkeypatch):
    monkeypatch.setattr(pc, "CONNECT_SECONDS", 1)
    assert "拒绝连接。请检查 ssh.port" in refusal(**first.ssh(port=free_port()))
    assert "找不到主机 no-such-host.invalid。请检查 ssh.host" in refusal(**first.ssh(host="no-such-host.invalid"))
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as waiting:  # a full queue swallows packets, as a firewall does
        for _ in range(4):
            knock = waiting.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(full.getsockname())
        assert "1 秒内没有回应。请检查网络、防火墙和 ssh.host" in refusal(**first.ssh(port=full.getsockname()[1]))
    assert "找不到私钥文件 /no/such/key" in refusal(**first.ssh(key_filename="/no/such/key"))
    assert "没有可用的登录方式。请填写 ssh.password" in refusal(**first.ssh(key_filename=None))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = {"port": silent.getsockname()[1]}
        assert "没有回应 SSH 的服务。请检查 ssh.host、ssh.port" in refusal(**first.ssh(**words))
    with socket.create_server(("127.0.0.1", 0)) as talker:
        threading.Thread(target=lambda: talker.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3000), daemon=True).start()
        assert "没有回应 SSH 的服务" in refusal(**first.ssh(port=talker.getsockname()[1]))
    make_key(tmp_path / "other")
    assert "用户名或密钥不正确" in refusal(**first.ssh(key_filename=str(tmp_path / "other")))
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "pass phrase", "-f", str(tmp_path / "other")], check=True)
    assert "私钥有口令" in refusal(**first.ssh(key_filename=str(tmp_path / "other")))


def test_a_private_key_with_a_passphrase(first, tmp_path):
    shutil.copy(first.folder / "id", tmp_path / "id")
    (tmp_path / "id").chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "pass phrase", "-f", str(tmp_path / "id")], check=True)
    host = first.host(key_filename=str(tmp_path / "id"), password="pass phrase")
    assert host.run(["echo", "in"]).out == "in\n"
    host.close()


def test_unknown_and_changed_host_keys(tmp_path, first, monkeypatch):
    known = tmp_path / "known_hosts"
    said = refusal(**first.ssh(known_hosts=str(known)))
    assert f"[127.0.0.1]:{first.port} 的主机密钥（ssh-ed25519 SHA256:" in said and f"不在 {known} 中" in said and "ssh.host_key_policy" in said
    assert not known.exists()
    make_key(tmp_path / "other")
    known.write_text(f"[127.0.0.1]:{first.port} {' '.join((tmp_path / 'other.pub').read_text().split()[:2])}\n")
    for policy in ("reject", "ask", "accept"):
        said = refusal(**first.ssh(known_hosts=str(known), host_key_policy=policy))
        assert "主机密钥与 known_hosts 中记录的不同" in said and f"ssh-keygen -R '[127.0.0.1]:{first.port}' -f {known}" in said
    known.unlink()
    host = first.host(known_hosts=str(known), host_key_policy="accept")
    assert "没有核对" in pc.terminal.warnings[0] and not known.exists()
    host.close()


def test_a_host_key_is_asked_for_once_and_remembered(tmp_path, first):
    known = tmp_path / "new" / "known_hosts"
    trial = Trial(tmp_path / "trial", None, first.ssh(known_hosts=str(known), host_key_policy="ask"))
    for answer, code, prompts in (("no\n", 3, 1), ("yes\n", 0, 1), ("", 0, 0)):
        ours, theirs = os.openpty()
        os.write(ours, answer.encode())
        process = trial.begin("--check", stdin=theirs)
        os.close(theirs)
        done = trial.end(process)
        os.close(ours)
        assert (done.code, done.out.count("是否信任它并记入")) == (code, prompts), done.out
    assert len(known.read_text().splitlines()) == 1 and oct(known.parent.stat().st_mode).endswith("700")


def test_a_server_with_another_key_after_a_reconnect_is_refused(tmp_path):
    with serving(tmp_path / "ssh") as server:
        host = server.host(known_hosts=str(tmp_path / "none"), host_key_policy="accept")
        server.kill()
        for file in server.folder.glob("host_key*"):
            file.unlink()
        make_key(server.folder / "host_key")
        server.start()
        with pytest.raises(pc.HostError, match="主机密钥与 known_hosts 中记录的不同"):
            host.stat("/")
        host.close()


def test_ssh_config_with_a_jump_host(tmp_path, first, second):
    config = Path(os.environ["HOME"], ".ssh", "config")
    config.parent.mkdir()
    hop, target = (f"HostName 127.0.0.1\n Port {server.port}\n User {getpass.getuser()}\n IdentityFile {server.folder}/id\n" for server in (first, second))
    config.write_text(f"Host hop\n {hop}\nHost npu-*\n {target} ProxyJump hop\n")
    known = tmp_path / "known_hosts"
    known.write_text("".join((server.folder / "known_hosts").read_text() for server in (first, second)))
    before = (first.folder / "log").read_text().count("Accepted publickey")
    host = pc.SshHost(pc.SshConfig(host="npu-7", known_hosts=str(known)))
    host.open()
    assert str(host.address) == f"{getpass.getuser()}@127.0.0.1:{second.port}" and host.run(["echo", "in"]).out == "in\n"
    assert (first.folder / "log").read_text().count("Accepted publickey") == before + 1
    host.close()
    jump = f"{getpass.getuser()}@127.0.0.1:{first.port}"
    config.write_text(f"Host *\n IdentityFile {first.folder}/id\n")
    host = second.host(known_hosts=str(known), proxy_jump=jump)
    assert (first.folder / "log").read_text().count("Accepted publickey") == before + 2
    host.close()
    nobody = second.ssh(known_hosts=str(known), proxy_jump=jump, port=free_port(), key_filename=None)
    assert "跳板机连不上它。请检查 ssh.host、ssh.port 和 ssh.proxy_jump" in refusal(**nobody)
    assert f"无法连接到 nobody@127.0.0.1:{first.port}: 用户名或密钥不正确" in refusal(**{**nobody, "proxy_jump": jump.replace(getpass.getuser(), "nobody")})


def test_keys_of_an_agent(tmp_path, first, monkeypatch):
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(tmp_path / "agent")], stdout=subprocess.DEVNULL)
    try:
        assert test_hosts.wait_for((tmp_path / "agent").exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run(["ssh-add", "-q", str(first.folder / "id")], check=True)
        host = first.host(key_filename=None)
        assert host.run(["echo", "in"]).out == "in\n"
        host.close()
    finally:
        agent.terminate()
        agent.wait()


def test_a_machine_that_lets_nobody_run_commands(tmp_path):
    with serving(tmp_path / "a", "ForceCommand echo 请选择机器") as server:
        with pytest.raises(pc.HostError, match="不能执行命令或读写文件（远程的 shell 结束了: 请选择机器）"):
            server.host()
    with serving(tmp_path / "b", "Subsystem other /bin/false") as server:
        with pytest.raises(pc.HostError, match="SFTP 子系统"):
            server.host()


# ---- what must not be harmed ----


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """A tmpfs of this size for the time of a block; yields whether it could be mounted (a container may not)."""
    folder.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run([*SUDO, "mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(folder)], capture_output=True)
    try:
        yield not mounted.returncode
    finally:
        if not mounted.returncode:
            subprocess.run([*SUDO, "umount", "-l", str(folder)], check=True)


NO_LARGE_FILES = ("sh", "-c", "trap '' XFSZ; ulimit -f 40; exec \"$@\"", "sh")  # 20 KiB: less than what the prints need


@pytest.mark.parametrize("free_kib", [0, 60])
def test_a_full_disk_on_the_other_machine(tmp_path, first, free_kib):
    """Nothing can be written, or not even everything that an injection needs."""
    with contextlib.ExitStack() as stack:
        is_real = stack.enter_context(small_disk(tmp_path / "test", "1m"))
        server = first if is_real else stack.enter_context(serving(tmp_path / "ssh", prefix=NO_LARGE_FILES))
        trial = Trial(tmp_path, None, server.ssh())
        script = (tmp_path / "test" / "run.sh").read_text().replace(" | tee ../train.log", "").replace("../starts", "/dev/null").replace("../ends", "/dev/null")
        (tmp_path / "test" / "run.sh").write_text(script)
        fill = (tmp_path / "test" / "fill").open("wb")
        with contextlib.suppress(OSError):
            while fill.tell() < 1 << 20 and fill.write(b"x" * 4096):
                fill.flush()
        os.truncate(tmp_path / "test" / "fill", os.path.getsize(tmp_path / "test" / "fill") // 4096 * 4096 - free_kib * 1024)
        done = trial.run()
        assert done.code == 3 and ("磁盘空间不足" if is_real else "磁盘可能已满") in done.out and done.report["verdict"] == "not_located", done.out
        assert done.report["metrics"]["loss"]["steps_compared"] == 4


def journals_of(trial: Trial, process: subprocess.Popen) -> list[Path]:
    """The journals of both sides, as soon as a rerun with prints has started on the test side."""
    assert test_hosts.wait_for(lambda: len(trial.starts("test")) == 2, 60), process.poll()
    assert trial.state() != trial.before
    return [path for place in trial.places.values() for path in (place / "code").glob(".precision_comparer_*/journal.json")]


def living(trial: Trial) -> list[int]:
    """Processes that run in the code folders of a trial."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(trial.folder) in os.readlink(entry / "cwd"):
                found.append(int(entry.name))
    return found


def test_killed_here_restored_from_another_machine(tmp_path, first):
    trial = Trial(tmp_path, None, first.ssh(), pause=0.5)
    process = trial.begin()
    journals = journals_of(trial, process)
    process.kill()
    trial.end(process, is_restored=False)
    for journal in journals:  # as if written on another machine than this one
        journal.write_text(journal.read_text().replace(json.dumps(os.uname().nodename), '"another-machine"'))
    other_home = tmp_path / "other home"
    other_home.mkdir()
    done = trial.end(trial.begin("--restore", HOME=str(other_home)), is_restored=False)
    assert done.code == 2 and f"another-machine 上的 PrecisionComparer (进程 {process.pid}) 正在" in done.out, done.out  # it may still be alive
    for journal in journals:
        os.utime(journal, (time.time() - 600,) * 2)
    done = trial.end(trial.begin("--restore", HOME=str(other_home)), is_restored=False)
    assert done.code == 0 and "已还原上次遗留的插入" in done.out, done.out
    done = trial.run("--restore")  # the copy of the journal here is out of date and goes
    assert done.code == 0 and not living(trial), done.out


def test_the_copy_of_the_journal_here_restores_when_the_one_there_is_lost(tmp_path, first):
    trial = Trial(tmp_path, None, first.ssh(), pause=0.5)
    process = trial.begin()
    journals = journals_of(trial, process)
    process.kill()
    trial.end(process, is_restored=False)
    assert test_hosts.wait_for(lambda: not living(trial), 30)  # the trainings go on, and Python writes into the folder
    shutil.rmtree(journals[1].parent)
    done = trial.run("--restore")
    assert done.code == 0 and "已还原上次遗留的插入: 4 个文件" in done.out, done.out


@pytest.mark.parametrize("when", ["first run", "rerun"])
def test_an_interrupt_stops_the_training_there_and_restores(tmp_path, first, when):
    trial = Trial(tmp_path, first.ssh(), first.ssh(), pause=0.8)
    process = trial.begin()
    assert test_hosts.wait_for(lambda: len(trial.starts("test")) == (1 if when == "first run" else 2), 60)
    time.sleep(0.3)
    assert living(trial)
    process.send_signal(signal.SIGINT)
    done = trial.end(process)
    assert done.code == 130 and not living(trial) and trial.starts("test", "ends")[1:] == [], done.out


def test_an_interrupt_while_the_machine_is_out_of_reach_is_told(tmp_path):
    with serving(tmp_path / "ssh") as server:
        trial = Trial(tmp_path / "trial", None, server.ssh(), pause=0.8)
        process = trial.begin()
        journals_of(trial, process)
        server.kill()
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        done = trial.end(process, is_restored=False)
        assert done.code == 3 and "无法停止" in done.out and "kill -- -" in done.out and "没能恢复" in done.out, done.out
        assert "没有完成：" in (done.folder / "out" / "report.html").read_text(encoding="utf-8")
        server.start()
        done = trial.run("--restore")
        assert done.code == 0 and "已还原上次遗留的插入: 2 个文件" in done.out, done.out


def test_an_interrupt_shortens_the_wait_for_a_machine_while_the_code_is_restored(tmp_path, monkeypatch):
    monkeypatch.setattr(pc, "HURRY_SECONDS", 1)
    monkeypatch.setattr(pc.SshHost, "patience", 60)
    with serving(tmp_path / "ssh") as server:
        host = server.host()
        server.kill()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt), pc.hold_signals():
            with pytest.raises(pc.HostError, match="没能恢复"):
                host.stat("/")
        assert time.monotonic() - began < 30


# ---- logs ----

RUN_TESTS = """truncated_log removed_and_made_again log_rewritten_as_a_whole_and_renamed_into_place log_path_that_is_a_link_to_the_newest_log
    binary_files_in_the_log_folder_are_not_read output_nowhere_near_the_log_is_read_from_the_launcher text_stays_readable_after_the_next_run
    marker_torn_between_two_writes_and_in_another_encoding environment_and_folder missing_command_and_killed_process_are_explained stall
    background_training_that_dies_is_not_waited_for marker_and_never_exits nothing_is_left_when_the_caller_fails
    reuse_joins_a_rotated_log_and_leaves_an_earlier_run_out""".split()


@pytest.mark.parametrize("name", RUN_TESTS)
def test_a_remote_training_is_followed_like_one_here(name, tmp_path, monkeypatch, remote):
    monkeypatch.setattr(test_runs, "host", remote)
    for setting, value in dict(POLL_SECONDS=(0.03, 0.1), PROGRESS_SECONDS=0.1, GRACE_SECONDS=2.5, SETTLE_SECONDS=1).items():
        monkeypatch.setattr(pc, setting, value)
    test = getattr(test_runs, f"test_{name}")
    wanted = inspect.signature(test).parameters
    test(*[test_runs.Place(tmp_path) if "place" in wanted else tmp_path])


def test_a_log_of_a_gibibyte_is_not_transferred(tmp_path, wire, monkeypatch):
    host = pc.SshHost(pc.SshConfig(**wire.ssh()))
    host.open()
    monkeypatch.setattr(test_runs, "host", host)
    place = test_runs.Place(tmp_path)
    with place.log.open("wb") as log:
        log.write(test_runs.OLD.encode() * 100)
        log.seek(1 << 30)
        log.write(test_runs.OLD.encode() * 100)
    run = place.launch("(steps 1 300 7; sleep 1; steps 301 2000 7; finish) >> $L")
    assert test_runs.seen(run) == list(range(1, 2001)) and wire.received < 1 << 20
    host.close()


# ---- the shipped example, with msprobe ----


@pytest.fixture(scope="module")
def example(tmp_path_factory, first):
    """The example, its test side on another machine, after the main job; and how that ended."""
    folder = test_pipeline.copy_example(tmp_path_factory.mktemp("example"))
    layout(folder, None, first.ssh())
    before = test_pipeline.trees(test_pipeline.sides_of(folder))
    done = test_pipeline.compare(folder)
    assert test_pipeline.trees(test_pipeline.sides_of(folder)) == before
    return folder, done


def layout(folder: Path, baseline: dict | None, test: dict | None) -> None:
    """Say in `config.json` where both sides of the example are."""
    sides, changes = test_pipeline.sides_of(folder), {"msprobe": {"compare_output_dir": ""}}
    for name, ssh in (("baseline", baseline), ("test", test)):
        place = sides / name
        changes[name] = {"mode": "remote" if ssh else "local", "ssh": ssh, "log_path": f"{place}/logs/train.log", "code_path": f"{place}/code", "run_script": f"{place}/run.sh"}
        changes["msprobe"][f"{name}_data_dir"] = f"{place}/dump"
    test_pipeline.change_config(folder, **changes)


def test_example_with_the_test_side_on_another_machine(example):
    folder, done = example
    assert done.code == 1, done.out
    place = done.report["location"]["test"]
    assert (place["file"], place["code"]) == test_pipeline.GUILTY
    assert re.search(r"从 127.0.0.1:\d+ 取回 \S+/dump.json（\d+\.\d MiB）", done.out) and done.report["reruns"] == 1
    assert "msprobe 26" in done.out and Path(done.report["msprobe"]["result_file"]).exists()


@pytest.mark.parametrize("is_one_machine", [True, False])
def test_example_with_both_sides_on_other_machines(example, first, second, is_one_machine):
    """msprobe runs on the one machine, or here with the dumps of both; trainings, prints and rerun there."""
    folder, whole = example
    layout(folder, first.ssh(), first.ssh() if is_one_machine else second.ssh())
    before = test_pipeline.trees(test_pipeline.sides_of(folder))
    done = test_pipeline.compare(folder)
    assert test_pipeline.trees(test_pipeline.sides_of(folder)) == before
    assert done.code == 1 and "msprobe 26" in done.out and not done.report["warnings"] and done.report["reruns"] == 1, done.out
    place = done.report["location"]["test"]
    assert (place["file"], place["code"]) == test_pipeline.GUILTY
    assert done.report["msprobe"]["first_mismatch"] == whole.report["msprobe"]["first_mismatch"]
    assert done.report["metrics"] == whole.report["metrics"]
    assert done.report["msprobe"]["result_file"] == str(next((done.folder / "msprobe").glob("compare_result*")))
    assert done.out.count("compare_result") == (2 if is_one_machine else 1)  # fetched from where it was made, or made here
