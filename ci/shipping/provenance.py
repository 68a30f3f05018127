"""ci/provenance IMAGE [--output FILE]: writes the SLSA provenance (v1 predicate, JSON) of the image that ci/image built
last: sources, commit, bases, wheels and compilers that went into it, by hash, and what builds it.

It is as true as the one who runs it: ci/sign puts a signature to it, and in the workflow that is the workflow's own.
Without --output it is build/provenance.json.

Exit codes: 1 no such image, or one that ci/image did not build; 64 bad arguments; 73 the file cannot be written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from command_line import Parser
from imaging.build import buildx
from imaging.errors import output
from pinning import lockfile

from . import built, files
from .built import Built
from .errors import in_one_line

BUILD_TYPE = "urn:kdtree:ci-image:1"
"""docs/supply-chain/what-ships.md says what its parameters mean."""
LOCAL = "urn:kdtree:builder:local"
_LABEL = "org.opencontainers.image."


def main() -> int:
    parser = Parser(prog="ci/provenance", description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--output", type=Path, default=files.PROVENANCE)
    options = parser.parse_args()
    return in_one_line(lambda: write(options.image, options.output))


def write(image: str, path: Path) -> int:
    image_built = built.look_at(image)
    found = files.write(path, lambda: predicate(image_built, lockfile.load(), engine()))
    count = len(found["buildDefinition"]["resolvedDependencies"])
    print(f"{path}: {count} things went in; built by {found['runDetails']['builder']['id']}")
    return 0


def engine() -> dict[str, str]:
    """Versions of the programs that build."""
    return {
        "docker": output("docker", "version", "--format={{.Server.Version}}"),
        "buildx": output(*buildx(), "version").split()[1],
    }


def predicate(image: Built, pins: dict[str, Any], programs: dict[str, str]) -> dict[str, Any]:
    """The predicate; the statement around it, with the image's digest as its subject, is cosign's."""
    labels, pinned = image.labels, pins["images"]["sglang"]
    on_the_pinned = labels[_LABEL + "base.digest"] == pinned["digest"]
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {
                "source": labels[_LABEL + "source"],
                "revision": labels[_LABEL + "revision"],
                "architectures": labels["kdtree.kernel.architectures"],
                "bases": "pinned" if on_the_pinned else "stand-in",
            },
            "internalParameters": {
                "image": image.id,
                "labels": dict(sorted(labels.items())),
                "compilers": {library["device_kind"]: library["compiler"] for library in image.libraries},
            },
            "resolvedDependencies": _dependencies(labels, pins, on_the_pinned),
        },
        "runDetails": {
            "builder": {"id": builder(), "version": programs},
            "metadata": {"invocationId": run_address()},
            "byproducts": [
                {"name": library["path"], "digest": {"sha256": library["sha256"]}} for library in image.libraries
            ],
        },
    }


def builder() -> str:
    """The workflow that runs this, by file and ref, as GitHub names it; else this machine."""
    workflow = os.environ.get("GITHUB_WORKFLOW_REF")
    return f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{workflow}" if workflow else LOCAL


def run_address() -> str:
    """The run of the workflow; empty elsewhere."""
    run, attempt = os.environ.get("GITHUB_RUN_ID"), os.environ.get("GITHUB_RUN_ATTEMPT", "1")
    repository = f"{os.environ.get('GITHUB_SERVER_URL')}/{os.environ.get('GITHUB_REPOSITORY')}"
    return f"{repository}/actions/runs/{run}/attempts/{attempt}" if run else ""


def _dependencies(labels: dict[str, str], pins: dict[str, Any], on_the_pinned: bool) -> list[dict[str, Any]]:
    """The sources, the bases, and each wheel that may be added, by hash. A stand-in's own making is not told."""
    revision = labels[_LABEL + "revision"]
    commit = {"gitCommit": revision.removesuffix("-dirty")}
    found: list[dict[str, Any]] = [{"uri": f"git+{labels[_LABEL + 'source']}@{revision}", "digest": commit}]
    found.append(_image(labels[_LABEL + "base.name"], labels[_LABEL + "base.digest"]))
    if on_the_pinned:
        compiler = pins["images"]["cuda-devel"]
        found.append(_image(f"docker.io/{compiler['name']}:{compiler['tag']}", compiler["digest"]))
    for wheel in lockfile.wheels(pins, "runtime-added"):
        uri = f"pkg:pypi/{wheel.normalized}@{wheel.version}"
        found += [{"uri": uri, "digest": {"sha256": digest}} for digest in wheel.sha256]
    return found


def _image(name: str, digest: str) -> dict[str, Any]:
    return {"uri": f"oci://{name}", "digest": {"sha256": digest.removeprefix("sha256:")}}
