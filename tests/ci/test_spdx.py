"""The SPDX document that ci/sbom makes of Syft's, on made ones; tests/image/test_shipping.py runs the real ones."""

from __future__ import annotations

from typing import Any

import pytest

from shipping import spdx
from shipping.built import Built
from shipping.errors import ShippingError

LIBRARY = "/opt/kdtree/lib/libkdtree_verify_cuda.so"
POLICY: dict[str, Any] = {
    "allowed": ["MIT"],
    "of": dict.fromkeys(("kdtree-verify", "tini", "libkdtree_verify_cuda", "cuda-runtime"), "MIT"),
    "texts": {"LicenseRef-x": "text"},
}
LABELS = {
    f"org.opencontainers.image.{name}": value
    for name, value in {
        "version": "1.2.3", "source": "https://example.org/kdtree", "revision": "c0ffee",
        "base.name": "docker.io/base:1", "base.digest": "sha256:" + "b" * 64,
    }.items()
}  # fmt: skip


def built(**added: str) -> Built:
    library = {
        "path": LIBRARY, "sha256": "1" * 64, "version": "1.2.3", "archs": ["sm_120a"], "compiler": "nvcc 13",
        "source_hash": "2" * 64, "device_kind": "cuda",
    }  # fmt: skip
    files = {LIBRARY: "1" * 64, "/usr/lib/wheel/METADATA": "3" * 64, "/var/lib/dpkg/status.d/tini": "4" * 64}
    return Built("sha256:" + "a" * 64, "2026-11-30T20:00:00.5Z", LABELS, files | added, [library])


def syft(run: int = 1) -> dict[str, Any]:
    """What Syft says, in another order and at another time each run."""

    def package(name: str, place: str) -> dict[str, Any]:
        return {
            "SPDXID": f"SPDXRef-{name}-{len(place)}",
            "name": name,
            "versionInfo": "1",
            "sourceInfo": f"from: {place}",
        }

    packages = [
        package("kdtree-verify", "usr/lib/wheel/METADATA, usr/lib/wheel/RECORD"),
        package("tini", "usr/share/doc/tini/copyright, var/lib/dpkg/status.d/tini"),
        package("tini", "var/lib/dpkg/status"),
        package("torch", "usr/lib/torch/METADATA"),
        {"SPDXID": "SPDXRef-DocumentRoot", "name": "/"},
    ]
    links = [
        ("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-DocumentRoot"),
        (packages[3]["SPDXID"], "DEPENDENCY_OF", packages[0]["SPDXID"]),
        (packages[2]["SPDXID"], "CONTAINS", "SPDXRef-File-of-no-hash"),
    ]
    keys = ("spdxElementId", "relationshipType", "relatedSpdxElement")
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "documentNamespace": f"https://example.org/{run}",
        "creationInfo": {
            "licenseListVersion": "3.25", "creators": ["Tool: syft-1"], "created": f"2026-12-0{run}T00:00:00Z"
        },
        "packages": packages[::-1] if run % 2 else packages,
        "relationships": [dict(zip(keys, link, strict=True)) for link in (links[::-1] if run % 2 else links)],
    }  # fmt: skip


def document(found: dict[str, Any], image: Built) -> dict[str, Any]:
    return spdx.document(found, image, POLICY, "13.0")


def test_it_depends_on_the_image_alone() -> None:
    assert document(syft(1), built()) == document(syft(2), built())
    assert document(syft(1), built())["creationInfo"]["created"] == "2026-11-30T20:00:00Z"


def test_ours_are_those_that_a_file_of_ours_tells_of() -> None:
    made = document(syft(), built())
    assert set(spdx.ours(made)) == {"kdtree-verify", "tini", "libkdtree_verify_cuda", "cuda-runtime"}
    (theirs,) = [each for each in made["packages"] if each["name"] == "tini" and "comment" not in each]
    assert theirs["sourceInfo"] == "from: var/lib/dpkg/status"


def test_links_go_to_what_is_in_the_document() -> None:
    made = document(syft(), built())
    known = {"SPDXRef-DOCUMENT", *(package["SPDXID"] for package in made["packages"])}
    for link in made["relationships"]:
        assert {link["spdxElementId"], link["relatedSpdxElement"]} <= known
    assert "DEPENDENCY_OF" in {link["relationshipType"] for link in made["relationships"]}


def test_a_package_url_takes_the_place_of_guesses() -> None:
    found = syft()
    guess = {"referenceType": "cpe23Type", "referenceLocator": "cpe:2.3:a:torch:torch:1:*"}
    for package, kind in zip(found["packages"][1:4], ("pypi", "generic", "deb"), strict=True):
        package["externalRefs"] = [guess, {"referenceType": "purl", "referenceLocator": f"pkg:{kind}/x@1"}]
    kept = {
        package["externalRefs"][-1]["referenceLocator"]: len(package["externalRefs"])
        for package in document(found, built())["packages"]
        if package.get("externalRefs")
    }
    assert kept == {"pkg:pypi/x@1": 1, "pkg:deb/x@1": 1, "pkg:generic/x@1": 2}


def test_an_addition_that_syft_does_not_find_is_an_error() -> None:
    found = syft()
    found["packages"] = [package for package in found["packages"] if package["name"] != "kdtree-verify"]
    with pytest.raises(ShippingError, match="does not find what the image adds: kdtree-verify"):
        document(found, built())


def test_an_addition_whose_licence_nobody_knows_is_an_error() -> None:
    with pytest.raises(ShippingError, match="no licence is known of what the image adds: torch"):
        document(syft(), built(**{"/usr/lib/torch/METADATA": "5" * 64}))


def test_a_library_that_is_not_the_one_that_was_added_is_an_error() -> None:
    with pytest.raises(ShippingError, match="is not the one that was added"):
        document(syft(), built(**{LIBRARY: "9" * 64}))
