"""ci/scan against a database on loopback that speaks OSV's protocol: advisories by ecosystem, name and version."""

from __future__ import annotations

import datetime
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shipping import files, osv, scan, spdx
from shipping.errors import EXIT_SKIPPED, ShippingError

ROOT = Path(__file__).parents[2]
TODAY = datetime.date(2026, 12, 1)
POLICY: dict[str, Any] = {"fail-at": "low"}
TINI = "pkg:deb/ubuntu/tini@0.19.0-1build1?arch=amd64&distro=ubuntu-24.04&upstream=tini%400.19.0-1"
NVML = "pkg:pypi/nvidia-ml-py@13.615.71"


class Database:
    """Advisories by (ecosystem, name, version); each answer holds one, as a page, and the number of the next."""

    def __init__(self) -> None:
        self.advisories: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.url = ""

    def answer(self, query: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(query)
        package = query["package"]
        found = self.advisories.get((package["ecosystem"], package["name"], query["version"]), [])
        page = int(query.get("page_token", 0))
        answer: dict[str, Any] = {"vulns": found[page : page + 1]} if found else {}
        if page + 1 < len(found):
            answer["next_page_token"] = str(page + 1)
        return answer


@pytest.fixture
def database() -> Iterator[Database]:
    kept = Database()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(kept.status if self.path == "/v1/query" else 404)
            self.end_headers()
            self.wfile.write(json.dumps(kept.answer(query)).encode())

        def log_message(self, *_: Any) -> None:
            pass

    with served(Handler) as url:
        kept.url = url
        yield kept


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def package(name: str, version: str, purl: str | None, comment: str = spdx.OURS) -> dict[str, Any]:
    references = [{"referenceType": "purl", "referenceLocator": purl}] if purl else []
    return {"name": name, "versionInfo": version, "comment": comment, "externalRefs": references}


ADDITIONS = spdx.ours(
    {
        "packages": [
            package("tini", "0.19.0-1build1", TINI),
            package("nvidia-ml-py", "13.615.71", NVML),
            package("cuda-runtime", "13.0.3", None),
            package("torch", "2.13.0", "pkg:pypi/torch@2.13.0", comment="the base's"),
        ]
    }
)


def advisory(name: str, word: str | None, **more: Any) -> dict[str, Any]:
    told = {"database_specific": {"severity": word}} if word else {}
    return {"id": name, "summary": "made up", "aliases": ["CVE-2026-1"], **told, **more}


def run(database: Database, policy: dict[str, Any] = POLICY) -> int:
    return scan.scan(ADDITIONS, policy, database.url, TODAY)


def test_each_addition_is_asked_for_by_ecosystem_name_and_version(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(database) == 0
    assert database.asked == [
        {"package": {"ecosystem": "PyPI", "name": "nvidia-ml-py"}, "version": "13.615.71"},
        {"package": {"ecosystem": "Ubuntu:24.04:LTS", "name": "tini"}, "version": "0.19.0-1"},
    ]
    assert "-   cuda-runtime 13.0.3: OSV has no advisories" in capsys.readouterr().out


@pytest.mark.parametrize(
    "found",
    [
        advisory("GHSA-1", "LOW"),
        advisory("GHSA-1", "MODERATE"),
        advisory(
            "GHSA-1", None, severity=[{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:L"}]
        ),
        advisory("GHSA-1", "a word that nobody knows"),
    ],
)
def test_a_finding_fails(database: Database, found: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    database.advisories["PyPI", "nvidia-ml-py", "13.615.71"] = [found]
    assert run(database) == 1
    told = capsys.readouterr()
    assert "fails: nvidia-ml-py 13.615.71: GHSA-1" in told.out
    assert told.err.startswith("kdtree: vulnerabilities in what the image adds: 1. Fix: ")


def test_all_pages_of_an_answer_are_read(database: Database) -> None:
    found = [
        advisory("UBUNTU-1", "NEGLIGIBLE"),
        advisory("UBUNTU-2", None, severity=[{"type": "Ubuntu", "score": "high"}]),
    ]
    database.advisories["Ubuntu:24.04:LTS", "tini", "0.19.0-1"] = found
    assert run(database, {"fail-at": "high"}) == 1
    assert run(database, {"fail-at": "critical"}) == 0


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 0),
        ({"id": "CVE-2026-1"}, 0),
        ({"id": "GHSA-2"}, 1),
        ({"package": "tini"}, 1),
        ({"until": TODAY}, 1),
        ({"until": TODAY - datetime.timedelta(days=1)}, 1),
    ],
)
def test_what_is_borne_is_borne_for_one_package_until_a_day(
    database: Database, change: dict[str, Any], status: int
) -> None:
    entry = {"id": "GHSA-1", "package": "nvidia-ml-py", "until": TODAY + datetime.timedelta(days=1), "reason": "why"}
    database.advisories["PyPI", "nvidia-ml-py", "13.615.71"] = [advisory("GHSA-1", "CRITICAL")]
    policy = POLICY | {"ignored": [entry | change]}
    scan.check(policy)
    assert run(database, policy) == status


@pytest.mark.parametrize(
    "policy",
    [
        {"fail-at": "never"},
        POLICY | {"ignored": [{"id": "CVE-2026-1"}]},
        POLICY | {"ignored": [{"id": "CVE-2026-1", "package": "tini", "until": "some day", "reason": "why"}]},
        POLICY | {"ignored": [{"id": "CVE-2026-1", "package": "tini", "until": TODAY, "reason": ""}]},
    ],
)
def test_a_policy_that_is_none_is_refused(policy: dict[str, Any]) -> None:
    with pytest.raises(ShippingError) as refused:
        scan.check(policy)
    assert refused.value.code == 64


def test_the_policy_in_the_repository_is_one() -> None:
    scan.check(files.policy("vulnerabilities"))


def test_a_database_that_is_broken_is_no_clean_scan(database: Database) -> None:
    database.status = 503
    with pytest.raises(ShippingError, match=r"^not scanned: .* HTTP 503\. Fix: ") as skipped:
        run(database)
    assert skipped.value.code == EXIT_SKIPPED
    database.status = 400
    with pytest.raises(ShippingError, match="refuses the question") as failed:
        run(database)
    assert failed.value.code == 1


def test_an_answer_that_ends_early_is_no_clean_scan() -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b'{"vulns": [')

        def log_message(self, *_: Any) -> None:
            pass

    with served(Handler) as url, pytest.raises(ShippingError) as skipped:
        scan.scan(ADDITIONS, POLICY, url, TODAY)
    assert skipped.value.code == EXIT_SKIPPED


@pytest.mark.parametrize(
    ("body", "words"), [(b"[]", "no JSON object"), (b'{"next_page_token": "again"}', "does not end")]
)
def test_an_answer_that_is_none_is_no_clean_scan(body: bytes, words: str) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with served(Handler) as url, pytest.raises(ShippingError, match=words) as skipped:
        list(osv.findings(url, {}))
    assert skipped.value.code == EXIT_SKIPPED


def test_a_database_that_breaks_after_a_finding_is_a_finding(database: Database) -> None:
    answer = database.answer

    def once(query: dict[str, Any]) -> dict[str, Any]:
        database.status = 503
        return answer(query)

    database.answer = once  # type: ignore[method-assign]
    database.advisories["PyPI", "nvidia-ml-py", "13.615.71"] = [advisory("GHSA-1", "LOW")]
    with pytest.raises(
        ShippingError, match=r"^vulnerabilities in what the image adds: 1; the rest not scanned"
    ) as failed:
        run(database)
    assert failed.value.code == 1


def test_what_osv_has_no_ecosystem_for_is_not_asked() -> None:
    assert osv.query("pkg:generic/something@1") is None
    assert osv.query("pkg:deb/debian/tini@0.19.0-1?arch=amd64") is None  # of no release
    assert osv.query("pkg:deb/debian/tini@0.19.0-1%2Bb3?distro=debian-12&upstream=tini%400.19.0-1") == {
        "package": {"ecosystem": "Debian:12", "name": "tini"},
        "version": "0.19.0-1",
    }


def command(*arguments: str | Path) -> tuple[int, str]:
    done = subprocess.run([ROOT / "ci" / "scan", *arguments], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_the_command_ends_in_one_line(tmp_path: Path) -> None:
    document = tmp_path / "sbom.json"
    code, said = command("--sbom", document)
    assert (code, said) == (1, f"kdtree: no sbom.json: {document}: No such file or directory. Fix: ci/sbom\n")
    document.write_text("{")
    assert command("--sbom", document)[1].startswith(f"kdtree: {document} is no JSON: ")
    document.write_text('{"packages": []}')
    assert command("--sbom", document) == (64, "kdtree: the SBOM names nothing that is added. Fix: ci/sbom\n")
    document.write_text(json.dumps({"packages": list(ADDITIONS.values())}))
    code, said = command("--sbom", document, "--database", "http://127.0.0.1:9")
    assert code == EXIT_SKIPPED
    assert said.startswith("kdtree: not scanned: the database cannot be had: http://127.0.0.1:9/v1/query: ")
    assert said.count("\n") == 1
