"""A real browser, driven by W3C WebDriver over HTTP: Debian's chromium and its chromedriver, and no library between.

Selenium would bring seven wheels for what are a dozen requests here.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_START_SECONDS = 30.0


def missing() -> str | None:
    """Why there is no browser to test with; None where there is one."""
    lacking = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return f"{' and '.join(lacking)} not installed (Debian's chromium, chromium-driver)" if lacking else None


class Browser:
    """One session. Every method raises RuntimeError with the driver's words where it refuses."""

    def __init__(self, url: str, profile: Path):
        self._url = url
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={profile}",
        ]
        options = {"args": arguments, "perfLoggingPrefs": {"enableNetwork": True}}
        logged = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logged}
        session = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"

    def close(self) -> None:
        self._ask("DELETE", "")

    def open(self, path: Path, width: int = 1280, height: int = 900, **media: str) -> None:
        """Loads a page of the disk; `media` are CSS media features, e.g. `prefers_color_scheme="dark"`."""
        self.resize(width, height)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self._devtools("Emulation.setEmulatedMedia", features=features)
        self._ask("POST", "/url", {"url": path.as_uri()})

    def resize(self, width: int, height: int = 900) -> None:
        """A phone's width included, which no window of a desktop has."""
        self._devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """The value that a function's body returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def complaints(self) -> list[str]:
        """What the console was told, errors of the page's own policy included."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses asked for since the last call; what stands in the page itself (data:) is none."""
        messages = [
            json.loads(each["message"])["message"] for each in self._ask("POST", "/se/log", {"type": "performance"})
        ]
        sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("data:")]

    def screenshot(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        image = self._devtools("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(image["data"]))

    def pdf(self) -> bytes:
        """The page as it would be printed."""
        return base64.b64decode(self._ask("POST", "/print", {}))

    def _devtools(self, command: str, **parameters: Any) -> Any:
        return self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.loads(error.read())["value"]["message"]) from error


@contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """A browser with a profile of its own in `folder`; neither it nor its driver is left behind."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Debian's wrapper of chromium writes below HOME.
    environment = {**os.environ, "HOME": str(folder)}
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}", f"--log-path={folder / 'chromedriver.log'}"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        browser = Browser(_ready(f"http://127.0.0.1:{port}"), folder / "profile")
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()


def _ready(url: str) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/status", timeout=5) as answer:
                if json.loads(answer.read())["value"]["ready"]:
                    return url
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"chromedriver does not answer at {url}")
