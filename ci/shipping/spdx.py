"""The image's SPDX document: what Syft found, and what it cannot see.

Syft finds packages by what package managers leave. Of ours that is the wheels, and tini by the record that the image
carries for it. A shared library that we compiled leaves nothing: it is added here from what it says of itself, with
what is linked into it. Whatever depends on when or where the document was made is taken from the image instead: the
same image gives the same document.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from . import licences
from .built import Built
from .errors import ShippingError

OURS = "Added by KDTree to its base."
"""The comment of each package that is ours; ci/scan and ci/verify look for it."""
ROOT_ID, BASE_ID = "SPDXRef-Image", "SPDXRef-BaseImage"
_SPACE = "https://spdx.org/spdxdocs"
_LABEL = "org.opencontainers.image."


def document(found: dict[str, Any], built: Built, policy: dict[str, Any], cuda_runtime: str) -> dict[str, Any]:
    """The document.

    Args:
        found: Syft's.
        built: The image.
        policy: [licences] of ci/shipping.toml.
        cuda_runtime: Version of what is linked into the CUDA library.

    Raises:
        ShippingError: An addition's licence is not known or allowed, or something that is added was not found.
    """
    (described,) = (
        link["relatedSpdxElement"] for link in found["relationships"] if link["relationshipType"] == "DESCRIBES"
    )
    packages = [_package(package, built, policy) for package in found["packages"] if package["SPDXID"] != described]
    _must_have(packages)
    compiled, within = _libraries(built, policy, cuda_runtime)
    known = {package["SPDXID"] for package in packages}  # Syft's files are not: they are named without their hashes
    links = [link for link in found["relationships"] if {link["spdxElementId"], link["relatedSpdxElement"]} <= known]
    links += [_link(ROOT_ID, "CONTAINS", package["SPDXID"]) for package in [*packages, *compiled]]
    links += [*within, _link("SPDXRef-DOCUMENT", "DESCRIBES", ROOT_ID), _link(ROOT_ID, "DESCENDANT_OF", BASE_ID)]
    digest = built.id.removeprefix("sha256:")
    tools = [creator for creator in found["creationInfo"]["creators"] if creator.startswith("Tool: ")]
    return {
        "spdxVersion": found["spdxVersion"],
        "dataLicense": found["dataLicense"],
        "SPDXID": found["SPDXID"],
        "name": f"kdtree-{built.labels[_LABEL + 'version']}",
        "documentNamespace": f"{_SPACE}/kdtree-{digest}",
        "creationInfo": {
            "licenseListVersion": found["creationInfo"]["licenseListVersion"],
            "creators": [*tools, "Tool: kdtree-ci-sbom"],
            "created": re.sub(r"\.\d+", "", built.created),
        },
        "packages": sorted([*packages, *compiled, *_images(built)], key=lambda package: package["SPDXID"]),
        "hasExtractedLicensingInfos": _texts(found, policy),
        "relationships": sorted(links, key=lambda link: [link[key] for key in sorted(link)]),
    }


def ours(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The packages of a document that we added, by name."""
    return {package["name"]: package for package in document["packages"] if package.get("comment") == OURS}


def _package(package: dict[str, Any], built: Built, policy: dict[str, Any]) -> dict[str, Any]:
    """A package of Syft's, marked and with its licence concluded where a file of ours is what tells of it."""
    told_by = re.split(r", |: ", package.get("sourceInfo", ""))
    package = package | {"filesAnalyzed": False}
    package.pop("packageVerificationCode", None)
    package["externalRefs"] = _references(package.get("externalRefs", []))
    if any(f"/{path}" in built.added for path in told_by):
        package |= {"comment": OURS, "licenseConcluded": licences.of(package["name"], policy)}
    return package


def _references(found: list[dict[str, str]]) -> list[dict[str, str]]:
    """Without Syft's dozens of guesses at a CPE, nine tenths of the document, where a package URL says what it is."""
    exact = any(each["referenceLocator"].startswith(("pkg:pypi/", "pkg:deb/")) for each in found)
    return [each for each in found if not (exact and each["referenceType"] == "cpe23Type")]


