"""Puts the GPU bundle together out of downloaded wheels; called by ci/gpu-bundle.

python -m gpu_bundle.build WHEELS FOLDER, with ci/ on the path

One archive: the wheels' content, SGLang's without what its server never imports for text models; the stand-in for
sgl_kernel; the plugin; the environment. Beside it the installer and the sums that it checks.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from gpu_bundle import requirements
from gpu_bundle.install import ARCHIVE, SUMS

HERE = Path(__file__).resolve().parent
SGLANG_UNUSED = (
    "sglang/benchmark/",
    "sglang/kernels/jit/benchmark/",
    "sglang/multimodal_gen/",
    # Of the tests, the kits stay, and what is in the folders that they import.
    *(f"sglang/test/{name}/" for name in ("ascend", "ci", "external_models", "kv_canary", "manual", "mock_model")),
    *(f"sglang/test/{name}/" for name in ("observability", "scripted_runtime", "xpu")),
)
"""The start of each path of SGLang's that is left out; its compiled modules are too (unused)."""
PLUGIN = {
    "METADATA": "Metadata-Version: 2.1\nName: sglang-gpu-box\nVersion: 1\n",
    "entry_points.txt": "[sglang.srt.plugins]\nsglang_gpu_box = sglang_gpu_box:register\n",
}
OWN = ("environment", "sglang_gpu_box.py", "flash_mla", "sgl_kernel")
TIME = 315532800  # 1980, a zip's earliest: the same content is the same archive


def main(wheels: Path, folder: Path) -> int:
    """Builds the folder beside itself and then puts it in place whole."""
    found = sorted(wheels.glob("*.whl"))
    unexplained = requirements.report([requirements.of_wheel(wheel) for wheel in found])
    if unexplained:
        print(
            f"kdtree: the bundle lacks what its packages require: {', '.join(unexplained)}. Fix: add it to the roots "
            "of [wheels.gpu-bundle], or to ci/gpu_bundle/requirements.py with the reason",
            file=sys.stderr,
        )
        return 1
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    pack(part / ARCHIVE, found)
    (part / SUMS).write_text(f"{hashlib.sha256((part / ARCHIVE).read_bytes()).hexdigest()}  {ARCHIVE}\n")
    shutil.copyfile(HERE / "install.py", part / "install")
    (part / "install").chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)
    return 0


def pack(archive: Path, wheels: list[Path]) -> None:
    """Writes the archive of the site folder."""
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        for wheel in wheels:
            for name, content in members(wheel):
                _add(tar, name, content)
        for own in OWN:
            for path in [HERE / own] if (HERE / own).is_file() else sorted((HERE / own).rglob("*.py")):
                _add(tar, str(path.relative_to(HERE)), path.read_bytes())
        for name, text in PLUGIN.items():
            _add(tar, f"sglang_gpu_box-1.dist-info/{name}", text.encode())


def members(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """What a wheel puts on the path; programs and manual pages of its own are left out."""
    with zipfile.ZipFile(wheel) as content:
        for name in sorted(content.namelist()):
            parts = name.split("/")
            if parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue
                name = "/".join(parts[2:])
            if not name.endswith("/") and not unused(name):
                yield name, content.read("/".join(parts))


def unused(name: str) -> bool:
    """Whether a file stays out. SGLang's compiled modules: a Rust server, gRPC, benchmarks, images, and a radix tree
    that is built for a newer torch; SGLang imports none of them unless it is asked to, or takes a Python one."""
    return name.startswith(SGLANG_UNUSED) or (name.startswith("sglang/") and name.endswith(".so"))


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(content), TIME, 0o644
    tar.addfile(info, io.BytesIO(content))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
