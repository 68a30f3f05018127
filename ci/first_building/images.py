"""The pinned images as their registry has them, asked without a pull; then the bases, pulled."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from oci import names
from oci.client import Client
from oci.errors import Missing, RegistryError
from pinning import lockfile, upstream
from pinning.shape import PLATFORM, UNKNOWN
from pinning.verify import check_commit

from .running import run, watch
from .site import Pinned, Site
from .step import Found, NotSo

PRUNED = "pin a newer nightly (ci/pins update), or pull from a mirror that has it (docs/supply-chain/pins.md)"
REPIN = "correct ci/pins.toml and docker/Dockerfile's FROM by what the registry says, and find out how they came apart"


def digests(site: Site) -> Found:
    """Of the bases: each must be there by its digest, for the platform, with the commit's labels."""
    return _asked(site.bases())


def other_digests(site: Site) -> Found:
    """Of the images that are not built on."""
    return _asked(site.others())


def _asked(images: Iterable[Pinned]) -> Found:
    lines, wrong, data = [], [], {}
    for image in images:
        try:
            data[image.key] = ask(image)
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


def ask(image: Pinned) -> dict[str, Any]:
    """What the registry has by an image's digest and by its tag. Raises NotSo."""
    repository = Client(names.repository(image.name))
    try:
        found = upstream.find(repository, image.digest, PLATFORM)
        if image.key == "sglang":
            check_commit(found.labels, lockfile.get(lockfile.load(), "sglang.commit"))
        of_tag = repository.digest(image.tag)
    except Missing:
        raise NotSo(f"the registry no longer has {image.key}", image.by_digest, PRUNED) from None
    except RegistryError as error:
        raise NotSo.of(error) from None
    manifest = found.manifest.digest
    if image.manifest not in (UNKNOWN, manifest):
        raise NotSo(f"{image.key}'s manifest for {PLATFORM} is not the pinned one", manifest, REPIN)
    if of_tag not in (None, image.digest):
        raise NotSo(f"{image.key}'s tag and digest are not one image", f"{image.by_tag} is {of_tag}", REPIN)
    size = sum(size for _, size in found.layers)
    tag = f"{image.tag} is this digest" if of_tag else f"its tag {image.tag} is gone: mirror it now (ci/mirror)"
    known = "as pinned" if image.manifest == manifest else "ci/pins.toml has it as unknown"
    told = f'{size / 1e9:.2f} GB; {tag}; manifest = "{manifest}" ({known})'
    return {"digest": image.digest, "manifest": manifest, "bytes": size, "told": told}


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
