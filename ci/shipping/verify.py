"""ci/verify IMAGE@DIGEST (--source https://github.com/OWNER/REPOSITORY | --key FILE): whether an image is what it says.

Asks the registry, pulls no layer. With --source the image must be signed by that repository's own workflow, on its main
branch or a v tag; with --key by that key (a public one). What is checked, a line each: the signature; the SBOM and the
provenance, each signed likewise and of this very image; the labels, which must say what those two do.

Exit codes: 0 all of it is so; 1 it is not, or there is no such image: do not run it; 64 bad arguments; 69 the registry
does not answer, or there is no cosign: nothing is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from command_line import Parser
from oci import names
from oci.client import Client, document

from . import cosign, sign, spdx
from .errors import ShippingError, in_one_line

WORKFLOW = "image.yml"
"""Whose signatures count, of a repository's workflows."""
_LABEL = "org.opencontainers.image."
LABELS = (
    *(_LABEL + name for name in ("source", "revision", "version", "licenses", "base.name", "base.digest")),
    *("kdtree.sglang.commit", "kdtree.cuda.version", "kdtree.kernel.architectures", "kdtree.kernel.source-hash"),
)
_FIX = "do not run it"


def main() -> int:
    parser = Parser(prog="ci/verify", description=__doc__)
    parser.add_argument("image")
    trusted = parser.add_mutually_exclusive_group(required=True)
    trusted.add_argument("--source")
    trusted.add_argument("--key", type=Path)
    options = parser.parse_args()
    return in_one_line(lambda: verify(options.image, cosign.Trust(options.key, options.source, WORKFLOW)))


def verify(image: str, trust: cosign.Trust) -> int:
    repository, digest = names.by_digest(image)
    if trust.source is not None and not re.fullmatch(r"https://[\w.-]+(/[\w.-]+){2}", trust.source):
        raise ShippingError(f"no repository: {trust.source!r}. Fix: https://github.com/OWNER/REPOSITORY", os.EX_USAGE)
    who = trust.arguments()
    client = Client(repository)
    config = client.manifest(digest).config

    cosign.run(image, "verify", *who)
    print(f"ok  signature   of {digest}")

    sbom = _attested(image, cosign.SPDX, who, sign.sbom_digest)
    print(f"ok  SBOM        {len(sbom['packages'])} packages, of which {len(spdx.ours(sbom))} are added to the base")

    provenance = _attested(image, cosign.SLSA, who, sign.provenance_digest)
    print(f"ok  provenance  built by {provenance['runDetails']['builder']['id']}")

    labels = document(client.small_blob(config), config).get("config", {}).get("Labels") or {}
    check_labels(labels, sbom, provenance, trust.source)
    for name in LABELS:
        print(f"ok  label       {name}={labels[name]}")
    return 0


def check_labels(labels: dict[str, str], sbom: dict[str, Any], provenance: dict[str, Any], source: str | None) -> None:
    """Raises ShippingError where a label is missing, or says what SBOM, provenance or the source asked for do not."""
    # Of the source alone it may be unknown what it is.
    unknown = [name for name in LABELS if labels.get(name) == "unknown" and name != _LABEL + "source"]
    if missing := [name for name in LABELS if name not in labels] + unknown:
        raise ShippingError(f"no label {missing[0]}. Fix: {_FIX}")
    told = provenance["buildDefinition"]["internalParameters"]["labels"]
    for name in LABELS:
        if told.get(name) != labels.get(name):
            raise ShippingError(
                f"label {name} is {labels.get(name)}, the provenance says {told.get(name)}. Fix: {_FIX}"
            )
    if source is not None and labels[_LABEL + "source"] != source:
        found = labels[_LABEL + "source"]
        raise ShippingError(f"label {_LABEL}source is {found}, asked for was {source}. Fix: {_FIX}")
    library = spdx.ours(sbom).get("libkdtree_verify_cuda", {})
    if not library.get("sourceInfo", "").endswith(f" {labels['kdtree.kernel.source-hash']}"):
        raise ShippingError(f"the SBOM's kernel library is of other sources than the label says. Fix: {_FIX}")


def _attested(image: str, kind: str, who: list[str], of: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """The predicate of that kind which is attested of the image, and is of it. Raises ShippingError where none is."""
    _, digest = names.by_digest(image)
    told = cosign.predicates(cosign.run(image, "verify-attestation", f"--type={kind}", *who))
    found = [predicate for predicate in told if of(predicate) == digest]
    if not found:
        raise ShippingError(f"the {kind} that is attested of {image} is another image's. Fix: {_FIX}")
    return found[-1]
