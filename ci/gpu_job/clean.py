"""What earlier jobs left on the engine: their containers and volumes, and images that are not asked for any more."""

from __future__ import annotations

from demo.stack import PROJECT

from .engine import LABEL, output

TEST_NAME = "kdtree-test"
_OURS = (f"label={LABEL}", f"label=com.docker.compose.project={PROJECT}")


def clean(keep: str = "") -> list[str]:
    """Removes them; returns what was removed, a line each.

    Args:
        keep: An image by digest, whose other digests go. Without it images stay.
    """
    removed = []
    for filter_ in _OURS:
        found = output("ps", "--all", "--format={{.ID}} {{.Names}}", f"--filter={filter_}").splitlines()
        for container, name in (line.split(" ", 1) for line in found):
            output("rm", "--force", "--volumes", container)
            removed.append(f"container {name}")
    for volume in output("volume", "ls", "--quiet", f"--filter={_OURS[1]}").splitlines():
        output("volume", "rm", "--force", volume)
        removed.append(f"volume {volume}")
    if keep:
        removed += _images(keep)
    return removed


def _images(keep: str) -> list[str]:
    """Other digests of the same repository, and every image of the test stage: their bases go with the last of them."""
    repository = keep.partition("@")[0]
    found = output("image", "ls", "--digests", "--format={{.Repository}}@{{.Digest}}", repository).splitlines()
    stale = [image for image in found if image != keep and not image.endswith("@<none>")]
    stale += output("image", "ls", "--format={{.Repository}}:{{.Tag}}", TEST_NAME).splitlines()
    for image in stale:
        output("image", "rm", "--force", image)
    return [f"image {image}" for image in stale]