def _must_have(packages: list[dict[str, Any]]) -> None:
    found = {package["name"] for package in packages if package.get("comment") == OURS}
    if missing := {"kdtree-verify", "tini"} - found:
        raise ShippingError(f"syft does not find what the image adds: {', '.join(sorted(missing))}. Fix: ci/shipping/")


def _libraries(built: Built, policy: dict[str, Any], cuda_runtime: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """The kernel libraries and what is linked into them: packages, and the links between them."""
    packages, links = [], []
    for library in built.libraries:
        name = PurePosixPath(library["path"]).stem
        if built.added.get(library["path"]) != library["sha256"]:
            raise ShippingError(f"{library['path']} is not the one that was added. Fix: build the image anew: ci/image")
        archs = f" for {', '.join(library['archs'])}" if library["archs"] else ""
        packages.append(
            _described(f"SPDXRef-Package-{name.replace('_', '-')}", name, library["version"], policy)
            | {
                "packageFileName": library["path"],
                "checksums": [_sha256(library["sha256"])],
                "sourceInfo": f"compiled{archs} by {library['compiler']} from sources of hash {library['source_hash']}",
                "primaryPackagePurpose": "LIBRARY",
            }
        )
        if library["device_kind"] == "cuda":
            runtime = _described("SPDXRef-Package-cuda-runtime", "cuda-runtime", cuda_runtime, policy)
            packages.append(runtime | {"supplier": "Organization: NVIDIA", "primaryPackagePurpose": "LIBRARY"})
            links.append(_link(packages[-2]["SPDXID"], "STATIC_LINK", runtime["SPDXID"]))
    return packages, links


def _images(built: Built) -> list[dict[str, Any]]:
    """The image itself, and its base."""
    labels = {key: built.labels[_LABEL + key] for key in ("version", "source", "revision", "base.name", "base.digest")}
    source = labels["source"] if "://" in labels["source"] else "NOASSERTION"
    image = _plain(ROOT_ID, "kdtree", labels["version"]) | {
        "downloadLocation": "NOASSERTION" if source == "NOASSERTION" else f"git+{source}@{labels['revision']}",
        "checksums": [_sha256(built.id.removeprefix("sha256:"))],
        "sourceInfo": f"built from {labels['revision']}",
    }
    base = _plain(BASE_ID, labels["base.name"], labels["base.digest"])
    base["checksums"] = [_sha256(labels["base.digest"].removeprefix("sha256:"))]
    return [package | {"primaryPackagePurpose": "CONTAINER"} for package in (image, base)]


def _described(identity: str, name: str, version: str, policy: dict[str, Any]) -> dict[str, Any]:
    licence = licences.of(name, policy)
    said = {"comment": OURS, "licenseConcluded": licence, "licenseDeclared": licence}
    return _plain(identity, name, version) | said


def _plain(identity: str, name: str, version: str) -> dict[str, Any]:
    unsaid = ("supplier", "downloadLocation", "licenseConcluded", "licenseDeclared", "copyrightText")
    said = {"SPDXID": identity, "name": name, "versionInfo": version, "filesAnalyzed": False}
    return said | dict.fromkeys(unsaid, "NOASSERTION")


def _texts(found: dict[str, Any], policy: dict[str, Any]) -> list[dict[str, Any]]:
    """The licences that SPDX has no text of: Syft's, and those of ours that it has not met."""
    texts = {text["licenseId"]: text for text in found.get("hasExtractedLicensingInfos", [])}
    for identity, text in policy["texts"].items():
        texts.setdefault(identity, {"licenseId": identity, "extractedText": text})
    return [texts[identity] for identity in sorted(texts)]


def _sha256(value: str) -> dict[str, str]:
    return {"algorithm": "SHA256", "checksumValue": value}


def _link(one: str, how: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relatedSpdxElement": other, "relationshipType": how}
