"""Launching and following trainings (section 5), with real scripts: only what a launch wrote counts, nothing is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import precision_comparer as pc

host = pc.LocalHost()
KEYWORDS = ["lm loss", "grad norm"]
OLD = "".join(f" iteration {n}/ 9 | lm loss: {n}.5E+00 | grad norm: {n}.250 |\n" for n in range(1, 10)) + "training success\n"
# What a training prints: `steps FIRST LAST SALT` and `finish`, as shell functions.
SHELL = r"""#!/bin/bash
steps() { for n in $(seq $1 $2); do echo " iteration $n/ 99 | lm loss: $n.00000$3E+00 | grad norm: $n.125 |"; sleep ${4:-0}; done; }
finish() { echo "training success"; }
"""


class Reader:
    """The newest step and loss."""

    def __init__(self):
        self.latest = None

    def feed(self, data: bytes) -> None:
        for step, loss in re.findall(rb"iteration (\d+)/.*lm loss: (\S+)", data):
            self.latest = int(step), float(loss)


class Place:
    """A side in a folder: its code, its logs and its script."""

    def __init__(self, folder: Path, name: str = "test", log: str = "logs/train.log", **debug):
        self.folder, self.name, self.out = folder / name, name, folder / "report"
        self.code, self.logs = self.folder / "code", self.folder / "logs"
        self.code.mkdir(parents=True)
        self.logs.mkdir()
        self.log, self.script = self.logs / "train.log", self.folder / "run.sh"
        section = {"log_path": str(self.folder / log), "code_path": str(self.code), "run_script": str(self.script)}
        self.config = pc.Config(baseline=section, test=section, debug={"log_keywords": KEYWORDS, **debug})
        self.side = pc.Side(name, self.config.test, host)

    def write(self, body: str) -> None:
        """The run script, with `$L` for the log and `$D` for its folder."""
        self.script.write_text(f"{SHELL}L={self.log}\nD={self.logs}\n{body}\n")

    def launch(self, body: str | None = None, tag: str = "run1", **options) -> "pc.Run":
        if body is not None:
            self.write(body)
        return pc.launch_and_follow([self.side], self.config, self.out, tag, **options)[self.name]

    def fails(self, body: str) -> str:
        """What the user is told about a training that does not end well."""
        with pytest.raises(pc.RunError) as caught:
            self.launch(body)
        assert caught.value.exit_code == 3
        return str(caught.value)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The same waiting, faster; and no warnings of another test."""
    for name, value in dict(POLL_SECONDS=(0.03, 0.1), PROGRESS_SECONDS=0.1, GRACE_SECONDS=2.5, SETTLE_SECONDS=1).items():
        monkeypatch.setattr(pc, name, value)
    monkeypatch.setattr(pc.terminal, "warnings", [])


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


def text(run) -> str:
    """What the run wrote where its metrics are."""
    return b"".join(pc.new_text(run)).decode()


def seen(run) -> list[int]:
    """The steps that the run logged."""
    return [int(step) for step in re.findall(r"iteration (\d+)/", text(run))]


