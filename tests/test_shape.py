"""What the repository promises about itself: the script's outline, the two lists of dependencies, the README, the layout."""

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import precision_comparer as pc

ROOT = Path(pc.__file__).resolve().parent
TEXT = (ROOT / "precision_comparer.py").read_text(encoding="utf-8")
TREE = ast.parse(TEXT)
README = (ROOT / "README.md").read_text(encoding="utf-8")
FUNCTIONS = [node for node in ast.walk(TREE) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
LONGEST = 60


def tracked_files() -> list[str]:
    """Every file of the repository that git knows or would add; without git, every file that is no product of a run."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True)
    if not listed.returncode and listed.stdout:
        return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]
    made = {"__pycache__", "precision_report", "logs", "dump", ".pytest_cache", ".venv", ".git"}
    return [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file() and not made & set(path.relative_to(ROOT).parts)]


def test_sections_of_the_docstring_are_the_banners():
    rule = "# " + "=" * 118
    banners = re.findall(rf"^{rule}\n# (\d+\. .+)\n{rule}$", TEXT, re.MULTILINE)
    assert banners == re.findall(r"^    (\d+\. .+)$", ast.get_docstring(TREE, clean=False), re.MULTILINE)
    assert [int(title.split(".")[0]) for title in banners] == list(range(1, len(banners) + 1)) and len(banners) > 10


def test_no_function_is_longer_than_a_screen():
    assert [f"{node.name}: {size}" for node in FUNCTIONS if (size := node.end_lineno - node.lineno + 1) > LONGEST] == []


def test_every_public_definition_has_a_docstring():
    bare, groups = [], [TREE.body]
    while groups:
        for node in groups.pop():
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
                bare += [] if ast.get_docstring(node) else [f"{node.name} (line {node.lineno})"]
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                groups.append(node.body)
    assert bare == []


def test_both_lists_of_dependencies_are_equal():
    block = re.search(r"^# /// script\n(.*?)^# ///$", TEXT, re.MULTILINE | re.DOTALL)[1]
    inline = re.findall(r'^#     "(.+)",$', block, re.MULTILINE)
    required = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert inline == required and required
    names = {re.split(r"[<>=]", line)[0].replace("-", "_") for line in required}
    imported = {alias.name.split(".")[0] for node in TREE.body if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module.split(".")[0] for node in TREE.body if isinstance(node, ast.ImportFrom)}
    assert imported <= set(sys.stdlib_module_names) | names  # torch and msprobe are needed by the trainings alone


def option_names() -> list[str]:
    """The long form of every option."""
    return ["--" + dest.replace("_", "-") for dest in pc.build_parser()[1]]


def table_rows(pattern: str) -> list[str]:
    """The table rows of the README whose first cell matches."""
    return [line for line in README.splitlines() if line.startswith("|") and re.search(pattern, line.split("|")[1])]


@pytest.mark.parametrize("option", option_names())
def test_every_option_is_in_the_readme(option):
    assert len(table_rows(f"`{option}[ `]")) == 1


def leaf_keys() -> dict[str, object]:
    """Every key that holds a value, with its default."""
    keys = pc.config_keys()
    return {key: default for key, default in keys.items() if not any(other.startswith(key + ".") for other in keys)}


@pytest.mark.parametrize("key", leaf_keys())
def test_every_config_key_is_in_the_readme_with_its_default(key):
    rows = table_rows(re.escape(f"`{key}`"))
    assert len(rows) == 1
    default = leaf_keys()[key]
    is_required = key.split(".")[-1] in pc.SIDE_PATHS or type(default).__name__ == "PydanticUndefinedType"
    assert is_required or default in (None, "") or f"`{json.dumps(default, ensure_ascii=False)}`" in rows[0]


def test_the_smallest_config_of_the_readme_is_valid():
    text = re.search(r'^       (\{\n.*?^       \})$', README, re.MULTILINE | re.DOTALL)[1]
    assert pc.validate_config(pc.parse_json(text, Path("README.md")), "README").debug.log_keywords == ["lm loss", "grad norm"]


def test_messages_of_the_troubleshooting_table_are_those_of_the_script():
    table = README.split("## 常见问题")[1].split("\n## ")[0]
    messages = [message for row in table.splitlines() for message in re.findall(r"`([^`]+)`", row.split("|")[1] if row.startswith("| `") else "")]
    runs = {run for message in messages for run in re.findall(r"[\u4e00-\u9fff]{2,}", message)}
    said = {run for run in runs if any(run[:at] in TEXT and run[at:] in TEXT for at in range(1, len(run) + 1))}
    assert len(runs) > 30 and runs - said == set()


def test_the_skill_has_a_valid_head():
    head, text = re.fullmatch(r"---\n(.*?)\n---\n(.*)", (ROOT / ".claude/skills/precision-comparer/SKILL.md").read_text(encoding="utf-8"), re.DOTALL).groups()
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert set(fields) == {"name", "description", "argument-hint"} and fields["name"] == "precision-comparer" and len(fields["description"]) <= 1024
    assert fields["argument-hint"].startswith('"') and ": " not in fields["description"] and "$ARGUMENTS" in text and len(text.splitlines()) < 500
    assert [word for word in re.findall(r"\b([a-z_]+)=", text + fields["argument-hint"]) if word not in {"key", *pc.build_parser()[1]}] == []


def test_every_key_of_the_report_is_in_the_readme():
    models = [pc.Report, pc.MsprobeReport, pc.MismatchReport, pc.LocationReport, pc.PlaceReport, pc.EvidenceReport, pc.StackFrame, pc.RoundReport]
    keys = {name for model in models for name, found in model.model_fields.items() if not found.exclude} | {"keyword", "steps_compared", "first_step_over_tolerance", "unmatched_steps"}
    assert [name for name in sorted(keys) if f"`{name}`" not in README] == []
    assert [kind.value for kind in pc.Kind if f"`{kind.value}`" not in README] == []


def test_top_level_holds_what_the_user_asked_for():
    top = {name.split("/")[0] for name in tracked_files()}
    assert {name for name in top if not name.startswith(".")} == {
        "precision_comparer.py", "config.json", "requirements.txt", "README.md", "tests", "examples",
    }  # fmt: skip


def test_no_file_knows_the_machine_it_was_written_on():
    here = {str(ROOT) + "/", os.path.expanduser("~") + "/", sys.prefix + "/", tempfile.gettempdir() + "/"} - {"//", "/usr/"}
    found = []
    for name in tracked_files():
        text = (ROOT / name).read_bytes().decode("utf-8", "replace")
        found += [f"{name}: {path}" for path in here if path in text]
    assert found == []


def test_nothing_is_left_open():
    words = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, r"pytest\.mark\.(skip|xfail)\b"]))
    files = [name for name in tracked_files() if name.endswith((".py", ".md", ".sh"))]
    assert [name for name in files if words.search((ROOT / name).read_text(encoding="utf-8", errors="replace"))] == []
