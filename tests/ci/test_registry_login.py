"""What a registry of the outside asks for: by which name it is reached, and who asks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from answering_registry import Answer, registry
from oci import credentials, names
from oci.client import Client, digest_of
from oci.errors import RegistryError

IMAGE = b'{"schemaVersion":2}'


@contextmanager
def guarded(body: bytes = IMAGE) -> Iterator[tuple[str, list[str]]]:
    """A registry that wants a token, as ghcr.io does, and gives one to who logged in; then it has one image.

    Its address, and what it was asked with which authorization.
    """
    seen = []

    def answer(asked: BaseHTTPRequestHandler) -> Answer:
        given = asked.headers.get("Authorization", "")
        seen.append(f"{asked.path.partition('?')[0]} {given}")
        if asked.path.startswith("/token"):
            return (200 if given == "Basic dTpw" else 401), {}, b'{"token": "T"}'
        if given == "Bearer T":
            return 200, {}, body
        realm = f'realm="http://{asked.headers["Host"]}/token",service="s",scope="repository:a:pull"'
        return 401, {"WWW-Authenticate": f"Bearer {realm}"}, b""

    with registry(answer) as address:
        yield address, seen


def logged_in(folder: Path, address: str, **config: object) -> None:
    (folder / "config.json").write_text(json.dumps(config or {"auths": {address: {"auth": "dTpw"}}}))


def test_a_token_is_fetched_with_what_docker_login_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with guarded() as (address, seen):
        logged_in(tmp_path, address)
        assert Client(names.repository(f"{address}/a")).manifest(digest_of(IMAGE)).body == IMAGE
    assert seen[1] == "/token Basic dTpw"


@pytest.mark.parametrize("kept", ["credsStore", "credHelpers"])
def test_a_credential_helper_is_asked(kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = tmp_path / "docker-credential-kept"
    helper.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"Username": "u", "Secret": "p"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with guarded() as (address, _):
        logged_in(tmp_path, address, **{kept: "kept" if kept == "credsStore" else {address: "kept"}})
        assert Client(names.repository(f"{address}/a")).manifest(digest_of(IMAGE)).body == IMAGE


def test_who_did_not_log_in_is_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with guarded() as (address, _), pytest.raises(RegistryError, match=r"HTTP 401.*Fix: docker login"):
        Client(names.repository(f"{address}/a")).manifest(digest_of(IMAGE))


def test_other_bytes_than_the_digests_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with guarded(IMAGE + b" ") as (address, _):
        logged_in(tmp_path, address)
        with pytest.raises(RegistryError, match="another image"):
            Client(names.repository(f"{address}/a")).manifest(digest_of(IMAGE))


@pytest.mark.parametrize(
    ("name", "host", "path"),
    [
        ("debian", "registry-1.docker.io", "library/debian"),
        ("docker.io/lmsysorg/sglang", "registry-1.docker.io", "lmsysorg/sglang"),
        ("localhost/a", "localhost", "a"),
        ("ghcr.io/a/b", "ghcr.io", "a/b"),
    ],
)
def test_a_name_without_a_host_is_docker_hub_s(name: str, host: str, path: str) -> None:
    assert names.repository(name) == names.Repository(host, path, name)


def test_docker_hub_s_login_is_kept_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    logged_in(tmp_path, "https://index.docker.io/v1/")
    assert credentials.basic(names.repository("debian").host) == "Basic dTpw"
