"""Who signs and who is believed, as cosign is told; tests/image/test_shipping.py runs it."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import pytest

from shipping import cosign, verify
from shipping.errors import ShippingError

SOURCE = "https://github.com/owner/kd.tree"


def believed() -> re.Pattern[str]:
    """The pattern of certificates' identities."""
    identity, issuer = cosign.Trust(None, SOURCE, "image.yml").arguments()
    assert issuer == "--certificate-oidc-issuer=https://token.actions.githubusercontent.com"
    return re.compile(identity.removeprefix("--certificate-identity-regexp="))


@pytest.mark.parametrize("ref", ["refs/heads/main", "refs/tags/v0.1.0"])
def test_the_repository_s_own_workflow_is_believed(ref: str) -> None:
    assert believed().search(f"{SOURCE}/.github/workflows/image.yml@{ref}")


@pytest.mark.parametrize(
    "identity",
    [
        f"{SOURCE}/.github/workflows/image.yml@refs/heads/other",
        f"{SOURCE}/.github/workflows/image.yml@refs/heads/main2",
        f"{SOURCE}/.github/workflows/image.yml@refs/pull/1/merge",
        f"{SOURCE}/.github/workflows/image.yml@refs/tags/mine",
        f"{SOURCE}/.github/workflows/image.yml@refs/tags/v/mine",
        f"{SOURCE}/.github/workflows/other.yml@refs/heads/main",
        f"{SOURCE}/.github/workflows/imageXyml@refs/heads/main",
        f"{SOURCE}2/.github/workflows/image.yml@refs/heads/main",
        "https://github.com/owner/kdXtree/.github/workflows/image.yml@refs/heads/main",
        f"https://example.org/{SOURCE}/.github/workflows/image.yml@refs/heads/main",
    ],
)
def test_nobody_else_is(identity: str) -> None:
    assert not believed().search(identity)


def test_a_workflow_signs_by_its_identity_and_a_key_without_a_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", "https://example.org")
    assert cosign.Signer(None).arguments() == []
    key = tmp_path / "key"
    key.touch()
    assert cosign.Signer(key).arguments() == [f"--key={key}", "--tlog-upload=false"]
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_URL")
    with pytest.raises(ShippingError, match="nobody to sign") as refused:
        cosign.Signer(None).arguments()
    assert refused.value.code == os.EX_USAGE


def test_an_image_without_a_label_is_refused() -> None:
    said = {name: "x" for name in verify.LABELS if name != "org.opencontainers.image.source"}
    provenance = {"buildDefinition": {"internalParameters": {"labels": said}}}
    with pytest.raises(ShippingError, match=r"no label org\.opencontainers\.image\.source\. Fix: "):
        verify.check_labels(said, {"packages": []}, provenance, None)


def test_no_cosign_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cosign, "BUILD", tmp_path)
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: {"ID": "other", "PRETTY_NAME": "Other 1"})
    with pytest.raises(ShippingError, match=r"^no cosign: this system is Other 1, .* Fix: install cosign") as refused:
        cosign.program()
    assert refused.value.code == os.EX_UNAVAILABLE
