#!/usr/bin/env python3
"""Builds the stand-in bases with the engine at hand, where their content's stamp is not there already.

  ci/standin.py           build what is missing; print the build contexts that put them in place of the pinned bases,
                          one NAME=VALUE a line (`docker-buildx build --build-context NAME=VALUE`)

Run it inside `ci/engine run`. What the two images are made of: docker/standin/Dockerfile. Debian comes from this
machine's own mirror by mmdebstrap, as root; wheels from build/wheelhouse, which ci/wheelhouse fills.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from command_line import Parser
from engine_debs import Debs, DebsError, archive
from pinning import lockfile

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "standin"
RECIPE = ROOT / "docker" / "standin" / "Dockerfile"
RELEASE = "bookworm"
DEBIAN = (
    "--quiet",
    "--mode=root",
    "--variant=minbase",
    "--format=tar",
    "--include=ca-certificates,g++,ninja-build,python3-venv,tini",
    # Documentation and translations are most of what a minimal Debian weighs.
    *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "man", "locale", "zoneinfo")),
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",  # as Ubuntu's images have them
    # What tells of the machine it was made on.
    '--customize-hook=rm -f "$1"/etc/apt/sources.list "$1"/etc/resolv.conf "$1"/etc/hostname',
)
CUDA_SETS = ("cuda-toolchain",)
SGLANG_SETS = ("server-cpu", "runtime-added")
# SGLang requires it, and its image has it; here the Dockerfile's step for a base that lacks it gets something to do.
LEFT_OUT = {"nvidia-ml-py"}
SIGN_OF_LIFE = 20.0  # seconds between the lines of a long step


class StandinError(RuntimeError):
    """A stand-in cannot be built; the text is one line."""


FAILURES = (DebsError, lockfile.PinsError, StandinError)


def say(text: str) -> None:
    print(f"standin: {text}", file=sys.stderr, flush=True)


def stamp(*parts: bytes | Path) -> str:
    """A short hash of texts, files and folders (names and contents)."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            digest.update(part)
            continue
        files = sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]
        for file in files:
            if "__pycache__" not in file.parts and not file.parent.name.endswith(".egg-info"):
                digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


def exists(image: str) -> bool:
    return subprocess.run(["docker", "image", "inspect", image], capture_output=True).returncode == 0


def checked(what: str, command: list[str | Path], **options: Any) -> None:
    """Runs a command, telling only that it still runs; raises StandinError, and shows its end, when it fails."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **options) as process:
            try:
                while not ended(process):
                    say(f"{what}: {time.monotonic() - started:.0f} s so far")
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            output.seek(0)
            print(output.read()[-4000:], file=sys.stderr)
            raise StandinError(f"{' '.join(map(str, command[:3]))} failed with status {process.returncode}; see above")


def ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process ends before a person starts to wonder."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(SIGN_OF_LIFE)
    return process.returncode is not None


def debian() -> str:
    """The Debian base image: minimal, without the mirror's address; returns its name."""
    image = f"kdtree-standin/debian:{stamp(repr(DEBIAN).encode())}"
    if exists(image):
        return image
    if os.geteuid() != 0:
        raise StandinError("mmdebstrap needs root. Fix: run as root on Debian")
    say(f"Debian {RELEASE}: {image}")
    started = time.monotonic()
    tools = Debs(BUILD / "mmdebstrap").unpack({"mmdebstrap": RELEASE}) / "usr" / "bin"
    tarball = BUILD / "debian.tar"
    uri, keyring = archive()
    checked(
        f"Debian {RELEASE}",
        ["mmdebstrap", *DEBIAN, *([f"--keyring={keyring}"] if keyring else []), RELEASE, tarball, uri],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}:/usr/sbin:/sbin"},
        cwd="/",
    )
    checked(f"Debian {RELEASE}", ["docker", "import", tarball, image])
    tarball.unlink()
    say(f"Debian {RELEASE}: {time.monotonic() - started:.0f} s")
    forget_others(image)
    return image


def locked(sets: tuple[str, ...]) -> list[lockfile.Wheel]:
    """The wheels of the sets that a stand-in gets."""
    return [wheel for wheel in lockfile.merged(lockfile.load(), sets) if wheel.normalized not in LEFT_OUT]


