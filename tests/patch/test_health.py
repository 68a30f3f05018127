"""`kdtree health` and `kdtree status`: what a state folder says, file by file."""

from __future__ import annotations

import json
import math
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from kdtree_verify.config import Mode
from kdtree_verify.errors import UsageError
from kdtree_verify.rank import reporter
from kdtree_verify.reporting import health, status, status_table
from kdtree_verify.reporting.state import Identity, State, Verdict, rank_document, rank_path, server_document, write
from kdtree_verify.reporting.status import STALE_AFTER

Change = Callable[[dict[str, Any]], None]


class Folder:
    """A state folder as a server leaves it, written by the product's own functions. This process is every rank."""

    def __init__(self, path: Path, mode: str = "on", ranks: int = 2, expected: int | None = 2):
        self.path, self.mode = path, Mode(mode)
        write(path / "server.json", server_document(self.mode, ["--model-path", "m", "--port", "31000"], expected))
        for tp in range(ranks):
            self.rank(tp)

    def rank(self, tp: int, verdict: State | None = None, why: str | None = None, **changes: Any) -> None:
        verdict = verdict or (State.OFF if self.mode is Mode.OFF else State.SERVING)
        identity = Identity(tp, 0, 0, os.getpid())
        counters = {"verify_calls": 12, "kernel_calls": 10, "declined": {"not_bf16": 2}, "out_of_range": 0}
        library = {"kind": "cuda", "path": "/opt/lib.so", "sha256": "ab" * 32, "archs": ["sm_120a"]}
        document = rank_document(self.mode, identity, Verdict(verdict, why)) | {
            "counters": counters,
            "library": library,
            "device": {"kind": "cuda", "name": "RTX", "compute_capability": "12.0"},
        }
        write(rank_path(self.path, identity), document | changes)

    def edit_server(self, **changes: Any) -> None:
        path = self.path / "server.json"
        write(path, json.loads(path.read_text()) | changes)

    def check(self, **arguments: Any) -> str:
        return health.check(status.read(self.path), **arguments)

    def problem(self, **arguments: Any) -> str:
        with pytest.raises(health.Unhealthy) as raised:
            self.check(**arguments)
        line = str(raised.value)
        assert line.startswith("kdtree: unhealthy: ")
        assert ". Fix: " in line
        assert "\n" not in line
        assert raised.value.code == 1
        return raised.value.found


@pytest.fixture(scope="module")
def dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.parametrize("mode", ["off", "validate", "on"])
def test_a_server_of_which_every_rank_reports_is_healthy(tmp_path, mode):
    assert Folder(tmp_path, mode).check().startswith(f"healthy: {mode}, 2 ranks, 20 kernel calls")


def test_armed_is_healthy_and_says_that_nothing_was_verified_yet(tmp_path):
    folder = Folder(tmp_path, ranks=0, expected=1)
    folder.rank(0, State.ARMED, counters=None)
    assert "no verify call yet" in folder.check()


def test_armed_not_serving_is_unhealthy_with_its_reason(tmp_path):
    folder = Folder(tmp_path)
    folder.rank(1, State.NOT_SERVING, "every verify call was declined: sinks")
    found = folder.problem()
    assert found == "dp0-pp0-tp1 is armed, not serving (every verify call was declined: sinks)"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"state": "failed", "reason": "self-test"}, "dp0-pp0-tp1 failed (self-test)"),
        ({"mode": "off"}, "dp0-pp0-tp1 reports mode off, on was asked for"),
        ({"mode": "validate"}, "dp0-pp0-tp1 reports mode validate, on was asked for"),
        ({"state": "off"}, "dp0-pp0-tp1 is off"),
        ({"updated_at": time.time() - 3600}, "dp0-pp0-tp1 has not reported for "),
        ({"schema": 99}, "rank-dp0-pp0-tp1.json: not of this version"),
    ],
)
def test_a_rank_that_is_not_what_was_asked_for(tmp_path, change, found):
    folder = Folder(tmp_path)
    folder.rank(1, **change)
    assert found in folder.problem()


def test_a_rank_that_has_ended(tmp_path, dead_pid):
    folder = Folder(tmp_path)
    folder.rank(0, pid=dead_pid)
    assert folder.problem() == f"dp0-pp0-tp0 (pid {dead_pid}) has ended"


