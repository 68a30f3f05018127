"""The steps of the first build, in their order."""

from __future__ import annotations

from . import gpus, host, image, images, smoke, toolchain
from .step import Step


def steps(*, stand_in: bool) -> tuple[Step, ...]:
    """All of them. A stand-in run has no GPU: its smoke is the CPU's."""
    served = ("compose", "build") if stand_in else ("compose", "build", "driver", "toolkit")
    return (
        Step("docker", "the engine", host.docker, anew=True),
        Step("buildx", "the engine's builder", host.buildx, ("docker",), anew=True),
        Step("compose", "Compose", host.compose, ("docker",), anew=True),
        Step("driver", "NVIDIA's driver and the cards", host.driver, anew=True),
        Step("toolkit", "how the engine hands over GPUs", host.toolkit, ("docker", "driver"), anew=True),
        Step("network", "the registries answer", host.network, anew=True),
        Step("digests", "the pinned bases, in their registry", images.digests, ("network",)),
        Step("other digests", "the other pinned images", images.other_digests, ("network",)),
        Step("disk", "room for the bases", host.disk, ("docker", "digests"), anew=True),
        Step("pull", "the bases, by digest", images.pull, ("docker", "digests", "disk")),
        Step("assumptions", "docker/base-assumptions.toml in the base", image.assumptions, ("pull",)),
        Step("build", "ci/image", image.build, ("buildx", "assumptions")),
        Step("library", "what the built libraries say of themselves", image.library, ("build",)),
        Step("hashes", "the pinned toolchain's row of kernel/hashes.toml", toolchain.hashes, ("pull", "library")),
        Step("doctor", "kdtree doctor in the image", gpus.doctor, ("build", "driver", "toolkit")),
        Step("selftest", "kdtree selftest on each card", gpus.selftest, ("build", "driver", "toolkit")),
        Step("smoke", "off, validate and on", smoke.smoke, served),
    )
