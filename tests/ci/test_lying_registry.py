"""A registry that answers what no registry should: one line, and nothing is read, sent or believed that must not be."""

from __future__ import annotations

import json
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from answering_registry import Answer, registry
from oci import client as asking
from oci import names
from oci import promote as promoting
from oci.client import Client, Manifest, digest_of
from oci.errors import Missing, RegistryError, Unreachable
from shipping import cosign, verify

INDEX = json.dumps({"schemaVersion": 2, "manifests": []}).encode()


def client(address: str) -> Client:
    return Client(names.repository(f"{address}/x"))


def asks_for_a_token(challenge: str, token: bytes) -> Callable[[BaseHTTPRequestHandler], Answer]:
    def answer(asked: BaseHTTPRequestHandler) -> Answer:
        if asked.path.startswith("/token"):
            return 200, {}, token
        return 401, {"WWW-Authenticate": f"Bearer {challenge.format(address=asked.headers['Host'])}"}, b""

    return answer


@pytest.mark.parametrize("realm", ['realm="file://{file}#"', 'realm="ftp://127.0.0.1/x"', 'realm="x"', 'service="s"'])
def test_credentials_and_files_go_nowhere_else(realm: str, tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"token": "secret"}')
    with registry(asks_for_a_token(realm.replace("{file}", str(file)), b"")) as address:
        asked = client(address)
        with pytest.raises(RegistryError, match=r"the registry sends us to .* Fix: "):
            asked.manifest(digest_of(b""))
        assert asked._authorization is None


def test_over_tls_credentials_stay_there() -> None:
    outside = Client(names.repository("registry.example/x"))
    assert outside._safe("https://elsewhere.example/token") == "https://elsewhere.example/token"
    with pytest.raises(RegistryError, match="the registry sends us to"):
        outside._safe("http://registry.example/token")


@pytest.mark.parametrize("token", [b"<html>", b"[]", b"{}", b'{"token": "a\\nb: c"}'])
def test_a_token_that_is_none(token: bytes) -> None:
    with (
        registry(asks_for_a_token('realm="http://{address}/token"', token)) as address,
        pytest.raises(RegistryError, match=r"token.* Fix: "),
    ):
        client(address).manifest(digest_of(b""))


def test_an_upload_is_sent_to_no_file(tmp_path: Path) -> None:
    with (
        registry(lambda *_: (202, {"Location": f"file://{tmp_path}/x"}, b"")) as address,
        (tmp_path / "blob").open("w+b") as blob,
        pytest.raises(RegistryError, match="the registry sends us to"),
    ):
        client(address).upload(digest_of(b""), 0, blob)


def test_a_blob_that_lies_elsewhere_is_not_fetched_to_see_whether_it_is_there() -> None:
    def answer(asked: BaseHTTPRequestHandler) -> Answer:
        if asked.path.startswith("/v2"):
            return 307, {"Location": f"http://{asked.headers['Host']}/storage"}, b""
        return 200, {"Content-Length": str(1 << 40), "Connection": "close"}, b""  # of which a GET would have to be read

    with registry(answer) as address:
        assert client(address).has_blob(digest_of(b""))


def test_credentials_do_not_follow_to_where_a_blob_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def answer(asked: BaseHTTPRequestHandler) -> Answer:
        given.append((asked.path.split("/")[1], asked.headers["Authorization"]))
        if asked.path.startswith("/v2"):
            return 307, {"Location": f"http://{asked.headers['Host']}/storage"}, b""
        return 200, {}, b"x"

    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with registry(answer) as address:
        (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {"auth": "dTpw"}}}))
        assert client(address).small_blob(digest_of(b"x")) == b"x"
        with client(address).blob(digest_of(b"x"), 1) as blob:
            assert blob.read() == b"x"
    assert given == [("v2", "Basic dTpw"), ("storage", None)] * 3  # the second blob is asked for before it is fetched


def test_a_blob_that_is_another() -> None:
    with registry(lambda _: (200, {}, b"x")) as address, pytest.raises(RegistryError, match="another blob"):
        client(address).small_blob(digest_of(b"y"))


def test_a_blob_that_is_gone() -> None:
    with (
        registry(lambda _: (404, {}, b"")) as address,
        pytest.raises(Missing, match="no such blob"),
        client(address).blob(digest_of(b""), 1),
    ):
        pytest.fail("there is one")