def test_a_rank_that_has_ended_and_was_not_waited_for(tmp_path):
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    try:
        deadline = time.monotonic() + 10
        while status._alive(zombie.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        folder = Folder(tmp_path)
        folder.rank(0, pid=zombie.pid)
        assert "has ended" in folder.problem()
    finally:
        zombie.wait()


def test_a_server_that_has_ended(tmp_path, dead_pid):
    folder = Folder(tmp_path)
    folder.edit_server(pid=dead_pid)
    assert folder.problem() == f"the server (pid {dead_pid}) has ended"


def test_ranks_that_are_missing(tmp_path):
    assert Folder(tmp_path, expected=8).problem() == "6 of 8 ranks have not reported"


def test_where_the_number_of_ranks_is_not_known_one_is_enough_and_none_is_not(tmp_path):
    assert Folder(tmp_path / "a", ranks=1, expected=None).check()
    assert Folder(tmp_path / "b", ranks=0, expected=None).problem() == "1 ranks have not reported"


def test_many_problems_are_one_line(tmp_path):
    folder = Folder(tmp_path, ranks=0, expected=8)
    for tp in range(8):
        folder.rank(tp, State.NOT_SERVING, "sinks")
    assert folder.problem().endswith("; and 5 more")


def test_off_writes_once_and_does_not_get_stale(tmp_path):
    folder = Folder(tmp_path, "off", ranks=0, expected=1)
    folder.rank(0, updated_at=time.time() - 86400)
    assert folder.check()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": 99}', '{"schema": 1}', "\xff"])
def test_a_server_file_that_is_none(tmp_path, content):
    (tmp_path / "server.json").write_text(content, encoding="latin-1")
    snapshot = status.read(tmp_path)
    with pytest.raises(health.Unhealthy, match=r"server\.json"):
        health.check(snapshot)
    assert "server.json" in status_table.table(snapshot)


@pytest.mark.parametrize(
    "changes",
    [
        {"updated_at": "now"},
        {"state_since": None},
        {"pid": None},
        {"counters": [1]},
        {"layers": [1]},
        {"layers": {"a": 1}},
        {"library": "x"},
        {"mode": []},
        {"reason": 5},
        *(
            {name: value}
            for name in ("started_at", "state_since", "updated_at")
            for value in (math.nan, -1e30, 10**400)
        ),
        {"phase_since": math.inf},
        {"counters": {"kernel_calls": "x"}},
        {"counters": {"declined": [1]}},
        {"counters": {"declined": {"a": None}}},
        {"layers": [{"worst_rel_l2": "x", "compare_calls": 1}]},
        {"layers": [{"exceeded_calls": "x"}]},
        {"layers": [{"worst_rel_l2": 10**400, "compare_calls": 1}]},
        {"library": {"sha256": [1]}},
        {"library": {"path": "p", "sha256": "s", "archs": 5}},
    ],
)
def test_a_rank_file_that_is_none(tmp_path, changes):
    folder = Folder(tmp_path)
    folder.rank(1, **changes)
    assert "rank-dp0-pp0-tp1.json: not of this version" in folder.problem()
    assert "unreadable" in status_table.table(status.read(tmp_path))


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _deep(path: Path) -> None:
    path.write_text("[" * 200_000)


def _huge(path: Path) -> None:
    with path.open("w") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("make", [_pipe, _deep, _huge, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["server.json", "rank-dp0-pp0-tp0.json"])
def test_what_lies_in_a_files_place_holds_nobody_up(tmp_path, make, name):
    folder = Folder(tmp_path)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    assert name in folder.problem()
    assert name in status_table.table(status.read(tmp_path))


@pytest.mark.parametrize(
    "endpoint",
    [("a b\r\nx: y", 1), ("a..b", 1), ("a" * 64, 1), ("\ud800", 1), ("127.0.0.1", 99_999_999), ("127.0.0.1", -1)],
)
def test_an_endpoint_that_cannot_be(tmp_path, endpoint):
    folder = Folder(tmp_path)
    folder.edit_server(endpoint={"host": endpoint[0], "port": endpoint[1], "tls": False})
    with pytest.raises(health.Unhealthy, match="does not answer"):
        folder.check(url="auto")


def test_what_could_steer_a_terminal_is_not_shown(tmp_path):
    folder = Folder(tmp_path)
    folder.rank(1, State.NOT_SERVING, "\x1b[2Jgone\nkdtree: all is well")
    with pytest.raises(health.Unhealthy, match=r"\?\[2Jgone kdtree"):
        folder.check()
    assert "\x1b" not in status_table.table(status.read(tmp_path))
    folder.edit_server(mode="\x1b[2J")
    assert "\x1b" not in status_table.table(status.read(tmp_path))


@pytest.mark.parametrize("name", ["rank-².json", "rank-٣.json", "rank-\udcff.json", f"rank-{'9' * 200}.json"])
def test_a_rank_s_file_of_any_name(tmp_path, name):
    folder = Folder(tmp_path)
    (tmp_path / name).write_text("{}")
    assert "not of this version" in folder.problem()
    assert "unreadable" in status_table.table(status.read(tmp_path))


def test_a_clock_that_was_set_back(tmp_path):
    folder = Folder(tmp_path)
    later = time.time() + 86400
    folder.edit_server(started_at=later)
    folder.rank(0, started_at=later, state_since=later, updated_at=later)
    assert "up 0s" in status_table.table(status.read(tmp_path))
    assert "-86" not in status_table.table(status.read(tmp_path))
    # A rank that has not written by the new clock is silent, and not so only when the old time has come again.
    assert "has not reported" in folder.problem()
    folder.rank(0, started_at=later, state_since=later)
    assert folder.check()


def test_a_pid_that_can_be_none(tmp_path):
    folder = Folder(tmp_path)
    folder.edit_server(pid=10**30)
    assert "has ended" in folder.problem()


def test_a_folder_with_an_impossible_name():
    with pytest.raises(health.Unhealthy, match="File name too long"):
        health.check(status.read(Path("a" * 300)))


def test_a_folder_that_is_empty_or_missing(tmp_path):
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(health.Unhealthy, match="no server has reported"):
            health.check(status.read(directory))


def test_three_heartbeats_may_be_missed():
    assert STALE_AFTER >= 3 * reporter.HEARTBEAT


# ---- the endpoint


def handler(codes: list[int], path: str = "/ready") -> type[BaseHTTPRequestHandler]:
    """Answers `path` with the last code in the list; with 0, late."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code = codes[-1]
            if code == 0:
                time.sleep(1)
                return
            self.send_response(code if self.path == path else 404)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[int]]]:
    """The URL of a server that answers with the last code in the list."""
    codes = [200]
    server = HTTPServer(("127.0.0.1", 0), handler(codes))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/ready", codes
    server.shutdown()
    server.server_close()


def test_the_url_must_answer_200(tmp_path, endpoint):
    (url, codes), folder = endpoint, Folder(tmp_path)
    assert folder.check(url=url)
    codes.append(503)
    assert folder.problem(url=url) == f"{url} answers 503"
    codes.append(0)
    assert "does not answer" in folder.problem(url=url, timeout=0.2)


def test_nobody_at_the_url(tmp_path):
    assert "does not answer: Connection refused" in Folder(tmp_path).problem(url="http://127.0.0.1:9/health")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_auto_is_where_the_server_says_that_it_listens(tmp_path, endpoint, host):
    url, _ = endpoint
    told = {"host": host, "port": int(url.split(":")[2].split("/")[0]), "tls": False}
    folder = Folder(tmp_path)
    folder.edit_server(endpoint=told)
    assert folder.check(url="auto")
    folder.edit_server(endpoint=told | {"tls": True})
    assert f"https://{host.replace('0.0.0.0', '127.0.0.1')}:" in folder.problem(url="auto", timeout=5)
    folder.edit_server(endpoint=None)
    assert "http://127.0.0.1:30000/ready" in folder.problem(url="auto", timeout=0.2)


def test_auto_on_a_host_without_the_api(tmp_path):
    """SGLang's stub there knows /ping, and no /ready."""
    codes = [200]
    server = HTTPServer(("127.0.0.1", 0), handler(codes, "/ping"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = Folder(tmp_path)
    folder.edit_server(endpoint={"host": "127.0.0.1", "port": server.server_port, "tls": False})
    try:
        assert folder.check(url="auto")
        codes.append(503)
        assert folder.problem(url="auto").endswith("/ping answers 503")
    finally:
        server.shutdown()
        server.server_close()


def test_auto_by_tls_takes_the_servers_own_certificate(tmp_path):
    certificate = tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a"
    subprocess.run(
        [*command.split(), "-keyout", certificate, "-out", tmp_path / "public"], check=True, capture_output=True
    )
    certificate.write_text(certificate.read_text() + (tmp_path / "public").read_text())
    server = HTTPServer(("127.0.0.1", 0), handler([200]))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    folder = Folder(tmp_path)
    folder.edit_server(endpoint={"host": "0.0.0.0", "port": server.server_port, "tls": True})
    try:
        assert folder.check(url="auto")
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "url",
    ["ftp://a/b", "localhost:1", "http://", "http://a:x/", "https://a/", "http://a/b c", "http://a/é", "http://a..b/"],
)
def test_a_url_that_is_none(tmp_path, url):
    with pytest.raises(UsageError):
        Folder(tmp_path).check(url=url)


# ---- liveness


def not_live(folder: Folder) -> str:
    with pytest.raises(health.Unhealthy) as raised:
        health.check_live(status.read(folder.path))
    assert str(raised.value).startswith("kdtree: not live: ")
    return raised.value.found


@pytest.mark.parametrize(
    ("ranks", "change"),
    [
        (2, {}),
        (1, {}),
        (2, {"state": "armed, not serving", "reason": "sinks"}),
        (2, {"state": "failed", "reason": "a launch"}),
        (2, {"mode": "off"}),
        (2, {"schema": 99}),
        (2, {"state": "loading", "updated_at": time.time() - 3600}),
    ],
)
def test_what_a_restart_does_not_mend_lives(tmp_path, ranks, change):
    folder = Folder(tmp_path, ranks=ranks)
    folder.rank(0, **change)
    assert health.check_live(status.read(tmp_path)) == f"live: on, {ranks} of 2 ranks report"


def test_a_server_that_loads_lives(tmp_path):
    folder = Folder(tmp_path, ranks=0, expected=8)
    assert health.check_live(status.read(tmp_path)) == "live: on, 0 of 8 ranks report"
    assert folder.problem() == "8 of 8 ranks have not reported"


def test_what_has_ended_or_is_silent_does_not_live(tmp_path, dead_pid):
    folder = Folder(tmp_path)
    folder.rank(1, updated_at=time.time() - 3600)
    assert not_live(folder).startswith("dp0-pp0-tp1 has not reported for ")
    folder.rank(1, pid=dead_pid)
    assert not_live(folder) == f"dp0-pp0-tp1 (pid {dead_pid}) has ended"
    folder.edit_server(pid=dead_pid)
    assert not_live(folder).startswith(f"the server (pid {dead_pid}) has ended")
    (tmp_path / "server.json").unlink()
    assert "no server has reported" in not_live(folder)


# ---- status


def test_the_table_shows_each_rank_and_what_to_know(tmp_path, dead_pid):
    folder = Folder(tmp_path, "validate", ranks=12, expected=12)
    layer = {"model": "target", "layer": 7, "calls": 5, "rows": 9, "worst_rel_l2": 0.5, "rel_l2": 0.25, "max_abs": 2.0}
    folder.rank(3, layers=[layer | {"compare_calls": 5, "exceeded_calls": 1, "nonfinite": 4}])
    folder.rank(4, pid=dead_pid)
    folder.rank(5, updated_at=time.time() - 3600)
    folder.rank(6, State.NOT_SERVING, "a captured graph runs stock: sinks")
    folder.rank(7, device={"compute_capability": "9.0"})
    now = time.time()
    folder.rank(8, started_at=now - 7200, state_since=now - 2 * 86400)
    folder.rank(9, state_since=1e30)
    text = status_table.table(status.read(tmp_path))
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith("dp0")}
    assert list(rows)[:3] == ["dp0-pp0-tp0", "dp0-pp0-tp1", "dp0-pp0-tp2"]
    assert "12 of 12 ranks report" in text
    assert "not_bf16 2" in rows["dp0-pp0-tp0"]
    assert "serving, DEAD" in rows["dp0-pp0-tp4"]
    assert "serving, STALE" in rows["dp0-pp0-tp5"]
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(now - 2 * 86400)) in rows["dp0-pp0-tp8"]
    assert "  2h00m  " in rows["dp0-pp0-tp8"]
    assert "dp0-pp0-tp6: a captured graph runs stock: sinks" in text
    assert any(line.startswith("layer 7 ") and "5.00e-01" in line for line in text.splitlines())
    assert "warning: dp0-pp0-tp7 runs on compute capability 9.0" in text
    assert "warning: dp0-pp0-tp3 left its bound in 1 calls" in text
    assert "sha256 abababababab" in text


def test_ranks_are_in_the_order_of_their_numbers(tmp_path):
    Folder(tmp_path, ranks=11)
    assert [rank.name for rank in status.read(tmp_path).ranks] == [f"dp0-pp0-tp{tp}" for tp in range(11)]


def test_the_host_library_and_ranks_that_differ_are_warned_of(tmp_path):
    folder = Folder(tmp_path)
    folder.rank(0, library={"kind": "host", "path": "h.so", "sha256": "cd" * 32, "archs": []})
    warnings = status.read(tmp_path).warnings()
    assert any("host library" in warning for warning in warnings)
    assert "the ranks run different libraries" in warnings
    assert "warning: " in folder.check()


def test_json_has_no_number_that_is_none(tmp_path):
    folder = Folder(tmp_path)
    folder.rank(0, layers=[{"layer": 0, "worst_rel_l2": float("inf"), "rel_l2": float("nan")}])
    text = json.dumps(status.read(tmp_path).as_dict(), allow_nan=False)
    assert json.loads(text)["ranks"][0]["layers"][0]["worst_rel_l2"] is None
