"""SBOM, provenance, signature and their check: the built image in a registry on loopback, signed by a throw-away key.

Cosign and Syft are the real ones. What is proven of a failure is the exit code, the one line, and that nothing is left.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import registry_server
from containers import ROOT, wait_until
from oci import names
from oci.client import Client, Manifest
from registry_server import Registry
from shipping import cosign, sign, spdx
from shipping.errors import ShippingError

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(registry_server.binary() is None, reason="no docker-registry (ci/registry fetches it)"),
]

NOBODY = "127.0.0.1:9/kdtree@sha256:" + "0" * 64


@dataclass(frozen=True)
class Told:
    code: int
    out: str
    line: str
    """The last of stderr."""


def ci(command: str, *arguments: str | Path, **environment: str) -> Told:
    """Runs one of the project's commands as a user does."""
    done = subprocess.run(
        [ROOT / "ci" / command, *arguments], capture_output=True, text=True, env=os.environ | environment
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Told(done.returncode, done.stdout, (done.stderr.strip().splitlines() or [""])[-1])


def refused(told: Told, code: int, *words: str) -> None:
    assert (told.code, told.line.startswith("kdtree: ")) == (code, True), told
    assert "Fix: " in told.line, told
    for word in words:
        assert word in told.line, told


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Removed at the end: the registry in it holds all of the base."""
    made = tmp_path_factory.mktemp("shipping")
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def program() -> str:
    try:
        return cosign.program()
    except ShippingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def sbom(image: dict[str, Any], folder: Path) -> Path:
    told = ci("sbom", image["id"], "--output", folder / "sbom.json")
    assert told.code == 0, told
    return folder / "sbom.json"


@pytest.fixture(scope="module")
def provenance(image: dict[str, Any], folder: Path) -> Path:
    told = ci("provenance", image["id"], "--output", folder / "provenance.json")
    assert told.code == 0, told
    return folder / "provenance.json"


@pytest.fixture(scope="module")
def registry(folder: Path) -> Iterator[Registry]:
    with registry_server.running(folder / "registry") as running:
        yield running


@pytest.fixture(scope="module")
def pushed(registry: Registry, image: dict[str, Any]) -> str:
    told = ci("push", image["id"], f"{registry.address}/kdtree")
    assert told.code == 0, told
    return told.out.strip()


@pytest.fixture(scope="module")
def keys(program: str, folder: Path) -> Callable[[str], tuple[Path, Path]]:
    """Makes pairs of keys: private, public."""

    def pair(name: str) -> tuple[Path, Path]:
        made = folder / name
        if not made.exists():
            made.mkdir()
            environment = os.environ | {"COSIGN_PASSWORD": ""}
            subprocess.run([program, "generate-key-pair"], cwd=made, env=environment, check=True, capture_output=True)
        return made / "cosign.key", made / "cosign.pub"

    return pair


Keys = Callable[[str], tuple[Path, Path]]


@pytest.fixture(scope="module")
def signed(pushed: str, keys: Keys, sbom: Path, provenance: Path) -> str:
    private, public = keys("ours")
    refused(ci("verify", pushed, "--key", public), 1, "no signatures found")
    told = ci("sign", pushed, "--key", private, "--sbom", sbom, "--provenance", provenance)
    assert told.code == 0, told
    return pushed


# ---- what is written


def test_the_sbom_names_what_is_added(sbom: Path, image: dict[str, Any]) -> None:
    document = json.loads(sbom.read_text())
    ours = spdx.ours(document)
    assert set(ours) == {
        *("kdtree-verify", "nvidia-ml-py", "tini"),
        *("libkdtree_verify_cuda", "libkdtree_verify_host", "cuda-runtime"),
    }
    listed = {file["path"]: file["sha256"] for layer in image["added"] for file in layer["files"]}
    library = ours["libkdtree_verify_cuda"]
    assert library["checksums"][0]["checksumValue"] == listed[library["packageFileName"]]
    assert image["labels"]["kdtree.kernel.source-hash"] in library["sourceInfo"]
    assert {name: package["licenseConcluded"] for name, package in ours.items()}["tini"] == "LGPL-2.1-or-later AND MIT"
    links = {
        (link["spdxElementId"], link["relationshipType"], link["relatedSpdxElement"])
        for link in document["relationships"]
    }
    assert (library["SPDXID"], "STATIC_LINK", ours["cuda-runtime"]["SPDXID"]) in links
    assert (spdx.ROOT_ID, "DESCENDANT_OF", spdx.BASE_ID) in links
    theirs = {package["name"] for package in document["packages"]} - set(ours)
    assert {"torch", "sglang", "libc6", image["labels"]["org.opencontainers.image.base.name"]} <= theirs


def test_the_sbom_is_spdx(sbom: Path) -> None:
    """By the SPDX project's own library, in a process of its own, for its requirements are not this project's."""
    tools = ROOT / "build" / "spdx-tools"
    if not tools.exists():
        subprocess.run([ROOT / "ci" / "wheelhouse", "--into", tools, "spdx"], check=True)
    program = (
        "import sys; from spdx_tools.spdx.parser.parse_anything import parse_file;"
        "from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document as validate;"
        "print(*(message.validation_message for message in validate(parse_file(sys.argv[1]))), sep='\\n')"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tools)}

    def complaints(path: Path) -> str:
        done = subprocess.run(["python3", "-c", program, path], env=environment, capture_output=True, text=True)
        return done.stdout.strip() + done.stderr.strip()

    assert complaints(sbom) == ""
    document = json.loads(sbom.read_text())
    document["relationships"][0]["relatedSpdxElement"] = "SPDXRef-nothing"
    broken = sbom.with_name("broken.spdx.json")
    broken.write_text(json.dumps(document))
    assert "SPDXRef-nothing" in complaints(broken)


def test_the_provenance_tells_what_went_in(provenance: Path, image: dict[str, Any]) -> None:
    predicate = json.loads(provenance.read_text())
    definition, labels = predicate["buildDefinition"], image["labels"]
    assert definition["externalParameters"]["bases"] == "stand-in"
    assert definition["externalParameters"]["revision"] == labels["org.opencontainers.image.revision"]
    by_uri = {each["uri"]: each["digest"] for each in definition["resolvedDependencies"]}
    base = labels["org.opencontainers.image.base.digest"].removeprefix("sha256:")
    assert by_uri[f"oci://{labels['org.opencontainers.image.base.name']}"] == {"sha256": base}
    assert any(uri.startswith("pkg:pypi/nvidia-ml-py@") for uri in by_uri)
    listed = {file["path"]: file["sha256"] for layer in image["added"] for file in layer["files"]}
    for product in predicate["runDetails"]["byproducts"]:
        assert listed[product["name"]] == product["digest"]["sha256"]


# ---- who is believed


def test_what_is_signed_is_verified(signed: str, keys: Keys, image: dict[str, Any]) -> None:
    repository, digest = names.by_digest(signed)
    told = ci("verify", f"{repository.name}:1.2.3-abc@{digest}", "--key", keys("ours")[1])  # as ci/promote prints it
    assert told.code == 0, told
    lines = told.out.splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["signature", "SBOM", "provenance"]
    assert f"ok  label       kdtree.sglang.commit={image['labels']['kdtree.sglang.commit']}" in lines


def test_another_key_s_signature_does_not_count(signed: str, keys: Keys) -> None:
    refused(ci("verify", signed, "--key", keys("other")[1]), 1, "do not run it")


def test_another_image_has_no_signature(signed: str, keys: Keys) -> None:
    """The same layers under another configuration: what somebody who can write to the registry may put there."""
    repository, digest = names.by_digest(signed)
    client = Client(repository)
    manifest = client.manifest(digest)
    other = Manifest(manifest.media_type, manifest.body + b" ")
    client.put_manifest(other, other.digest)
    refused(ci("verify", f"{repository.name}@{other.digest}", "--key", keys("ours")[1]), 1, "no signatures found")


def attach(image: str, key: Path, kind: str, path: Path) -> None:
    """As one who has the key, past ci/sign's own check."""
    cosign.run(
        image,
        "attest",
        "--yes",
        "--replace",
        f"--type={kind}",
        f"--predicate={path}",
        f"--key={key}",
        "--tlog-upload=false",
    )


@pytest.mark.parametrize("kind", [cosign.SPDX, cosign.SLSA])
def test_documents_of_another_image_do_not_count(
    signed: str, keys: Keys, sbom: Path, provenance: Path, kind: str, tmp_path: Path
) -> None:
    """Neither signed by another key, nor by ours; and what is right again is believed again."""
    right = sbom if kind == cosign.SPDX else provenance
    wrong = tmp_path / "wrong.json"
    wrong.write_text(right.read_text().replace(names.by_digest(signed)[1].removeprefix("sha256:"), "0" * 64))
    ours, public = keys("ours")
    try:
        attach(signed, keys("other")[0], kind, right)
        refused(ci("verify", signed, "--key", public), 1, "verify-attestation")
        attach(signed, ours, kind, wrong)
        refused(ci("verify", signed, "--key", public), 1, f"the {kind} that is attested of", "is another image's")
    finally:
        attach(signed, ours, kind, right)
    assert ci("verify", signed, "--key", public).code == 0


def test_labels_that_the_provenance_does_not_tell(
    signed: str, keys: Keys, provenance: Path, sbom: Path, tmp_path: Path
) -> None:
    private, public = keys("ours")
    predicate = json.loads(provenance.read_text())
    predicate["buildDefinition"]["internalParameters"]["labels"]["kdtree.sglang.commit"] = "0000000"
    changed = tmp_path / "provenance.json"
    changed.write_text(json.dumps(predicate))
    try:
        assert ci("sign", signed, "--key", private, "--sbom", sbom, "--provenance", changed).code == 0
        refused(ci("verify", signed, "--key", public), 1, "label kdtree.sglang.commit", "the provenance says 0000000")
    finally:
        assert ci("sign", signed, "--key", private, "--sbom", sbom, "--provenance", provenance).code == 0


def test_a_workflow_s_signature_is_not_taken_from_a_key(signed: str) -> None:
    """Keyless, Sigstore has to be asked who signed; where it does not answer, nothing is known."""
    told = ci("verify", signed, "--source", "https://github.com/owner/repository", HTTPS_PROXY="http://127.0.0.1:9")
    refused(told, 69, "Sigstore does not answer")


# ---- failures


def test_documents_of_another_image_are_not_signed(
    pushed: str, keys: Keys, sbom: Path, provenance: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "sbom.json"
    wrong.write_text(sbom.read_text().replace(names.by_digest(pushed)[1].removeprefix("sha256:"), "0" * 64))
    told = ci("sign", pushed, "--key", keys("ours")[0], "--sbom", wrong, "--provenance", provenance)
    refused(told, 1, "a document of another image")
    told = ci("sign", pushed, "--key", keys("ours")[0], "--sbom", tmp_path / "none", "--provenance", provenance)
    refused(told, 1, "none", "ci/sbom")


@pytest.mark.parametrize("command", ["sign", "verify"])
@pytest.mark.parametrize(
    ("image", "code", "words"),
    [
        ("127.0.0.1:9/kdtree:latest", 64, "no image by digest"),
        (NOBODY, 69, "the registry does not answer"),
    ],
)
def test_no_image_no_registry(
    command: str, image: str, code: int, words: str, program: str, keys: Keys, tmp_path: Path
) -> None:
    zeros = "sha256:" + "0" * 64
    sbom = {"packages": [{"SPDXID": spdx.ROOT_ID, "checksums": [{"checksumValue": "0" * 64}]}]}
    provenance = {"buildDefinition": {"internalParameters": {"image": zeros}}}
    (tmp_path / "s").write_text(json.dumps(sbom))
    (tmp_path / "p").write_text(json.dumps(provenance))
    documents = ["--sbom", tmp_path / "s", "--provenance", tmp_path / "p"] if command == "sign" else []
    key = keys("ours")[command == "verify"]
    refused(ci(command, image, "--key", key, *documents), code, words)


@pytest.mark.parametrize("command", ["sign", "verify"])
def test_nobody_to_sign_or_to_believe(command: str, pushed: str) -> None:
    refused(ci(command, pushed, "--key", "/no/such.key"), 64, "no key: /no/such.key")
    if command == "sign":
        refused(ci("sign", pushed), 64, "nobody to sign")
    else:
        refused(ci("verify", pushed, "--source", "https://github.com/.*"), 64, "no repository")


def test_a_registry_that_takes_nothing(signed: str, keys: Keys, folder: Path, sbom: Path, provenance: Path) -> None:
    private, public = keys("ours")
    digest = names.by_digest(signed)[1]
    with registry_server.running(folder / "registry", read_only=True) as other:
        image = f"{other.address}/kdtree@{digest}"
        assert ci("verify", image, "--key", public).code == 0  # signatures go with the image, not with its registry
        told = ci("sign", image, "--key", private, "--sbom", sbom, "--provenance", provenance)
        refused(told, 1, "cosign attest")


def test_a_registry_that_is_killed_half_way(
    signed: str, keys: Keys, folder: Path, sbom: Path, provenance: Path
) -> None:
    """What was signed before is whole, and to sign again is all there is to do."""
    private, public = keys("ours")
    digest = names.by_digest(signed)[1]
    with registry_server.running(folder / "registry") as other:
        image = f"{other.address}/kdtree@{digest}"
        command = [ROOT / "ci" / "sign", image, "--key", private, "--sbom", sbom, "--provenance", provenance]
        signing = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until(lambda: "POST /v2/kdtree/blobs/uploads/" in other.log.read_text(), 60, other.log.read_text)
    out, said = signing.communicate(timeout=120)
    refused(Told(signing.returncode, out, said.strip()), 69, "the registry does not answer")
    refused(ci("verify", image, "--key", public), 69, "the registry does not answer")
    assert ci("verify", signed, "--key", public).code == 0


@pytest.mark.parametrize("command", ["sbom", "provenance"])
def test_no_document_without_its_image(command: str, image: dict[str, Any], tmp_path: Path) -> None:
    refused(ci(command, "kdtree:no-such", "--output", tmp_path / "x"), 1, "no such image: kdtree:no-such")
    refused(ci(command, image["base"], "--output", tmp_path / "x"), 1, "not the image that was built last")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["sbom", "provenance"])
def test_a_document_that_cannot_be_written_leaves_nothing(command: str, image: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    refused(ci(command, image["id"], "--output", tmp_path / "x"), 73, "cannot be written")
    assert [path.name for path in tmp_path.rglob("*")] == ["x"]


def test_interrupted_it_leaves_nothing(client: Any, image: dict[str, Any], tmp_path: Path) -> None:
    command = [ROOT / "ci" / "sbom", image["id"], "--output", tmp_path / "x"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: bool(client.containers.list(filters={"ancestor": image["id"]})), 60, lambda: "no container")
    running.terminate()
    out, said = running.communicate(timeout=60)
    refused(Told(running.returncode, out, said.strip()), 143, "interrupted by SIGTERM")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_does_not_answer(image: dict[str, Any], tmp_path: Path) -> None:
    told = ci("sbom", image["id"], "--output", tmp_path / "x", DOCKER_HOST="tcp://127.0.0.1:9")
    refused(told, 1, "no such image")


def test_digests_are_read_from_documents_that_have_none() -> None:
    assert sign.sbom_digest({}) == sign.provenance_digest({}) == ""
