"""A registry's answers, by a real one on loopback: as pinned, pruned, another image, another platform, gone."""

from __future__ import annotations

import urllib.request
from dataclasses import replace

import pytest

from first_building import host
from first_building import images as asked
from first_building.site import Pinned, Site
from first_building.step import NotSo

pytestmark = pytest.mark.docker


@pytest.fixture
def site_of(site: Site, images: tuple[Pinned, ...]) -> Site:
    return replace(site, images=images)


def of(images: tuple[Pinned, ...], key: str) -> Pinned:
    return next(image for image in images if image.key == key)


def delete(image: Pinned, reference: str) -> None:
    address, _, name = image.name.partition("/")
    request = urllib.request.Request(f"http://{address}/v2/{name}/manifests/{reference}", method="DELETE")
    urllib.request.urlopen(request, timeout=10).close()


def test_what_is_as_pinned(site_of: Site) -> None:
    found = asked.digests(site_of)
    assert found.summary == "2 as pinned"
    assert "is this digest" in found.detail
    cuda = found.data["images"]["cuda-devel"]
    assert cuda["manifest"] != cuda["digest"], "cuda-devel's is an index"
    assert asked.other_digests(site_of).data["images"].keys() == {image.key for image in site_of.others()}


def test_a_registry_on_loopback_needs_no_proxy(site_of: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert host.network(site_of).summary.endswith(": 200")
    assert asked.digests(site_of).summary == "2 as pinned"


def test_a_pulled_base_is_the_pinned_one(site_of: Site) -> None:
    assert asked.pull(site_of).summary.startswith("2 images")


def test_a_manifest_that_is_not_the_pinned_one(images: tuple[Pinned, ...]) -> None:
    with pytest.raises(NotSo, match="cuda-devel's manifest for linux/amd64 is not the pinned one"):
        asked.ask(replace(of(images, "cuda-devel"), manifest=f"sha256:{'1' * 64}"))


def test_a_digest_that_the_registry_does_not_have(site_of: Site, images: tuple[Pinned, ...]) -> None:
    """As of a pruned nightly: 404. The other base is asked nevertheless."""
    gone = replace(of(images, "sglang"), digest=f"sha256:{'0' * 64}")
    with pytest.raises(NotSo, match=r"the registry no longer has sglang: .* Fix: pin a newer nightly") as error:
        asked.digests(replace(site_of, images=(gone, of(images, "cuda-devel"))))
    assert "ok      cuda-devel" in error.value.detail


def test_a_tag_that_leads_elsewhere(images: tuple[Pinned, ...]) -> None:
    """The tag is the index's, the digest that of the manifest in it."""
    index = of(images, "cuda-devel")
    inside = replace(index, digest=asked.ask(index)["manifest"])
    with pytest.raises(NotSo, match=f"cuda-devel's tag and digest are not one image: .* is {index.digest}. Fix: "):
        asked.ask(inside)


def test_a_base_of_another_commit(images: tuple[Pinned, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked.lockfile, "get", lambda pins, key: "0123456")
    with pytest.raises(NotSo, match=r"is not of commit 0123456: ai.sglang.build.commit=cae69be5-stand-in. Fix: "):
        asked.ask(of(images, "sglang"))


def test_an_image_for_another_platform(images: tuple[Pinned, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked, "PLATFORM", "linux/arm64")
    for key in ("grafana", "cuda-devel"):  # one manifest, and an index
        with pytest.raises(NotSo, match=r"(is for linux/amd64, not|has nothing for) linux/arm64"):
            asked.ask(of(images, key))


def test_a_registry_that_is_gone(images: tuple[Pinned, ...], site_of: Site) -> None:
    image = replace(of(images, "sglang"), name="127.0.0.1:9/lmsysorg/sglang")
    with pytest.raises(NotSo, match=r"the registry does not answer: .*Connection refused.* Fix: the network"):
        asked.ask(image)
    with pytest.raises(NotSo, match="sglang cannot be pulled"):
        asked.pull(replace(site_of, images=(image,)))


def test_a_tag_that_is_pruned_while_its_digest_is_kept(images: tuple[Pinned, ...]) -> None:
    told = asked.ask(replace(of(images, "grafana"), tag="pruned"))["told"]
    assert "its tag pruned is gone: mirror it now" in told


def test_a_nightly_that_is_pruned(images: tuple[Pinned, ...]) -> None:
    """Last: deleted by its digest, as a registry prunes."""
    image = of(images, "prometheus")
    delete(image, image.digest)
    with pytest.raises(NotSo, match=r"the registry no longer has prometheus: .* Fix: pin a newer"):
        asked.ask(image)
