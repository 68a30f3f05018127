"""What the image adds to its base, file by file, in each of its layers: how much, where, and nothing of the build."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.parse
import zipfile
from contextlib import suppress
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

import pytest

import standin
from engine_debs import DebsError, archive
from imaging import contents, layers, listing
from imaging.errors import ImageError
from imaging.layers import Entry, Layer, Saved
from pinning import lockfile
from shipping import files, licences

pytestmark = pytest.mark.docker

ROOT = Path(__file__).resolve().parents[2]
SITE = "/opt/sglang/lib/python3.11/site-packages"


@pytest.fixture(scope="module")
def saved(image: dict[str, Any]) -> Saved:
    return layers.save(image["id"])


def listed(image: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The last that a layer says of each path."""
    return {file["path"]: file for layer in image["added"] for file in layer["files"]}


def test_the_report_lists_what_the_layers_hold(image: dict[str, Any], saved: Saved) -> None:
    held = [entry for layer in saved.added for entry in layer.entries()]
    assert [file["path"] for layer in image["added"] for file in layer["files"]] == [entry.path for entry in held]
    assert image["added_bytes"] == sum(entry.bytes for entry in held) < contents.policy()["added-bytes"]
    library = listed(image)["/opt/kdtree/lib/libkdtree_verify_cuda.so"]
    assert (library["kind"], library["mode"]) == ("file", "0644")
    assert re.fullmatch("[0-9a-f]{64}", library["sha256"])
    assert listed(image)["/var/lib/kdtree"]["mode"] == "2777"
    assert listed(image)["/usr/local/bin/kdtree"]["kind"] == "link"


def test_the_files_are_those_in_a_container(client: Any, image: dict[str, Any]) -> None:
    wanted = {path: file for path, file in listed(image).items() if file["kind"] == "file"}
    program = "xargs -d '\\n' sha256sum <<< \"$PATHS\""
    told = client.containers.run(
        image["id"], ["-c", program], entrypoint="bash", environment={"PATHS": "\n".join(wanted)}, remove=True, user="0"
    )
    found = {path: digest for digest, path in (line.split(maxsplit=1) for line in told.decode().splitlines())}
    assert found == {path: file["sha256"] for path, file in wanted.items()}


def test_the_page_s_table_is_this_image_s(image: dict[str, Any]) -> None:
    """Part by part; sizes within a fifth, for a page is not written anew with each line of code."""
    text = (ROOT / "docs" / "supply-chain" / "what-ships.md").read_text()
    rows = re.findall(r"^\| (.+) \| \d+ \| ([\d,]+) \|$", text, re.M)
    page = {part: int(size.replace(",", "")) for part, size in rows}
    assert page.pop("all of it") == pytest.approx(image["added_bytes"], rel=0.2)
    assert page == {part: pytest.approx(size, rel=0.2, abs=200) for part, (_, size) in listing.parts(image).items()}


def test_the_list_has_every_file(image: dict[str, Any]) -> None:
    lines = [line for line in listing.files(image) if not line.startswith("# ")]
    assert [line.split()[3] for line in lines] == [file["path"] for layer in image["added"] for file in layer["files"]]


LIMITS: dict[str, Any] = {
    "added-bytes": 1000,
    "places": ["/opt/kdtree/*", "/opt/lib/python3.*/site-packages/ours/*"],
    "opened": ["/root/.cache/*"],
    "opened-bytes": 10,
    "never": ["*/pip/*", "*.cubin"],
}


def entry(path: str, kind: str = "file", size: int = 1) -> Entry:
    return Entry(path, kind, size, 0o644, "")


@pytest.mark.parametrize(
    "allowed",
    [
        entry("/opt/kdtree/lib/x.so", size=1000),
        entry("/opt", "folder"),
        entry("/opt/lib/python3.12", "folder"),
        entry("/opt/lib/python3.12/site-packages/ours/a.py"),
        entry("/root/.cache/some/new", "folder"),
        entry("/root/.cache/some/.lock", size=10),
    ],
)
def test_what_may_be_added(allowed: Entry) -> None:
    contents.check_added([allowed], LIMITS)


