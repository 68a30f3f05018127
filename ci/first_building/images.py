"""The pinned images as their registry has them, asked by buildx: with the client's credentials, without a pull."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable
from typing import Any

from imaging.contents import check_labels
from imaging.errors import ImageError
from pinning import lockfile

from .running import Ran, run, watch
from .site import PLATFORM, Pinned, Site
from .step import Found, NotSo

PRUNED = "mirror an image that has it, or pin a newer nightly (docs/supply-chain/pins.md)"
REPIN = "correct ci/pins.toml and docker/Dockerfile's FROM by what the registry says, and find out how they came apart"


def digests(site: Site) -> Found:
    """Of the bases: each must be there by its digest, for the platform, with the commit's labels."""
    return _asked(site, site.bases())


def other_digests(site: Site) -> Found:
    """Of the images that are not built on."""
    return _asked(site, site.others())


def _asked(site: Site, images: Iterable[Pinned]) -> Found:
    program = site.data["buildx"]["program"]
    lines, wrong, data = [], [], {}
    for image in images:
        try:
            data[image.key] = ask(program, image)
            lines.append(f"ok      {image.key}: {data[image.key]['told']}")
        except NotSo as error:
            wrong.append(error)
            lines.append(f"not so  {image.key}: {error}")
    detail = "\n".join(lines)
    if wrong:
        first = wrong[0]
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise NotSo(first.what, first.found + more, first.fix, detail, {"images": data})
    return Found(f"{len(lines)} as pinned", detail, {"images": data})


def ask(program: list[str], image: Pinned) -> dict[str, Any]:
    """What the registry has by an image's digest and by its tag. Raises NotSo."""
    raw = _raw(program, image, image.by_digest)
    found = f"sha256:{hashlib.sha256(raw).hexdigest()}"
    if found != image.digest:
        raise NotSo(f"{image.by_digest} is not what it is asked for", f"its manifest is {found}", "another registry")
    document = json.loads(raw)
    manifest = image.digest
    if "manifests" in document:
        manifest = _for_platform(image, document)
        document = json.loads(_raw(program, image, f"{image.name}@{manifest}"))
    if image.manifest not in ("unknown", manifest):
        raise NotSo(f"{image.key}'s manifest for {PLATFORM} is not the pinned one", manifest, REPIN)
    config = _config(program, image)
    if image.key == "sglang":
        try:
            check_labels(config.get("Labels") or {})
        except ImageError as error:
            raise NotSo.of(error) from None
    tag = _tag(program, image)
    return {
        "digest": found,
        "manifest": manifest,
        "bytes": sum(layer["size"] for layer in document["layers"]),
        "layers": len(document["layers"]),
        "told": f"{sum(layer['size'] for layer in document['layers']) / 1e9:.2f} GB; {tag}; manifest = "
        f'"{manifest}"' + (", as pinned" if image.manifest == manifest else " (ci/pins.toml has it as unknown)"),
    }


def _raw(program: list[str], image: Pinned, reference: str) -> bytes:
    command = [*program, "imagetools", "inspect", "--raw", reference]
    try:
        # As bytes, for they are hashed.
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        raise NotSo("the registry does not answer", f"{reference}: nothing in 120 s", "the network") from None
    if done.returncode != 0:
        raise _refused(image, reference, Ran(done.returncode, "", done.stderr.decode(errors="replace")))
    return done.stdout


def _refused(image: Pinned, reference: str, asked: Ran) -> NotSo:
    said = asked.last.removeprefix("ERROR: ")
    if "not found" in said or "manifest unknown" in said:
        return NotSo(f"the registry no longer has {image.key}", f"{reference}: {said}", PRUNED)
    if "toomanyrequests" in said.lower() or "429" in said:
        return NotSo("the registry limits anonymous pulls", said, "docker login, or ask again later")
    return NotSo(f"the registry does not give {image.key}", f"{reference}: {said}", "the network, or docker login")


def _for_platform(image: Pinned, index: dict[str, Any]) -> str:
    for each in index["manifests"]:
        platform = each.get("platform") or {}
        if f"{platform.get('os')}/{platform.get('architecture')}" == PLATFORM:
            return str(each["digest"])
    has = ", ".join(f"{each['platform']['os']}/{each['platform']['architecture']}" for each in index["manifests"])
    raise NotSo(f"{image.key} has no {PLATFORM}", has or "nothing", REPIN)


def _config(program: list[str], image: Pinned) -> dict[str, Any]:
    asked = run(*program, "imagetools", "inspect", image.by_digest, "--format={{json .Image}}")
    if asked.code != 0:
        raise _refused(image, image.by_digest, asked)
    described = json.loads(asked.output)
    described = described.get(PLATFORM, described)  # of an index, one a platform
    found = f"{described.get('os')}/{described.get('architecture')}"
    if found != PLATFORM:
        raise NotSo(f"{image.key} has no {PLATFORM}", found, REPIN)
    config: dict[str, Any] = described.get("config") or {}
    return config


def _tag(program: list[str], image: Pinned) -> str:
    """Where the tag leads, which matters to people alone: builds go by the digest. Raises NotSo if elsewhere."""
    asked = run(*program, "imagetools", "inspect", image.by_tag, "--format={{json .Manifest}}")
    if asked.code != 0:
        gone = "not found" in asked.error
        return f"its tag {image.tag} is gone: mirror it now" if gone else f"its tag was not told: {asked.last}"
    found = json.loads(asked.output)["digest"]
    if found != image.digest:
        raise NotSo(f"{image.key}'s tag and digest are not one image", f"{image.by_tag} is {found}", REPIN)
    return f"{image.tag} is this digest"


def pull(site: Site) -> Found:
    """The bases, by digest."""
    lines = []
    for image in site.bases():
        pulled = watch("docker", "pull", f"--platform={PLATFORM}", image.by_digest)
        if pulled.code != 0:
            what = f"{image.key} cannot be pulled"
            raise NotSo(what, pulled.last, "what that line says; what was pulled is kept", pulled.output)
        (told,) = json.loads(run("docker", "image", "inspect", image.by_digest).output)
        if image.by_digest not in (told.get("RepoDigests") or ()):
            raise NotSo(f"{image.key} was pulled and is another", ", ".join(told.get("RepoDigests") or ()), REPIN)
        lines.append(f"{image.key}: {told['Size'] / 1e9:.2f} GB, {told['Os']}/{told['Architecture']}")
    commit = lockfile.get(lockfile.load(), "sglang.commit")
    return Found(f"{len(lines)} images, SGLang {commit}", "\n".join(lines))
