"""Trainings over SSH (sections 4, 5, 7, 9, 13), with real OpenSSH servers on loopback and real faults."""

import contextlib
import getpass
import inspect
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import precision_comparer as pc
import test_hosts

SUDO = [] if os.getuid() == 0 else ["sudo", "-n"]
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
                    f"SetEnv PATH={Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin PYTHON={sys.executable}",
                    *lines]  # fmt: skip
        if not any(line.startswith("Subsystem") for line in lines):
            settings.append("Subsystem sftp internal-sftp")
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
        victims = [pid for pid in below(self.process.pid) if "sshd" in Path(f"/proc/{pid}/comm").read_text()]
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
