"""ci/sign IMAGE@DIGEST [--key FILE] [--sbom FILE] [--provenance FILE]: signs an image in a registry.

Attaches the SBOM and the provenance as signed attestations, then the signature: an image that has it has all three.
Both documents must be of this very image. With --key by that key (COSIGN_PASSWORD is its password); else by the
identity of the GitHub workflow that runs this, with an entry in Sigstore's public log. Again is harmless.

Exit codes: 1 no such image, documents of another, or cosign refuses; 64 bad arguments, nobody to sign; 69 the registry
does not answer, no cosign.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from command_line import Parser
from oci import names
from oci.client import Client

from . import cosign, files, spdx
from .errors import ShippingError, in_one_line


def main() -> int:
    parser = Parser(prog="ci/sign", description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--key", type=Path)
    parser.add_argument("--sbom", type=Path, default=files.SBOM)
    parser.add_argument("--provenance", type=Path, default=files.PROVENANCE)
    options = parser.parse_args()
    signer = cosign.Signer(options.key)
    return in_one_line(lambda: sign(options.image, signer, options.sbom, options.provenance))


def sign(image: str, signer: cosign.Signer, sbom: Path, provenance: Path) -> int:
    repository, digest = names.by_digest(image)
    who = signer.arguments()
    _need_same(sbom, sbom_digest(files.read(sbom, "ci/sbom")), digest, "ci/sbom")
    _need_same(provenance, provenance_digest(files.read(provenance, "ci/provenance")), digest, "ci/provenance")
    Client(repository).manifest(digest)
    for kind, path in ((cosign.SPDX, sbom), (cosign.SLSA, provenance)):
        cosign.run(image, "attest", "--yes", "--replace", f"--type={kind}", f"--predicate={path}", *who)
    cosign.run(image, "sign", "--yes", *who)
    print(f"{image}: signed, with SBOM and provenance")
    return 0


def sbom_digest(document: dict[str, Any]) -> str:
    """Of which image an SBOM is; empty where it does not say."""
    for package in document.get("packages", []):
        if package.get("SPDXID") == spdx.ROOT_ID:
            return "".join(f"sha256:{each['checksumValue']}" for each in package.get("checksums", [])[:1])
    return ""


def provenance_digest(predicate: dict[str, Any]) -> str:
    """Of which image a provenance is; empty where it does not say."""
    internal = predicate.get("buildDefinition", {}).get("internalParameters", {})
    return str(internal.get("image", ""))


def _need_same(path: Path, found: str, wanted: str, made_by: str) -> None:
    if found != wanted:
        what = f"{path} is of {found[:19] or 'none'}, to be signed is {wanted[:19]}"
        raise ShippingError(f"a document of another image: {what}. Fix: {made_by}, then ci/push, then this")
