"""The loopback registry that other tests push to: what it keeps, and what it refuses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import registry_server

MEDIA_TYPE = "application/vnd.oci.image.index.v1+json"
EMPTY_INDEX = json.dumps({"schemaVersion": 2, "mediaType": MEDIA_TYPE, "manifests": []}).encode()

pytestmark = pytest.mark.skipif(registry_server.binary() is None, reason="no docker-registry (ci/registry fetches it)")


def request(method: str, url: str, body: bytes | None = None) -> tuple[int, str]:
    """The status and the content's digest."""
    wanted = urllib.request.Request(f"http://{url}", data=body, method=method)
    wanted.add_header("Content-Type" if body else "Accept", MEDIA_TYPE)
    try:
        with urllib.request.urlopen(wanted, timeout=30) as answer:
            return answer.status, answer.headers.get("Docker-Content-Digest", "")
    except urllib.error.HTTPError as error:
        return error.code, ""


def test_what_is_pushed_stays_for_the_next_one_and_can_be_pruned(tmp_path: Path) -> None:
    with registry_server.running(tmp_path) as registry:
        status, digest = request("PUT", f"{registry.address}/v2/some/image/manifests/1.0", EMPTY_INDEX)
        assert status == 201
        assert request("DELETE", f"{registry.address}/v2/some/image/manifests/{digest}")[0] == 405
    with registry_server.running(tmp_path, deletes=True) as registry:
        url = f"{registry.address}/v2/some/image/manifests"
        assert request("HEAD", f"{url}/1.0") == (200, digest)
        assert request("DELETE", f"{url}/{digest}")[0] == 202
        assert request("HEAD", f"{url}/1.0")[0] == 404
        assert "/v2/some/image/manifests/1.0" in registry.log.read_text()


def test_a_read_only_registry_takes_nothing(tmp_path: Path) -> None:
    with registry_server.running(tmp_path, read_only=True) as registry:
        assert request("PUT", f"{registry.address}/v2/some/image/manifests/1.0", EMPTY_INDEX)[0] == 405