def processes_with(word: str) -> list[int]:
    """Living processes with `word` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes() and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


# ---- where the new text is ----


def test_appended_text_only(place):
    place.log.write_text(OLD)
    run = place.launch("(steps 1 5 7 0.05; finish) >> $L")
    assert seen(run) == [1, 2, 3, 4, 5] and "0007E" in text(run) and text(run).endswith("training success\n")
    assert (run.ended, run.exit_code, run.log_files) == ("success", 0, [str(place.log)])


def test_truncated_log(place):
    place.log.write_text(OLD * 3)
    run = place.launch("(steps 1 4 7 0.05; finish) > $L")
    assert seen(run) == [1, 2, 3, 4] and "0007E" in text(run)


def test_log_that_has_grown_past_its_old_size_when_looked_at_again(place, monkeypatch):
    place.log.write_text(OLD)
    monkeypatch.setattr(pc, "POLL_SECONDS", (0.6, 0.6))
    assert seen(place.launch("(steps 1 40 7; finish) > $L")) == list(range(1, 41))


def test_same_head_but_another_run(place, monkeypatch):
    banner = "same banner, longer than what is compared\n" * 200
    place.log.write_text(banner + OLD)
    monkeypatch.setattr(pc, "POLL_SECONDS", (0.6, 0.6))
    run = place.launch(f"(printf '%s' '{banner}'; steps 1 40 7; finish) > $L")
    assert seen(run) == list(range(1, 41))


def test_removed_and_made_again(place):
    place.log.write_text(OLD)
    assert seen(place.launch("rm $L; sleep 0.2; (steps 1 4 7 0.05; finish) > $L")) == [1, 2, 3, 4]


@pytest.mark.parametrize("log", ["logs/train.log", "logs", "logs/*.log"])
@pytest.mark.parametrize("before", [
    "mv $L $L.1", "cp $L $L.1; : > $L", "cp $L $L.bak; rm $L", "mv $L.1 $L.2; mv $L $L.1", "cp $L $D/copy.log; : > $L", "mv $L $D/renamed.log",
])
def test_old_log_that_the_script_puts_away_is_not_new(tmp_path, log, before):
    place = Place(tmp_path, log=log)
    place.log.write_text(OLD)
    Path(f"{place.log}.1").write_text(OLD.replace("5E", "4E"))
    run = place.launch(f"{before}; sleep 0.2; (steps 1 4 7 0.1; finish) >> $L")
    assert seen(run) == [1, 2, 3, 4]


@pytest.mark.parametrize("log", ["logs/train.log", "logs", "logs/*.log"])
@pytest.mark.parametrize("rotate", ["mv $L.1 $L.2 2>/dev/null; mv $L $L.1", "cp $L $L.1; : > $L"])
def test_rotation_during_the_run_loses_and_doubles_nothing(tmp_path, log, rotate):
    place = Place(tmp_path, log=log)
    place.log.write_text("an old line\n" * 1000)
    run = place.launch(f"""
        steps 1 4 7 0.03 >> $L; sleep 0.3; {rotate}
        steps 5 8 7 0.03 >> $L; sleep 0.3; {rotate}
        steps 9 12 7 0.03 >> $L; finish >> $L""")
    assert seen(run) == list(range(1, 13)) and "an old line" not in text(run)


def test_copy_that_is_still_being_made_is_not_taken_for_a_new_log(tmp_path):
    place = Place(tmp_path, log="logs")
    place.log.write_text(OLD * 3)
    run = place.launch("(head -c 1000 $L; sleep 0.5; tail -c +1001 $L) > $L.bak; : > $L; (steps 1 4 7 0.1; finish) >> $L")
    assert seen(run) == [1, 2, 3, 4]


def test_new_log_that_begins_like_the_old_one_is_no_copy_for_long(tmp_path):
    place = Place(tmp_path, log="logs", stall_minutes=0.05)
    place.log.write_text(OLD * 3)
    run = place.launch("head -c 300 $L > $L.2; sleep 2; (echo; steps 1 4 7 0.6; finish) >> $L.2")
    assert seen(run)[-4:] == [1, 2, 3, 4] and run.log_files == [f"{place.log}.2"]


def test_log_rewritten_as_a_whole_and_renamed_into_place(place):
    place.log.write_text(OLD)
    run = place.launch("for n in 1 2 3; do (cat $L; steps $n $n 7) > $L.tmp; mv $L.tmp $L; sleep 0.2; done; finish >> $L")
    assert seen(run) == [1, 2, 3]


@pytest.mark.parametrize("log", ["logs", "logs/**/*.log", "logs/*/rank*.log"])
def test_new_files_in_a_folder_and_the_one_with_the_metrics(tmp_path, log):
    place = Place(tmp_path, log=log)
    (place.logs / "old").mkdir()
    (place.logs / "old" / "rank0.log").write_text(OLD * 5)
    run = place.launch("""mkdir -p $D/new; sleep 0.1
        (echo warming up; steps 1 1 3; sleep 0.3; finish) > $D/new/rank0.log &
        (steps 1 6 7 0.05; echo done) > $D/new/rank1.log; wait""")
    assert run.log_files == [f"{place.logs}/new/rank1.log"] and seen(run) == [1, 2, 3, 4, 5, 6]
    assert {item.origin for item in run.texts} == {f"{place.logs}/new/rank0.log", f"{place.logs}/new/rank1.log", run.launcher_log}


def test_binary_files_in_the_log_folder_are_not_read(tmp_path):
    place = Place(tmp_path, log="logs")
    (place.logs / "events").write_bytes(b"\1\0old")
    run = place.launch("head -c 100000 /dev/zero > $D/hole.bin; printf 'PK\\0\\0training success' > $D/model.pt; printf '\\0\\1training success' >> $D/events;"
                       "sleep 0.3; (steps 1 3 7; finish) > $L")
    assert seen(run) == [1, 2, 3] and len(run.texts) == 2


def test_log_path_that_is_a_link_to_the_newest_log(place):
    old = place.logs / "old.log"
    old.write_text(OLD)
    place.log.symlink_to(old)
    run = place.launch("(steps 1 3 7; sleep 0.2; finish) > $D/new.log & sleep 0.1; ln -sfn new.log $L; wait")
    assert seen(run) == [1, 2, 3]


def test_output_nowhere_near_the_log_is_read_from_the_launcher(place):
    place.log.write_text(OLD)
    run = place.launch("steps 1 3 7; finish")
    assert seen(run) == [1, 2, 3] and run.log_files == [run.launcher_log]


def test_error_output_is_read_too(place):
    assert seen(place.launch("(steps 1 3 7; finish) >&2")) == [1, 2, 3]


def test_tee_is_counted_once_and_the_log_preferred(place):
    run = place.launch("(steps 1 5 7 0.03; finish) 2>&1 | tee $L")
    assert seen(run) == [1, 2, 3, 4, 5] and run.log_files == [str(place.log)] and len(run.texts) == 2


def test_marker_in_the_launchers_output_and_metrics_in_the_log(place):
    run = place.launch("steps 1 3 7 > $L; finish")
    assert seen(run) == [1, 2, 3] and run.log_files == [str(place.log)]


def test_report_inside_the_log_folder_is_not_followed(tmp_path):
    place = Place(tmp_path, log="logs")
    place.out = place.logs / "precision_report" / "now"
    run = place.launch("steps 1 3 7 0.1 | tee $L; finish")
    assert seen(run) == [1, 2, 3] and len(run.texts) == 2
    assert pc.reuse([place.side], place.config, place.out)["test"].log_files == [str(place.log)]


def test_text_stays_readable_after_the_next_run(place):
    body = "(steps 1 3 {} 0.03; finish) > $L"
    first, second = place.launch(body.format(7), "run1"), place.launch(body.format(8), "run2")
    assert "0007E" in text(first) and "0008E" not in text(first)
    assert "0008E" in text(second) and "0007E" not in text(second) and seen(second) == [1, 2, 3]


def test_identical_log_of_a_seeded_training_is_seen_as_rewritten(place):
    body = "A=$(steps 1 3 7; finish); sleep 0.2; echo \"$A\" > $L"
    place.log.write_text(subprocess.run(["bash", "-c", SHELL + "steps 1 3 7; finish"], capture_output=True, text=True).stdout)
    os.utime(place.log, (1, 1))
    run = place.launch(body)
    assert seen(run) == [1, 2, 3] and any("完全相同" in warning for warning in pc.terminal.warnings)


def test_marker_torn_between_two_writes_and_in_another_encoding(tmp_path):
    assert seen(Place(tmp_path / "a").launch("steps 1 2 7; printf 'training suc'; sleep 0.3; printf 'cess'")) == [1, 2]
    place = Place(tmp_path / "b", success_marker="训练成功")
    place.logs.joinpath("marker").write_bytes("训练成功\n".encode("gbk"))
    assert place.launch("steps 1 2 7; cat $D/marker").ended == "success"


def test_gigantic_text_is_read_in_chunks(place):
    run = place.launch("(steps 1 2 7; yes 'a line of noise without any meaning' | head -c 9000000; echo; steps 3 4 7; finish) > $L")
    chunks = list(pc.new_text(run))
    assert max(map(len, chunks)) == 1 << 20 and seen(run) == [1, 2, 3, 4]


# ---- how a run is started and how it ends ----


def test_environment_and_folder(place):
    run = place.launch("steps 1 1 7; pwd; echo ${PRECISION_COMPARER_RUN:+marked} $MINE $PYTHONUNBUFFERED; finish", extra_env={"MINE": "yes"})
    assert f"{place.code}\nmarked yes 1\n" in text(run)
    assert 0 <= os.stat(run.launcher_log).st_mtime - run.started_at < 10


@pytest.mark.parametrize("name, mode, body, shown", [
    ("run.sh", 0o644, "echo ${BASH_VERSION:+bash}; echo training success", "bash"),
    ("run", 0o755, "echo ${BASH_VERSION:+bash}; echo training success", "bash"),
    ("run.py", 0o644, "import sys; print(sys.version_info[0]); print('training success')", "3"),
    ("run", 0o644, "#!/usr/bin/env python3\nprint('python')\nprint('training success')", "python"),
    ("run", 0o755, f"#!{sys.executable} -u\nprint('python')\nprint('training success')", "python"),
])
def test_script_is_run_by_what_fits(tmp_path, name, mode, body, shown):
    place = Place(tmp_path)
    script = place.folder / name
    script.write_text(body + "\n")
    script.chmod(mode)
    place.side = pc.Side("test", place.side.config.model_copy(update={"run_script": str(script)}), place.side.host)
    assert text(place.launch()) == f"{shown}\ntraining success\n"


@pytest.mark.parametrize("start", ["nohup bash -c '{}' > $L 2>&1 &", "setsid bash -c '{}' > $L 2>&1 &", "(setsid bash -c '{}' &) > $L 2>&1"])
def test_training_in_the_background_is_waited_for(place, start):
    inner = f"source {place.folder}/lib.sh; sleep 0.5; steps 1 4 7 0.1; finish"
    (place.folder / "lib.sh").write_text(SHELL)
    run = place.launch(start.format(inner) + "\necho started")
    assert seen(run) == [1, 2, 3, 4] and run.exit_code == 0


def test_training_that_we_cannot_see_is_waited_for_while_its_log_grows(place):
    # as `docker run -d` or `sbatch`: no child of the script, no mark
    place.write("true")
    (place.folder / "far.sh").write_text(f"{SHELL}sleep 1; steps 1 8 7 0.6 > {place.log}; finish >> {place.log}\n")
    far = subprocess.Popen(["bash", str(place.folder / "far.sh")])
    pc.SETTLE_SECONDS = 3
    run = place.launch("exit 0")
    far.wait()
    assert seen(run) == list(range(1, 9))


def test_background_training_that_dies_is_not_waited_for(place):
    begin = time.monotonic()
    told = place.fails("(steps 1 2 7 0.1; echo 'RuntimeError: npu lost' >&2; exit 1) &")
    assert "RuntimeError: npu lost" in told and time.monotonic() - begin < 8


def test_failing_script(place):
    place.log.write_text(OLD)
    told = place.fails("for n in $(seq 30); do echo line $n; done; echo 'ValueError: boom'; exit 7")
    assert "test 侧训练已退出（退出码 7）" in told and "training success" in told and f"{place.script}" in told
    assert "line 30" in told and "line 12\n" in told and "line 11\n" not in told and "ValueError: boom" in told


def test_missing_command_and_killed_process_are_explained(place):
    assert "退出码 127，脚本里有找不到的命令" in place.fails("exec no-such-trainer")
    assert re.search("退出码 (-9|137)，被强制结束，可能是内存不足", place.fails("kill -9 $$"))


def test_error_in_the_log_is_shown_rather_than_an_uninformative_launcher(place):
    told = place.fails("steps 1 3 7 > $L; echo 'Traceback (most recent call last): here' >> $L; sleep 0.3; echo see the log; exit 1")
    assert "Traceback" in told and str(place.log) in told


def test_exit_without_the_marker(place):
    place.log.write_text(OLD)
    told = place.fails("steps 1 3 7 >> $L")
    assert "退出码 0" in told and "success_marker" in told and "iteration 3/" in told


def test_old_log_that_is_only_touched_does_not_count(place):
    place.log.write_text(OLD)
    told = place.fails("touch $L; steps 1 3 7")
    assert "退出码 0" in told


def test_silent_script(place):
    assert "没有任何输出" in place.fails("exit 1")


def test_last_lines_of_any_encoding(place):
    (place.logs / "raw").write_bytes("显存不足\n".encode("gbk") + "中文 utf-8\n".encode() + b"\xff\xfe\x81 odd\n"
                                     + b"\x1b[31mred\x1b[0m\r\n" + b"  1%\r 50%\r100%\r\nlast " + b"x" * 1000)
    told = place.fails("cat $D/raw; exit 1")
    assert all(f"    {line}\n" in told for line in ("显存不足", "中文 utf-8", "red", "100%")) and "50%" not in told
    assert "odd" in told and "last xxx" in told and max(map(len, told.split("\n"))) < 400


def test_stall(tmp_path):
    place = Place(tmp_path, stall_minutes=0.02)
    told = place.fails("steps 1 2 7; sleep 98.7601")
    assert "0.02 分钟没有任何新输出" in told and "stall_minutes" in told and "iteration 2/" in told
    assert not processes_with("98.7601")


def test_slow_but_steady_output_is_no_stall(tmp_path):
    assert seen(Place(tmp_path, stall_minutes=0.04).launch("steps 1 7 7 0.6 > $L; finish")) == [1, 2, 3, 4, 5, 6, 7]


def test_timeout(tmp_path):
    place = Place(tmp_path, timeout_minutes=0.02)
    told = place.fails("steps 1 9999 7 0.05 & sleep 98.7602")
    assert "超过 0.02 分钟" in told and "timeout_minutes" in told and not processes_with("98.7602")


def test_marker_then_slow_exit(place):
    run = place.launch("steps 1 2 7; finish; sleep 0.8; echo dump > $D/dump.json; echo really the end")
    assert (place.logs / "dump.json").exists() and text(run).endswith("really the end\n") and not pc.terminal.warnings


def test_marker_and_never_exits(place):
    run = place.launch("steps 1 2 7; finish; sleep 98.7603")
    assert run.ended == "success" and not processes_with("98.7603") and "仍未退出" in pc.terminal.warnings[0]


def test_nonzero_exit_after_the_marker_is_a_warning(place):
    run = place.launch("steps 1 2 7; finish; exit 5")
    assert (run.ended, run.exit_code) == ("success", 5) and "退出码是 5" in pc.terminal.warnings[0]


def test_progress(place):
    told = []
    place.launch("steps 1 20 7 0.05 | tee $L; finish", reader_factory=Reader, progress=lambda *facts: told.append(facts))
    names, steps, losses, seconds = zip(*told)
    assert set(names) == {"test"} and steps[-1] > 10 and losses[-1] == pytest.approx(steps[-1], abs=0.01)
    assert list(seconds) == sorted(seconds) and len(told) > 3


def test_nothing_is_left_when_the_caller_fails(place):
    def broken(*facts):
        raise ZeroDivisionError

    place.write("setsid sleep 98.7604 & sleep 98.7604")
    with pytest.raises(ZeroDivisionError):
        place.launch(progress=broken)
    assert not processes_with("98.7604")


@pytest.mark.parametrize("times", [1, 3])
def test_interrupt_leaves_no_process(tmp_path, times):
    place = Place(tmp_path)
    place.write("nohup sleep 98.7605 >/dev/null 2>&1 &\nsetsid sleep 98.7605 &\n(trap '' INT; sleep 98.7605; true) &\nsteps 1 9999 7 0.1")
    program = tmp_path / "program.py"
    program.write_text(f"""
