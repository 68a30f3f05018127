"""What ci/push takes for an image, of what an engine may give; tests/ci/test_push_promote.py runs it on a real one."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from oci import names, push
from oci.client import INDEX_TYPES, MANIFEST_TYPES, Client, Manifest, digest_of
from oci.errors import RegistryError

IMAGE = json.dumps({"config": {"digest": "sha256:c"}, "layers": [{"digest": "sha256:l"}]}).encode()
OTHER = IMAGE + b" "


def entry(body: bytes, kind: str = MANIFEST_TYPES[0], os: str = "linux") -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest_of(body), "platform": {"os": os}}


def found(*entries: dict[str, Any]) -> Manifest:
    """The image behind an index in the archive's own."""
    index = json.dumps({"manifests": entries}).encode()
    small = {digest_of(body): body for body in (IMAGE, OTHER, index)}
    return push._platform_manifest({"manifests": [entry(index, INDEX_TYPES[0])]}, small)


def docker(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the engine's client is this."""
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_an_attestation_is_no_image() -> None:
    assert found(entry(IMAGE), entry(OTHER, os="unknown")).body == IMAGE


def test_two_platforms_are_not_one_image() -> None:
    with pytest.raises(RegistryError, match=r"not one image but 2: .* Fix: "):
        found(entry(IMAGE), entry(OTHER))


@pytest.mark.parametrize("gone", ["sha256:c", "sha256:l"])
def test_what_neither_the_engine_nor_the_registry_has(
    gone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"index.json": json.dumps({"manifests": [entry(IMAGE)]}).encode()}
    files |= {f"blobs/sha256/{digest_of(IMAGE).removeprefix('sha256:')}": IMAGE}
    with tarfile.open(tmp_path / "saved.tar", "w") as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    docker(tmp_path, f'[ "$1" = info ] && echo io.containerd.snapshotter || cat {tmp_path}/saved.tar', monkeypatch)
    monkeypatch.setattr(Client, "has_blob", lambda _, digest: digest != gone)
    monkeypatch.setattr(Client, "put_manifest", lambda *_: pytest.fail("it was named"))
    with pytest.raises(RegistryError, match=f"the engine has no {gone} any more"):
        push.push("x", Client(names.repository("registry.example/x")))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('echo \'[["Backing Filesystem", "extfs"]]\'', "its store is not containerd's"),
        ("echo no daemon >&2; exit 1", "no Docker engine answers: no daemon"),
    ],
)
def test_an_engine_that_keeps_no_image_as_it_is_pushed(
    script: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, script, monkeypatch)
    with pytest.raises(RegistryError, match=words):
        push.push("x", Client(names.repository("registry.example/x")))
