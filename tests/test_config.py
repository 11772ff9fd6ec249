"""Configuration, command line and the checks before a launch (section 3)."""

import json
import os
from pathlib import Path

import pytest

import precision_comparer as pc

TEXT = """{
  "baseline": {"mode": "local", "log_path": "base/logs/*.log", "code_path": "base/code", "run_script": "base/run.sh"},
  "test": {"mode": "local", "log_path": "test/train.log", "code_path": "./test/code", "run_script": "~/run.sh",
           "ssh": {"host": "h", "password": "", "key_filename": "keys/id"}},
  "msprobe": {"baseline_data_dir": "dump/base", "test_data_dir": "/dump/test", "parse_code_dir": ["/PanGu/"],
              "compare_output_dir": "out", "pythonpath": "lib:/opt/lib", "command": "bin/msprobe -v"},
  "debug": {"max_iterations": 5, "log_keywords": ["lm loss", null]}
}"""


def write(folder: Path, text: str | bytes | dict, name: str = "config.json") -> Path:
    """A config file with these contents."""
    data = json.dumps(text, ensure_ascii=False) if isinstance(text, dict) else text
    (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)
    return folder / name


def refused(path: Path) -> str:
    """What the user is told about a bad file."""
    with pytest.raises(pc.ConfigError) as caught:
        pc.load_config(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def changed(**keys) -> dict:
    """The sample with some values replaced: `debug__tolerance=1` sets debug.tolerance."""
    data = json.loads(TEXT)
    for name, value in keys.items():
        *sections, key = name.split("__")
        place = data
        for section in sections:
            place = place.setdefault(section, {})
        place[key] = value
    return data


def test_paths_of_local_sides_are_made_absolute(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    config = pc.load_config(write(tmp_path, TEXT))
    assert config.baseline.log_path == f"{tmp_path}/base/logs/*.log"
    assert config.test.code_path == f"{tmp_path}/test/code"
    assert config.test.run_script == "/home/me/run.sh"
    assert config.test.ssh.key_filename == f"{tmp_path}/keys/id"
    assert config.msprobe.baseline_data_dir == f"{tmp_path}/dump/base"
    assert config.msprobe.test_data_dir == "/dump/test"
    assert config.msprobe.pythonpath == f"{tmp_path}/lib:/opt/lib"
    assert config.msprobe.command == f"{tmp_path}/bin/msprobe -v"
    assert config.debug.max_iterations == 5 and config.debug.log_keywords == ["lm loss", None]


def test_config_is_found_relative_to_the_working_folder_and_paths_relative_to_the_config(tmp_path, monkeypatch):
    (tmp_path / "sub dir").mkdir()
    write(tmp_path / "sub dir", TEXT)
    monkeypatch.chdir(tmp_path)
    assert pc.load_config("sub dir/config.json").baseline.code_path == f"{tmp_path}/sub dir/base/code"


def test_command_that_is_a_file_with_spaces_is_one_word(tmp_path):
    (tmp_path / "my env").mkdir()
    (tmp_path / "my env" / "msprobe").touch()
    config = pc.load_config(write(tmp_path, changed(msprobe__command="my env/msprobe")))
    assert config.msprobe.command == f"'{tmp_path}/my env/msprobe'"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_byte_order_mark_is_accepted(tmp_path, encoding):
    data = json.dumps(changed(baseline__code_path="代码"), ensure_ascii=False).encode(encoding)
    assert pc.load_config(write(tmp_path, data)).baseline.code_path == f"{tmp_path}/代码"


def test_files_that_cannot_be_read(tmp_path):
    assert "找不到配置文件" in refused(tmp_path / "none.json")
    assert "文件夹" in refused(tmp_path)
    assert "UTF-8" in refused(write(tmp_path, "{\"中文\": 1}".encode("gbk")))
    assert "文件是空的" in refused(write(tmp_path, " \n"))
    assert "最外层不是对象" in refused(write(tmp_path, "[1]"))
    assert "最外层不是对象" in refused(write(tmp_path, "[" * 100000))


@pytest.mark.parametrize("old, new, line, words", [
    ('"debug": {"max', '"debug": {max', 7, ["双引号", "{max_iterations"]),
    ('"mode": "local", "log_path": "base', '"mode": "local" "log_path": "base', 2, ["缺少逗号"]),
    ('null]}\n', 'null],}\n', 7, ["最后一项后面不能有逗号"]),
    ('"max_iterations": 5', '"max_iterations"：5', 7, ["冒号", "中文标点"]),
    ('"max_iterations": 5', '"max_iterations": five', 7, ["缺少一个值"]),
    ('"./test/code"', '".\\test\\code"', 3, ["反斜杠"]),
    ('"./test/code",', '"./test/code,', 3, []),
])
def test_broken_json_is_shown_with_its_place(tmp_path, old, new, line, words):
    assert TEXT.count(old) == 1
    text = refused(write(tmp_path, TEXT.replace(old, new)))
    assert f"第 {line} 行第 " in text
    assert all(word in text for word in words), text
    assert TEXT.replace(old, new).split("\n")[line - 1].strip()[-20:] in text


def test_duplicate_key_and_infinite_number(tmp_path):
    assert "max_iterations 出现了多次" in refused(write(tmp_path, TEXT.replace('"max_it', '"max_iterations": 3, "max_it')))
    assert "NaN" in refused(write(tmp_path, TEXT.replace("5,", "NaN,")))
    assert "不是有限的数字" in refused(write(tmp_path, TEXT.replace('"max_iterations": 5', '"tolerance": 1e999')))


@pytest.mark.parametrize("change, words", [
    ({"debug__tolerence": 1}, ["未知的配置项 debug.tolerence", "是不是想写 tolerance"]),
    ({"tolerance": 1}, ["未知的配置项 tolerance", "应写在 debug 里"]),
    ({"baseline__host": "x"}, ["baseline.host", "应写在 baseline.ssh 里"]),
    ({"debug__zzz": 1}, ["debug.zzz", "可用的键有", "stall_minutes"]),
    ({"debug__tolerance": "abc"}, ["debug.tolerance", '"abc"', "应为数字", "0.001"]),
    ({"debug__max_iterations": 2.5}, ["debug.max_iterations", "2.5", "整数"]),
    ({"debug__max_iterations": 0}, ["debug.max_iterations", "0", "不能小于 1"]),
    ({"debug__stall_minutes": 0}, ["debug.stall_minutes", "必须大于 0"]),
    ({"debug__log_keywords": []}, ["debug.log_keywords", "至少要有 1 项"]),
    ({"debug__log_keywords": ["a", "b", "c"]}, ["debug.log_keywords", "最多只能有 2 项"]),
    ({"debug__log_keywords": ["a", 3]}, ["debug.log_keywords[1]", "3", "字符串"]),
    ({"debug__log_keywords": "loss"}, ["debug.log_keywords", "列表"]),
    ({"debug__log_keywords": [None]}, ["debug.log_keywords[0]", "是空的"]),
    ({"debug__log_keywords": ["/loss: (.*/"]}, ["debug.log_keywords[0]", "正则"]),
    ({"debug__log_keywords": ["/loss/"]}, ["debug.log_keywords[0]", "括号"]),
    ({"debug__success_marker": " "}, ["debug.success_marker", "是空的"]),
    ({"debug__tolerance_mode": "rel"}, ["debug.tolerance_mode", "'absolute' 或 'relative'"]),
    ({"debug__parallel_runs": "maybe"}, ["debug.parallel_runs", "true 或 false"]),
    ({"msprobe__parse_code_dir": 5}, ["msprobe.parse_code_dir", "5", "字符串列表"]),
    ({"msprobe__parse_code_dir": [5]}, ["msprobe.parse_code_dir"]),
    ({"msprobe": [1]}, ["msprobe", "对象"]),
    ({"baseline": "x"}, ["baseline", "对象"]),
    ({"baseline__log_path": ""}, ["baseline.log_path", "是空的"]),
    ({"baseline__mode": "remote"}, ["baseline.mode", "baseline.ssh", "不是绝对路径", "baseline.code_path", "msprobe.baseline_data_dir"]),
    ({"test__ssh__port": 70000}, ["test.ssh.port", "不能大于 65535"]),
    ({"deepseek__api_key": "sk-very-secret"}, ["deepseek.api_key", "DEEPSEEK_API_KEY"]),
])
def test_wrong_values_are_named_with_the_remedy(tmp_path, change, words):
    text = refused(write(tmp_path, changed(**change)))
    assert all(word in text for word in words), text
    assert "sk-very-secret" not in text


def test_missing_keys_and_several_errors_are_listed_in_order(tmp_path):
    data = changed(debug__tolerance="x", debug__rank=-1)
    del data["baseline"]["log_path"], data["test"]
    text = refused(write(tmp_path, data))
    assert "有 4 处错误" in text
    places = [text.index(word) for word in ("1. 缺少必填项 baseline.log_path（训练日志", "2. 缺少必填项 test", "3. debug.tolerance", "4. debug.rank")]
    assert places == sorted(places)


def test_remote_side_with_its_ssh_section_is_accepted(tmp_path, monkeypatch):
    remote = {"mode": "remote", "log_path": "/l", "code_path": "/c", "run_script": "/r", "ssh": {"host": "h", "password_env": "PC_PASS"}}
    data = changed(test=remote)
    assert "PC_PASS" in refused(write(tmp_path, data))
    monkeypatch.setenv("PC_PASS", "hush-hush")
    monkeypatch.setattr(pc.terminal, "secrets", set())
    assert pc.load_config(write(tmp_path, data)).test.code_path == "/c"
    assert "hush-hush" in pc.terminal.secrets


def test_the_stand_in_for_a_key_masks_no_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(pc.terminal, "secrets", set())
    monkeypatch.setenv("DEEPSEEK_API_KEY", "x")
    pc.load_config(write(tmp_path, changed()))
    assert pc.terminal.secrets == set()


def test_secrets_are_masked_everywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(pc.terminal, "secrets", set())
    monkeypatch.setenv("DEEPSEEK_API_KEY", " sk-123456\n")
    pc.load_config(write(tmp_path, changed(test__ssh={"host": "h", "password": "pa,ss w\"ord"}, deepseek={"base_url": "http://me:hunter22@host/v1"})))
    assert pc.terminal.secrets == {"pa,ss w\"ord", "sk-123456", "hunter22"}
    assert "hunter2" not in refused(write(tmp_path, changed(test__ssh={"host": "h", "password": ["hunter2"]})))
    for text in ('{"password": "hunter2" "a": 1}', '{"password": "hunter2', '{"password":\n  "hunter2" x}', '{“password”：“hunter2”}'):
        assert "hunter2" not in refused(write(tmp_path, text))


def parse(*words: str):
    """The command line made of these words."""
    return pc.parse_args(list(words))


def test_options_as_dashes_and_as_words_are_the_same():
    expected = dict(config="c.json", max_iterations="20", tolerance="0.0005", output_dir="out", reuse_runs=True, compare_only=True,
                    restore=False, check=True, no_llm=True)
    dashed = parse("--config", "c.json", "--max-iterations", "20", "--tolerance=0.0005", "--output-dir", "out", "--reuse-runs",
                   "--compare-only", "--check", "--no-llm")
    words = parse("config=c.json", "max_iterations=20", "tolerance=0.0005", "output-dir=out", "reuse_runs=true", "compare-only=1",
                  "check=yes", "no_llm=true", "restore=false")
    assert vars(dashed) == vars(words) == expected
    assert vars(parse())["config"] == "config.json" and parse("--output-dir", "a=b").output_dir == "a=b"


@pytest.mark.parametrize("words, told", [
    (["--tolerence", "1"], ["--tolerence", "--tolerance"]),
    (["max_iteration=3"], ["max_iteration=3", "--max-iterations"]),
    (["custom.json"], ["--config custom.json"]),
    (["rank=1"], ["debug.rank"]),
    (["tolerance"], ["tolerance", "--tolerance"]),
    (["--config"], ["--config", "缺少值"]),
    (["--config", "--check"], ["--config", "缺少值"]),
    (["tolerance="], ["--tolerance", "缺少值"]),
    (["check=maybe"], ["--check", "maybe", "true 或 false"]),
    (["--qqqqq"], ["--qqqqq", "--help"]),
])
def test_usage_errors(words, told):
    with pytest.raises(pc.ConfigError) as caught:
        parse(*words)
    assert all(word in str(caught.value) for word in told), str(caught.value)


def test_help_and_version_end_with_zero(capsys):
    for word in ("--help", "-h", "--version"):
        with pytest.raises(SystemExit) as caught:
            parse(word)
        assert not caught.value.code
    shown = capsys.readouterr().out
    assert "用法: python precision_comparer.py" in shown and pc.__version__ in shown and "usage" not in shown
    assert all(f"--{name}" in shown for name in "config max-iterations tolerance output-dir reuse-runs compare-only restore check no-llm".split())


def test_arguments_override_the_config_and_are_validated(tmp_path):
    config = pc.load_config(write(tmp_path, TEXT))
    changed_config = pc.apply_args(config, parse("max_iterations=20", "tolerance=5e-4", "--no-llm"))
    assert (changed_config.debug.max_iterations, changed_config.debug.tolerance, changed_config.deepseek.enabled) == (20, 0.0005, False)
    assert pc.apply_args(config, parse()) == config
    for word, told in (("max_iterations=0", "不能小于 1"), ("tolerance=abc", "数字"), ("tolerance=nan", "debug.tolerance"), ("tolerance=inf", "有限")):
        with pytest.raises(pc.ConfigError) as caught:
            pc.apply_args(config, parse(word))
        assert told in str(caught.value) and "命令行" in str(caught.value)


@pytest.fixture
def setup(tmp_path):
    """A configuration whose check finds nothing, and its sides."""
    data = {}
    for name in ("baseline", "test"):
        code = tmp_path / name / "code"
        code.mkdir(parents=True)
        (code / "train.py").write_text("print(1)\n")
        (tmp_path / name / "run.sh").write_text("#!/bin/bash\npython train.py\n")
        data[name] = {"log_path": f"{name}/logs/train.log", "code_path": f"{name}/code", "run_script": f"{name}/run.sh"}
    config = pc.load_config(write(tmp_path, data))
    return config, [pc.Side(name, getattr(config, name), pc.LocalHost()) for name in ("baseline", "test")]


def found(setup) -> list[tuple[str, str]]:
    """What check_setup says, the text and the remedy in one."""
    return [(problem.level, f"{problem.text} {problem.remedy}") for problem in pc.check_setup(*setup)]


def test_good_setup_has_no_problem(setup):
    assert found(setup) == []


def test_code_path_problems(setup, tmp_path):
    code = tmp_path / "test" / "code"
    (code / "train.py").unlink()
    assert [level for level, text in found(setup) if "没有 .py 文件" in text] == ["error"]
    code.rmdir()
    assert [level for level, text in found(setup) if "code_path 不存在" in text] == ["error"]
    code.write_text("")
    assert [level for level, text in found(setup) if "不是文件夹" in text] == ["error"]


def test_files_that_do_not_parse_are_warnings(setup, tmp_path):
    code = tmp_path / "test" / "code" / "pack[1]"
    code.mkdir()
    for number in range(7):
        (code / f"bad{number}.py").write_text("x = 1\n\ndef broken(:\n    pass\n")
    (code / "gbk.py").write_bytes("# -*- coding: gbk -*-\nname = '中文'\n".encode("gbk"))
    (code / "escape.py").write_text("'\\d'\n")
    problems = found(setup)
    assert [level for level, _ in problems] == ["warning"] * 6
    assert f"{code}/bad0.py 第 3 行有语法错误" in problems[0][1] and "其他" in problems[5][1]


def test_run_script_problems(setup, tmp_path):
    script = tmp_path / "test" / "run.sh"
    script.write_text("#!/no/such/shell\n")
    assert found(setup)[0][0] == "error" and "/no/such/shell" in found(setup)[0][1]
    script.write_bytes(b"#!/bin/bash\r\necho\r\n")
    assert "CRLF" in found(setup)[0][1] and "sed -i" in found(setup)[0][1]
    script.write_text("")
    assert "空文件" in found(setup)[0][1]
    script.write_text("python train.py\n")
    assert found(setup) == []
    script.unlink()
    (tmp_path / "test" / "code" / "run.sh").write_text("")
    assert "不存在" in found(setup)[0][1] and f"是不是想写 {tmp_path}/test/code/run.sh" in found(setup)[0][1]


def test_script_without_shebang_or_execute_bit_is_a_warning(setup, tmp_path):
    config, sides = setup
    (tmp_path / "launch").write_text("python train.py\n")
    sides[1] = pc.Side("test", config.test.model_copy(update={"run_script": f"{tmp_path}/launch"}), sides[1].host)
    assert [level for level, text in found((config, sides)) if "bash" in text] == ["warning"]


@pytest.mark.parametrize("log_path, level, word", [
    ("test/run.sh/train.log", "error", "是文件，不是文件夹"), ("a/b/c/train.log", "warning", "还不存在"), ("new/train.log", None, ""),
    ("new/**/*.log", None, ""), ("a/b/c/*.log", "warning", "还不存在"), ("test", None, ""),
])
def test_place_of_the_log(setup, tmp_path, log_path, level, word):
    config, sides = setup
    sides[1] = pc.Side("test", config.test.model_copy(update={"log_path": f"{tmp_path}/{log_path}"}), sides[1].host)
    problems = found((config, sides))
    assert [item[0] for item in problems] == ([level] if level else []) and all(word in item[1] for item in problems)


def test_twice_the_same_training_is_a_warning(setup):
    config, sides = setup
    sides[1] = pc.Side("test", config.baseline, sides[1].host)
    assert [level for level, text in found((config, sides)) if "相同" in text] == ["warning", "warning"]


def test_missing_msprobe_is_a_warning(setup):
    config, sides = setup
    dirs = config.msprobe.model_copy(update={"baseline_data_dir": "/a", "test_data_dir": "/b", "command": "no-such-msprobe compare"})
    problems = found((config.model_copy(update={"msprobe": dirs}), sides))
    assert [level for level, _ in problems] == ["warning"] and "no-such-msprobe" in problems[0][1] and "pip install" in problems[0][1]
    one = dirs.model_copy(update={"test_data_dir": ""})
    assert "只填了一个" in found((config.model_copy(update={"msprobe": one}), sides))[0][1]


def test_every_key_of_the_shipped_config_is_accepted():
    shipped = Path(pc.__file__).with_name("config.json")
    if shipped.exists():
        config = pc.load_config(shipped)
        assert os.path.isabs(config.baseline.code_path) and os.path.isabs(config.msprobe.compare_output_dir)