import json, precision_comparer as pc
config = pc.Config(**json.loads({json.dumps(place.config.model_dump_json())}))
try:
    pc.launch_and_follow([pc.Side("test", config.test, pc.LocalHost())], config, {str(place.out)!r}, "run1")
except KeyboardInterrupt:
    print("interrupted")
""")
    tool = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "PYTHONPATH": str(Path(pc.__file__).parent)})
    deadline = time.monotonic() + 20
    while len(processes_with("98.7605")) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes_with("98.7605")) == 3
    for _ in range(times):
        tool.send_signal(signal.SIGINT)
        time.sleep(0.02)
    assert tool.wait(15) == 0 or times > 1
    assert "interrupted" in tool.stdout.read() or times > 1
    assert not processes_with("98.7605") and not processes_with(str(place.script))


# ---- both sides ----


def both(tmp_path, **debug):
    """Two sides that note when they begin and end, and how long they took together."""
    places = [Place(tmp_path, name, **debug) for name in ("baseline", "test")]
    for place in places:
        place.write(f"echo {place.name} begins >> {tmp_path}/order; steps 1 3 7 0.2; finish; echo {place.name} ends >> {tmp_path}/order")
    return places


@pytest.mark.parametrize("parallel", [None, False])
def test_two_sides_on_one_host_run_one_after_the_other(tmp_path, parallel):
    places = both(tmp_path, parallel_runs=parallel)
    runs = pc.launch_and_follow([place.side for place in places], places[0].config, tmp_path / "report", "run1")
    assert (tmp_path / "order").read_text().split("\n")[:4] == ["baseline begins", "baseline ends", "test begins", "test ends"]
    assert list(runs) == ["baseline", "test"] and [seen(run) for run in runs.values()] == [[1, 2, 3]] * 2


def test_parallel_runs(tmp_path):
    places = both(tmp_path, parallel_runs=True)
    runs = pc.launch_and_follow([place.side for place in places], places[0].config, tmp_path / "report", "run1")
    assert sorted((tmp_path / "order").read_text().split("\n")[:2]) == ["baseline begins", "test begins"]
    assert [seen(run) for run in runs.values()] == [[1, 2, 3]] * 2


def test_when_one_of_two_parallel_runs_fails_the_other_is_stopped(tmp_path):
    places = both(tmp_path, parallel_runs=True)
    places[0].write("sleep 98.7606")
    places[1].write("sleep 0.3; exit 3")
    with pytest.raises(pc.RunError, match="test 侧训练已退出（退出码 3）"):
        pc.launch_and_follow([place.side for place in places], places[0].config, tmp_path / "report", "run1")
    assert not processes_with("98.7606")


# ---- runs that are there already ----


def test_reuse_takes_the_log_with_the_metrics_newest_on_ties(tmp_path):
    place = Place(tmp_path, log="logs")
    for age, (name, contents) in enumerate({"c.log": OLD, "b.log": OLD, "a.log": OLD, "noise.log": "hello\n" * 1000, "x.bin": "PK\0" + OLD * 9}.items()):
        (place.logs / name).write_text(contents)
        os.utime(place.logs / name, (1000 + age, 1000 + age))
    run = pc.reuse([place.side], place.config, place.out)["test"]
    assert run.log_files == [f"{place.logs}/a.log"] and text(run) == OLD and run.ended == "reused" and run.exit_code is None
    assert run.started_at == 1002 and len(run.texts) == 4


def test_reuse_joins_a_rotated_log_and_leaves_an_earlier_run_out(tmp_path):
    place = Place(tmp_path, log="logs")
    lines = OLD.splitlines(keepends=True)
    for age, (name, contents) in enumerate([("train.log.3", OLD), ("train.log.2", "".join(lines[:4])), ("train.log.1", "".join(lines[4:7])), ("train.log", "".join(lines[7:]))]):
        (place.logs / name).write_text(contents if name != "train.log.3" else "training success\n" + OLD[:40] + "training success\n")
        os.utime(place.logs / name, (1000 + age, 1000 + age))
    assert text(pc.reuse([place.side], place.config, place.out)["test"]) == OLD


def test_reuse_of_a_file_a_glob_and_a_name_with_brackets(tmp_path):
    for log in ("logs/train.log", "logs/*.log", "logs/run[1].log"):
        place = Place(tmp_path / str(len(log)), log=log)
        (place.folder / log.replace("*", "x")).write_text(OLD)
        assert text(pc.reuse([place.side], place.config, place.out)["test"]) == OLD


def test_reuse_without_a_log(place):
    for _ in range(2):
        with pytest.raises(pc.RunError, match="test 侧没有可用的日志.*--reuse-runs"):
            pc.reuse([place.side], place.config, place.out)
        place.log.touch()
