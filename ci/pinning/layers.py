"""SGLang's sources out of an image in a registry, without an engine and without storing the image.

Layers are read as they arrive, newest first, and only as far down as the one that brought the sources.
"""

from __future__ import annotations

import sys
import tarfile
import zlib
from pathlib import Path, PurePosixPath

from oci.client import Client
from oci.errors import RegistryError
from oci.stream import Blob

from .upstream import Found

_GONE, _ALL_GONE = ".wh.", ".wh..wh..opq"  # how a layer says that a file, or all below, is no more
_LANDMARK = PurePosixPath("sglang/srt/layers/attention/triton_backend.py")


def unpack(repository: Client, image: Found, source: str, folder: Path) -> None:
    """Unpacks what lies under `source` in the image into the folder. Raises RegistryError where nothing does."""
    root = PurePosixPath(source.lstrip("/"))
    seen: set[PurePosixPath] = set()
    for digest, size in reversed(image.layers):
        print(f"pins: reading layer {digest[:19]}… of {size:,} bytes", file=sys.stderr, flush=True)
        with repository.blob(digest, size) as blob:
            _take(blob, root, folder, seen)
        if (folder / _LANDMARK).exists():
            return
    raise RegistryError(f"the image has no {source}/{_LANDMARK}. Fix: docker/base-assumptions.toml, source")


def _take(blob: Blob, root: PurePosixPath, folder: Path, seen: set[PurePosixPath]) -> None:
    """What one layer has below `root`, unless a newer one has it, or says that it is gone."""
    hidden: set[PurePosixPath] = set()
    try:
        with tarfile.open(fileobj=blob, mode="r|*") as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not path.is_relative_to(root) or any(each in seen for each in (path, *path.parents)):
                    continue
                if path.name == _ALL_GONE:
                    hidden.add(path.parent)
                elif path.name.startswith(_GONE):
                    hidden.add(path.with_name(path.name.removeprefix(_GONE)))
                elif member.isfile() and ".." not in path.parts and (content := archive.extractfile(member)):
                    target = folder / path.relative_to(root)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(content.read())
                    hidden.add(path)
        blob.drain()
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise RegistryError(f"layer {blob.digest} cannot be read: {error}. Fix: see how it is compressed") from error
    seen |= hidden
