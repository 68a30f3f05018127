"""What the pinned CUDA image compiles the kernel to: the row of kernel/hashes.toml that no other machine can fill."""

from __future__ import annotations

import json
import os
import shutil
import tomllib

from pinning import lockfile

from .image import base
from .running import run, watch
from .site import ROOT, Site
from .step import Found, NotSo

COMPILE = (
    "/kernel/build.sh host /kernel/lib && /kernel/build.sh cuda /kernel/lib {archs} && chown -R {owner} /kernel/lib"
)


def hashes(site: Site) -> Found:
    """Compiles in the image, records in a copy of kernel/, and shows the row; holds the built image's library to it."""
    kernel = site.out / "first-build-kernel"
    shutil.rmtree(kernel, ignore_errors=True)
    shutil.copytree(ROOT / "kernel", kernel)
    pins = lockfile.load()
    script = COMPILE.format(archs=lockfile.get(pins, "cuda.architectures"), owner=f"{os.getuid()}:{os.getgid()}")
    image = base(site, "cuda-devel")
    compiled = watch(
        *("docker", "run", "--rm", "--network=none", "--entrypoint=/bin/sh", f"--volume={kernel.resolve()}:/kernel"),
        *(image, "-euc", script),
    )
    if compiled.code != 0:
        raise NotSo("the kernel does not compile in the pinned image", compiled.last, "report it", compiled.output)
    tools = run("ci/cuda-toolchain", timeout=1800)
    if tools.code != 0:
        raise NotSo("cuobjdump, which reads cubins, cannot be had", tools.last, "what that line says")
    name = image if site.stand_in else lockfile.get(pins, "images.cuda-devel")
    path = f"PATH={tools.output.strip()}:{os.environ['PATH']}"
    recorded = run("env", path, "python3", kernel.resolve() / "hashes.py", "record", kernel.resolve() / "lib", name)
    if recorded.code != 0:
        raise NotSo("the hashes cannot be recorded", recorded.last.removeprefix("kdtree: "), "what that line says")
    text = (kernel / "hashes.toml").read_text(encoding="utf-8")
    shutil.rmtree(kernel)
    row = next(row for row in tomllib.loads(text)["toolchain"] if row["of"] == name)
    # As hashes.py wrote them: the cubins, and the row in place of the one that reads unknown.
    wanted = ("[cubins]", f"of = {json.dumps(name)}")
    shown = "\n\n".join(table for table in text.split("\n\n") if any(line in table.splitlines() for line in wanted))
    built = site.data["library"]["libraries"]["cuda"]["sha256"]
    if built != row["cuda"]:
        found = f"the image's library is {built}, a second compilation gave {row['cuda']}"
        raise NotSo("one toolchain made two libraries of one source", found, "report it", shown)
    return Found("the image's library again, bit for bit; the row is below", shown, row)
