"""The image's own layers on a base of this machine's Python.

What the Dockerfile calls the base (SGLang, torch, CUDA's tools: 16 GB on a GPU machine) is not copied: it is mounted
into each container, read-only and at its own path. The base image itself is what the mounts hang on, /usr/bin,
/usr/local/bin (where the image's layers have files of their own, so these two are copied), a little of /etc, and
/opt/sglang, a virtual environment of this machine's Python whose path is, in this order: what the image's layers
installed, the bundle, this machine's own packages.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DESCRIPTION = "image.json"
VENV = "/opt/sglang"
COPIED = ("/usr/bin", "/usr/local/bin")
ETC = (
    *("alternatives", "group", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types"),
    *("nsswitch.conf", "os-release", "passwd", "protocols", "services"),
)
NOT_MOUNTED = {
    "/usr": {"bin", "local"},
    "/usr/local": {"bin", "nvidia"},  # the driver's folder comes with the GPU, by CDI
    "/opt": {"sglang", "kdtree"},
}
FOLDERS = ("dev", "etc", "mnt", "opt", "proc", "root/.cache", "run", "sys", "usr", "usr/local", "var")
INHERITED = (
    *("LIBRARY_PATH", "CPATH", "CUDA_HOME", "CUDA_PATH", "CC", "CXX", "TORCH_CUDA_ARCH_LIST"),
    *("TRITON_LIBCUDA_PATH", "TRITON_PTXAS_PATH"),
)
"""Of this machine's environment, beside PATH and LD_LIBRARY_PATH: where its compilers and libraries are."""
DRIVER_LIBRARIES = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"


@dataclass(frozen=True)
class Machine:
    """This machine's Python, as a base of the image.

    Attributes:
        executable: The Python itself, no link.
        prefix: Its virtual environment's folder, or its own.
        base_prefix: Where its standard library is.
        version: Two numbers, as in the name of its library folder.
        packages: Folders of its packages, in the order of its path.
    """

    executable: Path
    prefix: Path
    base_prefix: Path
    version: str
    packages: tuple[Path, ...]

    def mounts(self, *others: Path) -> list[Path]:
        """Folders to mount, each at its own path; `others` among them."""
        found: list[Path] = []
        for folder, left in NOT_MOUNTED.items():
            entries = sorted(Path(folder).iterdir()) if Path(folder).is_dir() else []
            found += [entry for entry in entries if _real_folder(entry) and entry.name not in left]
        for wanted in (self.base_prefix, self.prefix, *self.packages, *others):
            if wanted != Path("/usr") and not any(wanted.is_relative_to(mount) for mount in found):
                found.append(wanted)
        return found


def machine() -> Machine:
    """The Python that runs this, without what PYTHONPATH adds."""
    asked = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.path]))"
    done = subprocess.run([sys.executable, "-I", "-c", asked], capture_output=True, text=True, check=True)
    prefix, base_prefix, path = json.loads(done.stdout)
    library = Path(base_prefix) / "lib"  # the standard one, and on Debian packages below it
    packages = [Path(entry) for entry in path if Path(entry).is_dir()]
    return Machine(
        executable=Path(sys.executable).resolve(),
        prefix=Path(prefix),
        base_prefix=Path(base_prefix),
        version=f"{sys.version_info[0]}.{sys.version_info[1]}",
        packages=tuple(
            entry for entry in packages if entry.name.endswith("-packages") or not entry.is_relative_to(library)
        ),
    )


