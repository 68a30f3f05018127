"""A Prometheus as a process, with this repository's own configuration, for tests of deploy/monitoring.

Its binaries are those that ci/prometheus fetched, or the machine's own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from proof.server import free_port

ROOT = Path(__file__).resolve().parents[1]
MONITORING = ROOT / "deploy" / "monitoring"
CONFIG = MONITORING / "prometheus" / "prometheus.yml"
DASHBOARD = MONITORING / "grafana" / "dashboards" / "kdtree.json"
_FETCHED = ROOT / "build" / "prometheus" / "root" / "usr" / "bin"
_START_SECONDS = 60.0
# What prometheus_client's own server says, with which Prometheus 3 knows the format.
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def tool(name: str) -> str | None:
    """The path of `prometheus` or `promtool`; None where there is none."""
    fetched = _FETCHED / name
    return str(fetched) if fetched.exists() else shutil.which(name)


def dashboard_queries(dashboard: dict[str, Any]) -> list[str]:
    """Every query of the dashboard, with all servers chosen and a rate over a minute, as Prometheus takes it."""
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [query.replace("$instance", ".*").replace("$__rate_interval", "1m") for query in queries]


class Prometheus:
    """A server that runs."""

    def __init__(self, port: int):
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        """What the HTTP API has at a path. Raises OSError where it has nothing, or refuses a query."""
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{query}", timeout=30) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series and values of an instant query, now."""
        found = self.get("query", query=expression)["result"]
        return list(found)

    def scrapes(self) -> int:
        """How often every target was scraped with success, at least."""
        counted = [int(found["value"][1]) for found in self.query('sum_over_time(up{job="kdtree"}[10m])')]
        return min(counted, default=0)


@contextmanager
def running(folder: Path, *texts: str) -> Iterator[Prometheus]:
    """A Prometheus that has scraped each text, as a server's /metrics, three times; every second and not every 15.

    Args:
        folder: An empty one, for its data.
        texts: One a server.

    Raises:
        FileNotFoundError: There is no Prometheus here.
        TimeoutError: It does not start, or does not take a text.
    """
    binary, port = tool("prometheus"), free_port()
    if binary is None:
        raise FileNotFoundError("prometheus")
    with _served(texts) as addresses:
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(_config(addresses)))
        log = (folder / "prometheus.log").open("wb")
        command = [binary, f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"]
        command.append(f"--web.listen-address=127.0.0.1:{port}")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = Prometheus(port)
            _wait(server, len(texts), folder / "prometheus.log")
            yield server
        finally:
            process.kill()
            process.wait()
            log.close()


def _config(addresses: list[str]) -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CONFIG.parent / name) for name in config["rule_files"]]
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": addresses}]
    return config


def _wait(server: Prometheus, targets: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            if len(server.query('up{job="kdtree"} == 1')) == targets and server.scrapes() >= 3:
                return
        except OSError:
            pass  # not up yet
        time.sleep(0.5)
    raise TimeoutError(log.read_text(errors="replace")[-3000:])


@contextmanager
def _served(texts: tuple[str, ...]) -> Iterator[list[str]]:
    """Addresses at which /metrics is each of the texts."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(text.encode())) for text in texts]
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield [f"127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def _handler(text: bytes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
