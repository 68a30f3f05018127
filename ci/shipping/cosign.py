"""Cosign: who signs, who is believed, and what it says. The machine's own, or the one that ci/cosign unpacked."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_debs import Debs, DebsError
from oci import names
from oci.client import Client

from .errors import EXIT_FAILED, ShippingError
from .files import BUILD

SUITE = "trixie"
"""2.5; bookworm has none. It runs on bookworm's libc."""
SPDX, SLSA = "spdxjson", "slsaprovenance1"
_GITHUB_TOKENS = "https://token.actions.githubusercontent.com"
_GITHUB_VARIABLE = "ACTIONS_ID_TOKEN_REQUEST_URL"
_UNREACHED = r"dial tcp|no such host|connection refused|i/o timeout|TLS handshake"
"""Of a registry that answers, then: whom cosign asks beside it did not."""


def program() -> str:
    """The program. Raises ShippingError where there is none."""
    if found := shutil.which("cosign"):
        return found
    try:
        return str(Debs(BUILD / "cosign").unpack({"cosign": SUITE}) / "usr" / "bin" / "cosign")
    except DebsError as error:
        fix = "install cosign 2.5 or newer (https://docs.sigstore.dev)"
        raise ShippingError(f"no cosign: {error}. Fix: {fix}", os.EX_UNAVAILABLE) from error


@dataclass(frozen=True)
class Signer:
    """Who signs: a key, or the workflow that runs this (keyless)."""

    key: Path | None

    def arguments(self) -> list[str]:
        """Cosign's. Raises ShippingError where there is neither."""
        if self.key is not None:
            _need_file(self.key)
            return [f"--key={self.key}", "--tlog-upload=false"]
        if _GITHUB_VARIABLE not in os.environ:
            fix = "--key FILE, or a workflow with permission id-token: write"
            raise ShippingError(f"nobody to sign: no key, and {_GITHUB_VARIABLE} is not set. Fix: {fix}", os.EX_USAGE)
        return []


@dataclass(frozen=True)
class Trust:
    """Whose signature counts: a public key's; or that of a repository's own workflow, as GitHub vouches for it."""

    key: Path | None
    source: str | None
    workflow: str

    def arguments(self) -> list[str]:
        if self.key is not None:
            _need_file(self.key)
            return [f"--key={self.key}", "--insecure-ignore-tlog=true"]
        workflow = f"{re.escape(str(self.source))}/\\.github/workflows/{re.escape(self.workflow)}"
        # A tag of another name anybody may push who may push at all, with a workflow of their own in it.
        identity = f"^{workflow}@refs/(heads/main|tags/v[^/]+)$"
        return [f"--certificate-identity-regexp={identity}", f"--certificate-oidc-issuer={_GITHUB_TOKENS}"]


def _need_file(key: Path) -> None:
    if not key.is_file():
        raise ShippingError(f"no key: {key}. Fix: `cosign generate-key-pair`, or the path", os.EX_USAGE)


def run(image: str, *arguments: str) -> str:
    """What cosign prints for an image. Raises ShippingError in a line; Unreachable where the registry has gone."""
    command = [program(), *arguments, image]
    # No key of somebody's is asked for at a terminal, and a key without a password has an empty one.
    environment = {"COSIGN_PASSWORD": "", **os.environ}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode == 0:
        return done.stdout
    repository, digest = names.by_digest(image)
    Client(repository).manifest(digest)  # a registry that does not answer, or has no such image, is said to be that
    errors = [line for line in done.stderr.splitlines() if line.startswith("Error: ")] or [done.stderr.strip()]
    said = re.sub(r"\s+", " ", errors[-1].removeprefix("Error: "))[:300]
    if re.search(_UNREACHED, said):
        raise ShippingError(f"Sigstore does not answer: {said}. Fix: the network, then again", os.EX_UNAVAILABLE)
    raise ShippingError(f"cosign {arguments[0]}: {image}: {said}. Fix: {_FIXES[arguments[0]]}", EXIT_FAILED)


_FIXES = {
    "sign": "the key and its COSIGN_PASSWORD, and the right to push",
    "attest": "the key and its COSIGN_PASSWORD, and the right to push",
    "verify": "do not run it, unless the key or source is the wrong one",
    "verify-attestation": "do not run it, unless the key or source is the wrong one",
}


def predicates(told: str) -> list[dict[str, Any]]:
    """The predicates of the statements that verify-attestation has printed, one a line."""
    statements = [json.loads(base64.b64decode(json.loads(line)["payload"])) for line in told.splitlines() if line]
    return [statement["predicate"] for statement in statements]
