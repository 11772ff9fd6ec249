"""report.html: what it shows for every verdict, that nothing in it is executed, and what a browser makes of it."""

import json
import math
import re
import shutil
import time

import pytest
from browser import CHROMIUM, Browser

import precision_comparer as pc

HOSTILE = ["<script>alert(1)</script>", "{{ 7 * 7 }}", "</script><script>throw 1</script>", "{% raw %}", "\"'><img src=x onerror=alert(1)>", "\u2028&amp;", "x" * 400]


def place(file: str, line: int, code: str) -> pc.PlaceReport:
    return pc.PlaceReport(file=file, function="Model.forward", line=line, end_line=line, code=code)


def location(kind=pc.Kind.CODE_DIFFERS, text: str = "freqs") -> pc.LocationReport:
    """A place with the code around it and one value of each sort."""
    test, baseline = place(f"model/{text}.py", 3, "emb = freqs.repeat(2)"), place("model/rope.py", 2, "emb = torch.cat((freqs, freqs))")
    ours, theirs = ["import torch", f"# {text}", test.code, "return emb"], ["import torch", baseline.code, "return emb"]
    test.around, baseline.around = pc.code_around(test, baseline, ours, theirs), pc.code_around(baseline, test, theirs, ours)
    rows = [("in", text, "float32[2] sum=1", "float32[2] sum=1", True, 0.0), ("out", "emb", "float32[2] sum=1 norm=2.5", "float32[2] sum=1 norm=3.5", False, 0.4),
            ("out", "nothing", 1e308, "nan", False, math.inf)]
    evidence = [pc.EvidenceReport(phase=p, name=n, baseline=b, test=t, agree=a, error=e) for p, n, b, t, a, e in rows]
    stack = [pc.StackFrame(file=test.file, line=3, function="forward", code=text)]
    return pc.LocationReport(kind=kind, test=test, baseline=baseline, evidence=evidence, call_stack=stack, explanation=f"输入 {text} 一致, 输出 emb 不一致")


def report(verdict: str = "located", text: str = "freqs", **more) -> pc.Report:
    """A report with all its parts."""
    metric = {"keyword": text, "steps_compared": 4, "mean_abs_diff": 0.1, "max_abs_diff": "inf", "mean_rel_diff": 1e300, "max_rel_diff": "nan", "first_step_over_tolerance": 2}
    series = {side: {"loss": [[1, 2.5], [2, value], [3, "nan"], [4, 1e308]], "grad_norm": [[1, 1.0]]} for side, value in (("baseline", 2.0), ("test", 2.25))}
    first = pc.MismatchReport(row=3, npu_name=text, bench_name=None, reason=text, stack=[])
    rows = [pc.RowReport(number=n, name=f"Tensor.{text}.{n}", test="float32[2] max=1", baseline="float32[2] max=2", difference=d, reason="") for n, d in ((2, 0.0), (3, math.inf), (4, math.nan))]
    details = pc.Details(config=text, tolerance=1e-3, versions={"Python": text}, rows=rows, errors=[(0.0, text, False), (0.4, text, True), (math.inf, text, False), (math.nan, text, False)])
    found = pc.Report(
        verdict=verdict, metrics={"loss": metric, "unmatched_steps": {}}, series=series, msprobe=pc.MsprobeReport(result_file=text, rows=9, first_mismatch=first),
        location=location(text=text) if verdict == "located" else None, candidates=[location(text=text)] if verdict != "consistent" else [],
        rounds=[pc.RoundReport(injected_files=[text], sites=5, records=77, records_equal_before=61, conclusion=text)], reruns=1, not_traced=[text], warnings=[text], details=details)
    return found.model_copy(update=more)


def body(html: str) -> str:
    """The page without plotly."""
    return html.replace(pc.get_plotlyjs(), "")


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_from_the_users_files_becomes_markup(text):
    page = body(pc.render_html(report(text=text)))
    assert "49" not in re.findall(r"输入 (.*?) 一致", page) and page.count("<script>") == 2 and page.count("</script>") == 2 and "<img" not in page
    data = json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1])
    assert data["errors"][1] == [0.4, "0.4", text, True]


def test_numbers_that_json_and_charts_cannot_hold():
    page = body(pc.render_html(report()))
    data = json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1], parse_constant=lambda name: pytest.fail(name))
    assert [point[:2] for point in data["errors"]] == [[1e-17, "0"], [0.4, "0.4"], [10.0, "∞"], [10.0, "∞"]]
    curve = data["curves"][0]
    assert curve["difference"] == [0.0, 0.25, None, 0.0] and curve["tolerance"] == [0.001] * 4 and curve["first"] == 2