@pytest.mark.parametrize(
    ("stray", "words"),
    [
        (entry("/opt/kdtree/lib/x.so", size=1001), r"1,001 bytes, of 1,000 at most; /opt/kdtree/lib/x.so has 1,001\. "),
        (entry("/opt/other"), r"file /opt/other\. "),
        (entry("/etc", "folder"), r"folder /etc\. "),
        (entry("/opt/kdtree/lib", "removed"), r"removed /opt/kdtree/lib\. "),
        (entry("/opt/lib/python3.12/site-packages/theirs/a.py"), "theirs"),
        (entry("/root/.cache/some/.lock", size=11), "lock"),
        (entry("/root/.cache/pip/http-v2/a"), "pip"),
        (entry("/opt/kdtree/lib/verify.cubin"), "cubin"),
        (entry("/root/.bash_history"), "bash_history"),
    ],
)
def test_what_may_not(stray: Entry, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        contents.check_added([stray], LIMITS)


def secrets_of_this_machine() -> dict[str, str]:
    """What the machine that built it knows and the image must not: addresses of mirrors, folders, names."""
    found = {"checkout": f"{ROOT}/"} if len(ROOT.parts) > 2 else {}
    with suppress(DebsError):
        found["Debian's mirror"] = urllib.parse.urlsplit(archive()[0]).netloc
    told = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    for number, address in enumerate(re.findall(r"(?:https?|file)://[^\s'\"\\]+", told)):
        parts = urllib.parse.urlsplit(address)
        found[f"pip's index {number}"] = parts.netloc or parts.path
    for variable in ("KDTREE_TORCH_INDEX", "PIP_INDEX_URL", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"):
        if value := os.environ.get(variable):
            found[variable] = urllib.parse.urlsplit(value).netloc or value
    return {what: text for what, text in found.items() if len(text) > 3 and not said_by_a_wheel(text.encode())}


def said_by_a_wheel(text: bytes) -> bool:
    """Whether what is installed says it itself, as packages do of the public index: then no build left it."""
    for wheel in (standin.BUILD / "parts" / "image").glob("*.whl"):
        with zipfile.ZipFile(wheel) as opened:
            if any(text in opened.read(name) for name in opened.namelist()):
                return True
    return False


# What a build leaves behind in files: folders of mounts, certificates, keys. Names are ci/shipping.toml's.
OF_A_BUILD = re.compile(
    rb"/mnt/(?:ours|wheels|docker|ci|source)\b|/run/secrets|/src/(?:patch|kernel)|/tmp/pip-|-----BEGIN CERTIFICATE-----"
    rb"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def leaks(layer: Layer, texts: dict[str, str]) -> list[str]:
    """What a layer holds of the build, or of the machine, by file."""
    found = []
    for member, content in layer.contents():
        found += [f"{member.name}: {what}" for what, text in texts.items() if text.encode() in content]
        found += [f"{member.name}: {match[0]!r}" for match in [OF_A_BUILD.search(content)] if match]
    return found


def test_nothing_of_the_build_is_in_a_layer(saved: Saved) -> None:
    texts = secrets_of_this_machine()
    assert [found for layer in saved.added for found in leaks(layer, texts)] == []


def layer(name: str, content: bytes) -> Layer:
    """A layer of one file."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as made:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
        return Layer("RUN", "sha256:0", 0, buffer.getvalue())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("etc/apt/sources.list", b"deb https://mirror.example/debian bookworm main"),
        ("a.dist-info/direct_url.json", b'{"url": "file:///mnt/ours/a.whl"}'),
        ("opt/kdtree/x.crt", b"-----BEGIN CERTIFICATE-----"),
    ],
)
def test_a_leak_is_seen(name: str, content: bytes) -> None:
    assert leaks(layer(name, content), {"mirror": "mirror.example"})


def test_what_wheels_say_is_no_leak(image: dict[str, Any]) -> None:
    assert said_by_a_wheel(b"Name: cuda-bindings")
    assert not said_by_a_wheel(b"mirror.example")


def test_nothing_of_the_machine_is_in_the_configuration(saved: Saved) -> None:
    """Labels, environment and history: what `docker inspect` and `docker history` show."""
    told = json.dumps(saved.config)
    assert [what for what, text in secrets_of_this_machine().items() if text in told] == []
    assert not re.search(r"(?i)(?:token|password|secret)=\S", told)


def test_of_the_caches_only_rights_change(image: dict[str, Any]) -> None:
    changed = [file for path, file in listed(image).items() if path.startswith("/root/")]
    assert {file["kind"] for file in changed} <= {"folder", "file"}
    for file in changed:
        assert file["kind"] == "folder" or file["mode"] == "0666", file
        assert file["bytes"] <= contents.policy()["opened-bytes"]


def test_an_image_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"^image kdtree:no-such cannot be read: .*Fix: ") as refused:
        layers.save("kdtree:no-such")
    assert "\n" not in str(refused.value)


def test_a_layer_that_is_large_is_not_read(tmp_path: Path) -> None:
    """Not into memory, and not passed over: it is the reason."""
    name = "kdtree-large:1"
    (tmp_path / "large").write_bytes(os.urandom(layers.LARGEST_BLOB + 1))
    (tmp_path / "Dockerfile").write_text(f"FROM scratch\nCOPY large {layers.FIRST_STEP}\n")
    build = ["docker-buildx", "build", "--load", "--provenance=false", f"--tag={name}", tmp_path]
    subprocess.run(build, check=True, capture_output=True)
    try:
        with pytest.raises(ImageError, match=r"adds too much to its base: 33,5\d\d,\d+ bytes by COPY large"):
            layers.save(name)
    finally:
        subprocess.run(["docker", "image", "rm", name], capture_output=True)


def test_an_image_without_our_steps(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "other.tar", "w") as made:
        made.addfile(tarfile.TarInfo("file"))
    name = "kdtree-other:1"
    subprocess.run(["docker", "import", tmp_path / "other.tar", name], check=True, capture_output=True)
    try:
        with pytest.raises(ImageError, match="does not tell our steps from its base's"):
            layers.save(name)
    finally:
        subprocess.run(["docker", "image", "rm", name], capture_output=True)


# ---- licences


def test_licence_texts_are_in_the_image(client: Any, image: dict[str, Any]) -> None:
    def text(path: str) -> str:
        told = client.containers.run(image["id"], [path], entrypoint="cat", remove=True)
        return str(told.decode())

    assert text("/opt/kdtree/licenses/LICENSE") == (ROOT / "LICENSE").read_text()
    assert text("/opt/kdtree/licenses/NOTICE") == (ROOT / "docker" / "NOTICE").read_text()
    assert "MIT" in text("/opt/kdtree/licenses/tini") or "Expat" in text("/opt/kdtree/licenses/tini")


def test_the_label_names_the_licence_of_everything_that_is_added(image: dict[str, Any]) -> None:
    assert image["labels"]["org.opencontainers.image.licenses"] == licences.label(files.policy("licences"))


# Metadata of before SPDX expressions, as the wheels of these names have it.
OLD_WORDS = {"BSD-3-Clause": "BSD", "Apache-2.0": "Apache-2.0"}


@pytest.mark.parametrize("wheel", lockfile.wheels(lockfile.load(), "runtime-added"), ids=lambda wheel: wheel.name)
def test_each_wheel_s_licence_is_known_allowed_and_what_it_says_itself(wheel: lockfile.Wheel) -> None:
    expression = licences.of(wheel.normalized, files.policy("licences"))
    assert wheel.normalized in (ROOT / "docker" / "NOTICE").read_text()
    said = Distribution.from_name(wheel.normalized).metadata
    told = said.get("License-Expression") or said.get("License")
    assert told in (expression, OLD_WORDS.get(expression))


def test_a_licence_that_is_unknown_or_not_allowed_is_refused() -> None:
    policy = {"of": {"a": "MIT AND GPL-3.0-only", "b": "MIT"}, "allowed": ["MIT"]}
    assert licences.of("b", policy) == "MIT"
    with pytest.raises(RuntimeError, match=r"licence GPL-3\.0-only of a is not allowed"):
        licences.of("a", policy)
    with pytest.raises(RuntimeError, match="no licence is known of what the image adds: c"):
        licences.of("c", policy)