@dataclass(frozen=True)
class Layers:
    """What docker/Dockerfile added to its base, as ci/gpu-container pack took it."""

    folder: Path
    config: dict[str, Any]
    base: dict[str, Any]

    @staticmethod
    def read(folder: Path) -> Layers:
        document = json.loads((folder / DESCRIPTION).read_text())
        return Layers(folder, document["config"], document["base"])

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "layers").glob("*.tar"))

    @property
    def diff_ids(self) -> list[str]:
        return list(self.config["rootfs"]["diff_ids"][self.base["layers"] :])

    @property
    def labels(self) -> dict[str, str]:
        """The Dockerfile's own."""
        inherited = self.base["config"].get("Labels") or {}
        return {name: value for name, value in self.config["config"]["Labels"].items() if inherited.get(name) != value}

    def on(self, environment: Mapping[str, str]) -> dict[str, Any]:
        """The image's configuration where the base's environment is this one: all else is the Dockerfile's."""
        inherited = self.base["config"]["Env"]
        own = [entry for entry in self.config["config"]["Env"] if entry not in inherited]
        base = [f"{name}={value}" for name, value in environment.items()]
        return {**self.config["config"], "Env": [*base, *own], "Labels": self.labels}

    def site_packages(self) -> str:
        """Where the wheels were installed."""
        for file in self.files:
            with tarfile.open(file) as tar:
                for name in tar.getnames():
                    if name.endswith("/site-packages/kdtree_verify/__init__.py"):
                        return "/" + str(Path(name).parent.parent)
        raise FileNotFoundError(f"no layer holds kdtree_verify: {self.folder}")


def environment_of(here: Machine, bundle: Mapping[str, str]) -> dict[str, str]:
    """The base's environment: this machine's, and what the bundle asks for."""
    path = f"{VENV}/bin:{here.prefix}/bin:{os.environ.get('PATH', os.defpath)}"
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    libraries = [text for text in (os.environ.get("LD_LIBRARY_PATH"), DRIVER_LIBRARIES) if text]
    # As NVIDIA's images have them, on which SGLang's stands.
    nvidia = {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }
    return {"PATH": path, **own, **nvidia, **bundle}


def write_root(file: Path, here: Machine, packages: Sequence[str], mounts: Sequence[Path]) -> None:
    """Writes the base's root filesystem, a tar file."""
    with tarfile.open(file, "w") as tar:
        for name in FOLDERS:
            _folder(tar, name)
        for name in ("tmp", "var/tmp"):
            _folder(tar, name, 0o1777)
        for mount in mounts:
            _folder(tar, str(mount).lstrip("/"))
        for link in _links():
            _link(tar, str(link).lstrip("/"), os.readlink(link))
        for copied in (*COPIED, *(f"/etc/{name}" for name in ETC)):
            if os.path.lexists(copied):
                tar.add(copied, copied.lstrip("/"))
        library = f"{VENV}/lib/python{here.version}/site-packages".lstrip("/")
        others = [folder for folder in packages if folder != f"/{library}"]
        # As site does for its own folders: their .pth files count, too.
        lines = [f"import site; site.addsitedir({folder!r})\n" for folder in others]
        _text(tar, f"{library}/base.pth", "".join(lines))
        home = f"home = {here.executable.parent}\ninclude-system-site-packages = false\n"
        _text(tar, f"{VENV}/pyvenv.cfg".lstrip("/"), home)
        for name in ("python", "python3", f"python{here.version}"):
            _link(tar, f"{VENV}/bin/{name}".lstrip("/"), str(here.executable))


def write_image(file: Path, tag: str, root: Path, layers: Layers, config: dict[str, Any]) -> None:
    """Writes what `docker load` takes: the base's root filesystem, and the layers on it as they are."""
    with root.open("rb") as content:
        digest = f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    document: dict[str, Any] = {
        **{name: layers.config[name] for name in ("architecture", "os", "created") if name in layers.config},
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest, *layers.diff_ids]},
    }
    text = json.dumps(document).encode()
    named = f"{hashlib.sha256(text).hexdigest()}.json"
    files = {"base/layer.tar": root, **{f"{path.stem}/layer.tar": path for path in layers.files}}
    manifest = [{"Config": named, "RepoTags": [tag], "Layers": list(files)}]
    with tarfile.open(file, "w") as tar:
        _text(tar, named, text.decode())
        for name, path in files.items():
            tar.add(path, name)
        _text(tar, "manifest.json", json.dumps(manifest))


def _real_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _links() -> Iterator[Path]:
    """Links beside what is mounted, such as /lib and /usr/local/cuda."""
    for folder in ("/", *NOT_MOUNTED):
        if Path(folder).is_dir():
            yield from (entry for entry in sorted(Path(folder).iterdir()) if entry.is_symlink())


def _folder(tar: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    tar.addfile(info)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    tar.addfile(info)


def _text(tar: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode()
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    tar.addfile(info, io.BytesIO(content))