def test_words_that_differ_are_marked_and_the_statement_too():
    page = body(pc.render_html(report()))
    guilty = re.findall(r'<div class="guilty"><i>(\d+)</i><span[^>]*>(.*?)</span>', page)
    assert guilty[0] == ("3", "emb = freqs<mark>.repeat(2</mark>)")
    assert guilty[1] == ("2", "emb = <mark>torch.cat((</mark>freqs<mark>, freqs</mark>)<mark>)</mark>")
    assert "norm=<mark>3.5</mark>" in page and "norm=<mark>2.5</mark>" in page and "import torch</span>" in page


def failed(reason: str, **more) -> pc.Report:
    """A report of a run that ended early."""
    return pc.Report(**{"verdict": "not_located", "metrics": {}, "series": {}} | more, details=pc.Details(failure=reason, stopped_at="启动训练", config="{}"))


VERDICTS = {
    "located": (report(), ["第一处不一致在 test 的 model/freqs.py:3", "<b>61</b>条记录", "次重跑", "没能观察的地方", "其他候选"]),
    "not_located": (report("not_located"), ["精度不一致，但没有定位到具体的代码行", "<b>61</b>条记录一致", "<h2>候选</h2>", "候选按可能性排列", "哪些没能观察"]),
    "consistent": (report("consistent", rounds=[], not_traced=[], msprobe=None, warnings=[], details=pc.Details(tolerance=1e-3)), ["两侧精度一致：比较了 4 步", "0.001"]),
    "opinion": (report(opinion="频率的排列不同"), ["DeepSeek 的看法", "推测，不是证据", "频率的排列不同"]),
    "compared only": (report("not_located", rounds=[], reruns=0, candidates=[], not_traced=["--compare-only: 没有插入打印"], warnings=[]), ["精度不一致；只做了对比，没有定位", "去掉 --compare-only 再运行"]),
    "nothing differs": (report("not_located", candidates=[], not_traced=[]), ["所有打印的值都一致；差异可能来自没有打印的代码"]),
    "nothing printed": (report("not_located", candidates=[], rounds=[], not_traced=[]), ["带打印的重跑没有成功，没有可以比较的打印。"]),
    "failed early": (failed("test 侧训练已退出（退出码 7）。请先单独运行\n最后的输出"), ["<h1>没有完成：test 侧训练已退出（退出码 7）</h1>", "停在“启动训练”，那时还没有可以对比的内容", "<pre>请先单独运行\n最后的输出</pre>"]),
    "refused": (failed("有 2 处问题:\n  1. 没有代码\n  2. 没有脚本"), ["<h1>没有完成：有 2 处问题</h1>", "<pre>  1. 没有代码\n  2. 没有脚本</pre>"]),
    "interrupted": (failed("被中断", verdict="not_located", metrics=report().metrics, series=report().series, warnings=["磁盘", "定位没有完成: 被中断"]), ["<h1>没有完成：被中断</h1>", "以下是那之前已经知道的内容", "<li>磁盘</li>"]),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_every_verdict_has_its_page(name):
    found, says = VERDICTS[name]
    page = body(pc.render_html(found))
    assert [word for word in says if word not in page] == []
    assert "http" not in re.sub(r"http-equiv", "", page)


def test_secrets_are_in_neither_report(tmp_path, monkeypatch):
    monkeypatch.setattr(pc.terminal, "secrets", {"hunter 2"})
    pc.write_report(report(text="the hunter 2 key"), tmp_path)
    assert all("hunter 2" not in path.read_text(encoding="utf-8") for path in tmp_path.iterdir()) and "the ****** key" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("secret", ['pass"word', "back\\slash", "密码 x", "25", "1", "null", "</script>"])
def test_every_password_is_masked_and_both_reports_stay_readable(secret, tmp_path, monkeypatch):
    expected = report(text="the ****** key").model_dump(mode="json")
    monkeypatch.setattr(pc.terminal, "secrets", {secret})
    pc.write_report(report(text=f"the {secret} key"), tmp_path)
    page = body((tmp_path / "report.html").read_text(encoding="utf-8"))
    data = json.loads(re.search(r"^const data = (.*);$", page, re.MULTILINE)[1])
    assert data["errors"][1] == [0.4, "0.4", "the ****** key", True] and data["curves"][0]["test"][1] == 2.25
    written = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert written["not_traced"] == expected["not_traced"] and written["metrics"] == expected["metrics"] and written["series"]["test"] == expected["series"]["test"]


def test_every_line_of_a_value_is_shown_and_compared():
    assert pc.value_diff("a\nb", "a\nc") == [("a↵", False), ("b", True)]
    assert pc.value_diff("", "a") == [] and pc.value_diff(True, False) == [("True", True)]


def test_files_rewritten_as_a_whole_take_no_time():
    ours, theirs = ([f"    {name}{n} = self.f{n % 7}({name}, b, c={n % 9})" for n in range(4000)] for name in "xy")
    started = time.monotonic()
    lines = pc.code_around(place("a.py", 2001, ours[2000]), place("a.py", 2001, theirs[2000]), ours, theirs)
    assert time.monotonic() - started < 3  # minutes, were all words compared
    assert [line.number for line in lines if line.is_guilty] == [2001] and len(lines) == 9
    assert [line.text for line in lines] == ours[1996:2005]
    assert [text for text, is_changed in lines[4].parts if is_changed] == ["x2000", "x"]


def test_the_config_is_shown_without_passwords():
    sides = {side: {"mode": "local", "log_path": "/l", "code_path": "/c", "run_script": "/r", "ssh": {"host": "h", "password": "open sesame"}} for side in pc.SIDE_NAMES}
    shown = json.loads(pc.run_details(pc.Config(**sides)).config)
    assert shown["test"]["ssh"]["password"] == "******" and shown["test"]["ssh"]["host"] == "h" and shown["debug"]["tolerance"] == 0.001


def test_versions_that_differ_are_marked():
    found = report()
    found.details.versions = {"本工具": "PrecisionComparer 1", "baseline 的训练": "Python 3.10.1, torch 2.1.0", "test 的训练": "Python 3.10.1, torch 2.1.0, torch_npu 2.1.0.post8"}
    page = body(pc.render_html(found))
    assert "<li>baseline 的训练：Python 3.10.1, torch 2.1.0</li>" in page and "<li>本工具：PrecisionComparer 1</li>" in page
    assert "<li>test 的训练：Python 3.10.1, torch 2.1.0<mark>, torch_npu 2.1.0.post8</mark></li>" in page


def test_the_failure_is_said_once():
    found = VERDICTS["interrupted"][0]
    assert body(pc.render_html(found)).count("被中断") == 2  # title and headline


# --- In a browser ---

OVERFLOWS = """[...document.querySelectorAll("main *")].filter(box => !box.closest(".scroll, .chart") && box.getClientRects().length
    && box.scrollWidth > box.clientWidth + 1 && getComputedStyle(box).display !== "inline").map(box => box.tagName + " " + box.textContent.slice(0, 40))"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert shutil.which(CHROMIUM), "这些测试需要 Chromium: apt-get install chromium"
    found = Browser(tmp_path_factory.mktemp("chromium"))
    yield found
    found.close()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)])
@pytest.mark.parametrize("name", ["located", "not_located", "interrupted", "failed early"])
def test_the_page_in_a_browser(browser, tmp_path, name, size):
    found = VERDICTS[name][0]
    pc.write_report(found, tmp_path)
    assert (tmp_path / "report.json").exists() == bool(found.metrics)
    browser.problems.clear()
    browser.open(tmp_path / "report.html", *size)
    assert browser.problems == []
    charts = len([one for one in ("loss", "grad_norm") if one in found.metrics]) + bool(found.details.errors)
    assert browser.value("document.querySelectorAll('.chart .main-svg:first-child').length") >= charts
    assert browser.value("document.querySelectorAll('.chart .scatterlayer .trace').length") >= charts
    assert browser.value("document.documentElement.scrollWidth") <= size[0] and browser.value(OVERFLOWS) == []
    ticks = browser.value("[...document.querySelectorAll('.curve')].map(box => [...box.querySelectorAll('.xtick text')].map(tick => tick.textContent))")
    assert all(len(set(labels)) == len(labels) > 0 for labels in ticks)  # no half steps
    assert browser.value("document.querySelector('h1').getBoundingClientRect().bottom") < 300
    if name == "located":  # the first screen has the code, and on a large one the evidence, too
        last = "td.bad" if size[0] > 1000 else ".guilty"
        assert browser.value(f"document.querySelector('{last}').getBoundingClientRect().bottom") <= size[1]


def test_hostile_text_runs_nothing_in_a_browser(browser, tmp_path):
    pc.write_report(report(text=" ".join(HOSTILE)), tmp_path)
    browser.problems.clear()
    browser.open(tmp_path / "report.html", 390, 844)
    assert browser.problems == [] and browser.value("document.querySelectorAll('img, script').length") == 2
    assert browser.value("document.documentElement.scrollWidth") <= 390
    assert browser.value("[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth).length") == 0


def test_tables_sort_and_charts_follow_the_colour_scheme(browser, tmp_path):
    pc.write_report(report(), tmp_path)
    browser.open(tmp_path / "report.html", 1280, 800, "dark")
    rows = "[...document.querySelector('tr.first').closest('tbody').rows].map(row => row.cells[0].textContent)"
    click = "document.querySelector('tr.first').closest('table').tHead.rows[0].cells[0].click()"
    assert browser.value(rows) == ["2", "3", "4"]
    browser.value(click), browser.value(click)
    assert browser.value(rows) == ["4", "3", "2"]
    dark = browser.value("getComputedStyle(document.body).backgroundColor + document.querySelector('.xtick text').style.fill")
    browser.open(tmp_path / "report.html", 1280, 800, "light")
    assert browser.value("getComputedStyle(document.body).backgroundColor + document.querySelector('.xtick text').style.fill") != dark