def test_what_is_stored_is_another_image() -> None:
    def answer(asked: BaseHTTPRequestHandler) -> Answer:
        return (201, {}, b"") if asked.command == "PUT" else (200, {"Docker-Content-Digest": digest_of(b"x")}, b"")

    with registry(answer) as address, pytest.raises(RegistryError, match=r"v1 is not what was stored\. Fix: "):
        client(address).put_manifest(Manifest("", b"y"), "v1")


def test_tags_without_an_end() -> None:
    def answer(asked: BaseHTTPRequestHandler) -> Answer:
        number = int(asked.path.partition("last=")[2] or 0)
        return 200, {"Link": f'</v2/x/tags/list?last={number + 1}>; rel="next"'}, b'{"tags": ["a"]}'

    with registry(answer) as address, pytest.raises(RegistryError, match="the list of tags does not end"):
        client(address).tags()


def test_tags_that_are_no_document() -> None:
    with registry(lambda *_: (200, {}, b"<html>")) as address, pytest.raises(RegistryError, match="no JSON document"):
        client(address).tags()


def test_an_error_that_is_cut_off() -> None:
    with (
        registry(lambda *_: (500, {"Content-Length": "1000", "Connection": "close"}, b"boom")) as address,
        pytest.raises(Unreachable, match="the registry does not answer"),
    ):
        client(address).manifest(digest_of(b""))


def test_an_answer_without_measure() -> None:
    with (
        registry(lambda *_: (200, {"Content-Length": str(1 << 40), "Connection": "close"}, b"")) as address,
        pytest.raises(RegistryError, match="an answer of 1,099,511,627,776 bytes"),
    ):
        client(address).manifest(digest_of(b""))


def test_an_answer_without_measure_that_does_not_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "_LARGEST", 1000)
    for size, words in ((1000, "answers with another image"), (1001, "an answer of more than 1,000 bytes")):
        chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)
        with (
            registry(lambda *_, chunks=chunks: (200, {"Transfer-Encoding": "chunked"}, chunks)) as address,
            pytest.raises(RegistryError, match=words),
        ):
            client(address).manifest(digest_of(b""))


@pytest.mark.parametrize("status", [429, 503])
def test_a_registry_that_cannot_say_whether_a_blob_is_there(status: int) -> None:
    with registry(lambda *_: (status, {}, b"")) as address, pytest.raises(RegistryError, match=f"HTTP {status}"):
        client(address).has_blob(digest_of(b""))


@pytest.mark.parametrize("body", [INDEX, b"[]", b"no"])
def test_what_is_no_image_is_neither_promoted_nor_verified(body: bytes, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.touch()
    with registry(lambda *_: (200, {}, body)) as address:
        image = f"{address}/x@{digest_of(body)}"
        with pytest.raises(RegistryError, match=r"not an image of one platform|no JSON document"):
            promoting.promote(image)
        with pytest.raises(RegistryError, match=r"not an image of one platform|no JSON document"):
            verify.verify(image, cosign.Trust(key, None, verify.WORKFLOW))


def test_of_two_who_give_one_tag_at_once_one_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"config": {"digest": "sha256:0"}}'
    mine, given = digest_of(body), iter([None, digest_of(b"another's")])
    monkeypatch.setattr(promoting, "SETTLED", 0)
    monkeypatch.setattr(Client, "manifest", lambda *_: Manifest("", body))
    monkeypatch.setattr(Client, "digest", lambda *_: next(given))
    monkeypatch.setattr(Client, "put_manifest", lambda *_: None)
    with pytest.raises(RegistryError, match=r"x:v1 was given twice at once, and is .* Fix: "):
        promoting.promote(f"registry.example/x@{mine}", "v1")


def test_a_configuration_is_named_by_its_digest() -> None:
    assert Manifest("", b'{"config": {"digest": "sha256:0"}}').config == "sha256:0"


@pytest.mark.parametrize("host", ["a b.c", "a.b?q", "a.b#", "a.b\n", "127.0.0.1:x", "a..b", "-.x/.."])
def test_a_host_that_is_none(host: str) -> None:
    with pytest.raises(RegistryError, match="no image's repository"):
        names.repository(f"{host}/x")