def parts(name: str, sets: tuple[str, ...], *others: Path, everything: bool = False) -> Path:
    """A folder to hand to a build: the sets' wheels, their requirements by hash, and other files.

    Of the sets, what a stand-in gets, or `everything`.
    """
    checked(f"{name}'s wheels", [ROOT / "ci" / "wheelhouse", *sets])
    folder = BUILD / "parts" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chosen = lockfile.merged(lockfile.load(), sets) if everything else locked(sets)
    wanted = {(wheel.normalized, wheel.version): wheel for wheel in chosen}
    (folder / "requirements.txt").write_text("".join(f"{wheel.pip_line}\n" for wheel in wanted.values()))
    for path in (ROOT / "build" / "wheelhouse").glob("*.whl"):
        project, version = path.name.split("-")[:2]
        if (lockfile.normalize(project), version) in wanted:
            os.link(path, folder / path.name)
    for other in others:
        shutil.copy(other, folder)
    return folder


def build(target: str, image: str, contexts: dict[str, str | Path], arguments: dict[str, str]) -> None:
    """Builds one target of the recipe. No network: what it needs is in the contexts."""
    say(f"{target}: {image}")
    started = time.monotonic()
    named = [f"--build-context={name}={value}" for name, value in contexts.items()]
    given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
    checked(
        target,
        [
            "docker-buildx",
            "build",
            "--progress=plain",
            "--network=none",
            "--provenance=false",
            # Half the time of gzip, for layers of gigabytes that never leave the engine.
            f"--output=type=image,name={image},compression=zstd",
            f"--file={RECIPE}",
            f"--target={target}",
            *named,
            *given,
            RECIPE.parent,
        ],
    )
    say(f"{target}: {time.monotonic() - started:.0f} s")
    forget_others(image)


def forget_others(image: str) -> None:
    """Removes the earlier stand-ins of the same kind; one that something still uses stays."""
    repository = image.partition(":")[0]
    listed = subprocess.run(
        ["docker", "image", "ls", "--format={{.Repository}}:{{.Tag}}", repository],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for other in set(listed.split()) - {image}:
        subprocess.run(["docker", "image", "rm", other], capture_output=True, check=False)


def cuda() -> str:
    """The CUDA toolchain's stand-in; returns its name."""
    base = debian()
    image = f"kdtree-standin/cuda:{stamp(repr(locked(CUDA_SETS)).encode(), RECIPE, base.encode())}"
    if not exists(image):
        build("cuda", image, {"base": f"docker-image://{base}", "parts": parts("cuda", CUDA_SETS)}, {})
    return image


def sglang() -> str:
    """SGLang's stand-in; returns its name."""
    base = debian()
    assumed = tomllib.loads((ROOT / "docker" / "base-assumptions.toml").read_text())
    arguments = {
        "VENV": str(Path(assumed["python"]["executable"]).parent.parent),
        "SOURCE": assumed["sglang"]["source"],
        "COMMIT_VARIABLE": assumed["sglang"]["commit-variable"],
        "COMMIT": f"{lockfile.get(lockfile.load(), 'sglang.commit')}-stand-in",
        "CACHES": assumed["files"]["caches"],
        "NVIDIA_ENTRYPOINT": assumed["files"]["nvidia-entrypoint"],
    }
    shim, torchvision = RECIPE.parent / "shim", ROOT / "ci" / "torchvision_cpu.py"
    content = (repr(locked(SGLANG_SETS)).encode(), repr(arguments).encode(), RECIPE, shim, torchvision)
    image = f"kdtree-standin/sglang:{stamp(*content, base.encode())}"
    if not exists(image):
        given = parts("sglang", SGLANG_SETS, torchvision)
        build("sglang", image, {"base": f"docker-image://{base}", "parts": given, "shim": shim}, arguments)
    return image


def contexts() -> dict[str, str]:
    """The build contexts, by name, that put the stand-ins in place of the pinned bases; builds what is missing."""
    BUILD.mkdir(parents=True, exist_ok=True)
    made = {"images.cuda-devel": cuda(), "images.sglang": sglang()}
    return {lockfile.get(lockfile.load(), key): f"docker-image://{image}" for key, image in made.items()}


def main() -> int:
    Parser(prog="ci/standin.py", description=__doc__).parse_args()
    try:
        for name, image in contexts().items():
            print(f"{name}={image}")
    except FAILURES as error:
        print(f"kdtree: the stand-in bases cannot be built: {error}", file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main())
