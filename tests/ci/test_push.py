"""What ci/push takes for an image, of what an engine may give; tests/ci/test_push_promote.py runs it on a real one."""

from __future__ import annotations

import json
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


def test_an_attestation_is_no_image() -> None:
    assert found(entry(IMAGE), entry(OTHER, os="unknown")).body == IMAGE


def test_two_platforms_are_not_one_image() -> None:
    with pytest.raises(RegistryError, match=r"not one image but 2: .* Fix: "):
        found(entry(IMAGE), entry(OTHER))


@pytest.mark.parametrize("gone", ["sha256:c", "sha256:l"])
def test_what_neither_the_engine_nor_the_registry_has(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "has_blob", lambda _, digest: digest != gone)
    with pytest.raises(RegistryError, match=f"the engine has no {gone} any more"):
        push._need(Client(names.repository("registry.example/x")), found(entry(IMAGE)), {digest_of(IMAGE): IMAGE})


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
    (tmp_path / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(RegistryError, match=words):
        push.push("x", Client(names.repository("registry.example/x")))
