"""Headless Chromium, driven through its debugging pipe: no driver, no port, no network."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "chromium")


class Browser:
    """One page; `problems` are console errors, uncaught exceptions and requests to anything but the file."""

    def __init__(self, folder: Path):
        down, self.write = os.pipe()
        read, up = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        wiring = f'exec 3<&{down} 4>&{up}; exec "$@"'
        self.process = subprocess.Popen(["bash", "-c", wiring, "bash", CHROMIUM, *options, "about:blank"], pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(down), os.close(up)
        self.read, self.number, self.session, self.problems = os.fdopen(read, "rb", buffering=0), 0, None, []
        self.rest, self.loaded = b"", False
        target = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def message(self) -> dict:
        """The next message."""
        while b"\0" not in self.rest:
            data = self.read.read(1 << 16)
            assert data, "Chromium ended"
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\0")
        found = json.loads(line)
        self.note(found.get("method"), found.get("params", {}))
        return found

    def note(self, method: str | None, facts: dict) -> None:
        """Keep what must not happen."""
        self.loaded |= method == "Page.loadEventFired"
        if method == "Runtime.exceptionThrown" or method == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.problems.append(json.dumps(facts)[:500])
        elif method == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.problems.append(json.dumps(facts)[:500])
        elif method == "Network.requestWillBeSent" and not facts["request"]["url"].startswith(("file:", "data:", "blob:", "about:")):
            self.problems.append(facts["request"]["url"])

    def call(self, method: str, **params):
        """Call a method of the protocol."""
        self.number += 1
        session = {"sessionId": self.session} if self.session else {}
        os.write(self.write, json.dumps({"id": self.number, "method": method, "params": params, **session}).encode() + b"\0")
        while (found := self.message()).get("id") != self.number:
            pass
        assert "error" not in found, found
        return found["result"]

    def open(self, page: Path, width: int, height: int, scheme: str = "light") -> None:
        """Load a page in a window of this size and with this colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded = False
        self.call("Page.navigate", url=page.as_uri())
        while not self.loaded:
            self.message()

    def value(self, expression: str):
        """What an expression gives in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Save a picture of the window, or of the whole page."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]))

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)
        self.read.close(), os.close(self.write)
