"""What the tests of injection share: put prints into a text, run it with the shipped runtime, read what was printed."""

import json
import os
import secrets
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import precision_comparer as pc

TAG = "_pc0a1b2c"
SETTINGS = {"rank": None, "window": [0, 1], "init": True, "grads": True, "per_site": 999, "total": 99999, "soft": 99999, "steps_by": "update"}


def inject(text, encoding="utf-8", tag=TAG, named=None):
    """(source, injected bytes, sites, why any were left out) of a text or of bytes; `named`: head of a statement -> names that DeepSeek gives."""
    source = pc.decode_source(text if isinstance(text, bytes) else text.encode(encoding))
    funcs = pc.parse_func_for_code("m.py", source.text)
    tree = types.SimpleNamespace(funcs={"m.py": funcs}, load=lambda file: funcs)
    for head, names in (named or {}).items():
        (stmt,) = [s for f in funcs for s in f.statements if s.text.startswith(head)]
        pc.propose(pc.proposed_paths({"inputs": names}, stmt, tree)[0], stmt, tree)
    data, kept, reason = pc.inject_source(source, funcs, pc.plan_sites(funcs), tag, "runtime.py", "")
    return source, data, kept, reason


def equip(folder: Path, text, tag=TAG, name="m.py", named=None, **settings):
    """Write the injected text and what its prints need into `folder`; returns the sites by number."""
    _, data, kept, reason = inject(text, tag=tag, named=named)
    assert data is not None and not reason
    (folder / name).write_bytes(data)
    (folder / "runtime.py").write_text(pc.runtime_source())
    table = {"settings": {**SETTINGS, "tag": tag, **settings}, "sites": {s.id: pc._site_row(s) for s in kept}}
    (folder / "sites.json").write_text(json.dumps(table))
    return {site.id: site for site in kept}


def new_runtime(**settings):
    """A runtime of the shipped text, without sites."""
    names = {}
    exec(pc.runtime_source().replace(pc.RUNTIME_TAIL, ""), names)
    return names["ProbeRuntime"]({**SETTINGS, "tag": TAG, **settings}, {})


@dataclass
class Printed:
    """What a run of injected code left: the names of its module, its output and the records in it."""

    names: dict
    out: str
    records: list
    errors: list
    sites: dict

    def values(self, name, kinds="iotehry"):
        """Every printed value of one name, in order."""
        return [r.values[name] for r in self.records if r.kind in kinds and name in r.values]


def printed(out, tag, names=None, sites=None):
    """Read a run's output; torn lines, lines that a pipe could tear, and failures inside the prints are none of them allowed."""
    found = pc.parse_records(out.encode().split(b"\n"), tag)
    assert found.torn == 0 and max(map(len, out.split("\n"))) < 4096
    return Printed(names or {}, out, found.records, found.errors, sites or {})


def run_here(folder: Path, capsys, text, run_name="m", **settings):
    """Run the injected text in this process, under a tag of its own: hooks of earlier runs stay with torch."""
    tag = f"_pc{secrets.token_hex(3)}"
    sites = equip(folder, text, tag, f"m{tag}.py", **settings)
    file = folder / f"m{tag}.py"
    module = types.ModuleType(run_name)
    module.__file__ = str(file)
    capsys.readouterr()
    try:
        exec(compile(file.read_bytes(), str(file), "exec"), module.__dict__)
    finally:
        runtime = sys.modules.pop(tag).runtime
        runtime.is_off = runtime.is_idle = True
    return printed(capsys.readouterr().out, tag, module.__dict__, sites)


def run_there(folder: Path, text, options=(), env=None, timeout=120, **settings):
    """Run the injected text as a script in a process of its own."""
    sites = equip(folder, text, **settings)
    command = [sys.executable, *options, "m.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=timeout, env={**os.environ, **(env or {})})
    assert not done.returncode, done.stderr[-3000:]
    found = printed(done.stdout, TAG, sites=sites)
    found.names["stderr"] = done.stderr
    return found
