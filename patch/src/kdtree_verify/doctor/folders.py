"""What the server's user may read and write: the model, and where SGLang keeps what it compiles and downloads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import AccessError
from . import model
from .arguments import Plan
from .finding import Finding, ok, skipped, warning

# What moves one kind of SGLang's compiled kernels elsewhere than below SGLANG_CACHE_DIR (environ.py).
_ELSEWHERE = ("SGLANG_JIT_CACHE_DIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE")
_DEPTH = 3
"""How far below a cache's folder others keep folders of their own: inductor/xx, jit/sm_120/module."""


def check_model(plan: Plan, env: Mapping[str, str]) -> Finding:
    """Whether the model's files can be read, or its download can be written.

    Raises:
        AccessError: They cannot.
    """
    if plan.model is None:
        return skipped("no --model-path was given")
    path = Path(plan.model)
    if path.is_absolute() or plan.model.startswith(".") or path.exists():
        _open(path)
        return ok(f"{path} can be read")
    downloads = model.hub(plan, env)
    if model.snapshot(plan, env) is not None:
        return ok(f"{plan.model} is in {downloads}")
    lacking = _not_writable(downloads)
    if lacking is not None:
        fix = f"{_give(lacking)}; or name a folder that holds the model"
        raise AccessError(
            f"the folder of models cannot be written, and {plan.model} is not there", _whose(lacking), fix
        )
    return ok(f"{downloads} can be written")


def check_caches(env: Mapping[str, str]) -> Finding:
    """Whether SGLang can write what it compiles at run time.

    Raises:
        AccessError: A folder is another user's.
    """
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    first = Path(env.get("SGLANG_CACHE_DIR") or home / ".cache" / "sglang")
    for cache in (first, *(Path(env[name]) for name in _ELSEWHERE if env.get(name))):
        for folder in (cache, *_below(cache, _DEPTH)):
            lacking = _not_writable(folder)
            if lacking is None:
                continue
            if os.statvfs(lacking).f_flag & os.ST_RDONLY:
                fix = f"a volume or a tmpfs there (--tmpfs {cache}:exec)"
                return warning(f"{cache} is read-only: a kernel that has to be compiled first ends the server", fix)
            fix = f"{_give(lacking)}; or set SGLANG_CACHE_DIR to a folder of this user"
            raise AccessError("compiled kernels cannot be written", _whose(lacking), fix)
    return ok(f"{first} can be written")


def _open(path: Path) -> None:
    """Opens each file of a model: what may be read is known to a file system (NFS) by trying alone."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            try:
                os.close(os.open(file, os.O_RDONLY | os.O_NONBLOCK))
            except FileNotFoundError:
                if file is path:
                    raise  # else a link to nowhere, which is no file of the model
    except OSError as error:
        fix = f"mount it; {_user()} must be able to read it (chmod -R a+rX, or run as its owner: --user, KDTREE_USER)"
        raise AccessError("the model cannot be read", f"{error.filename}: {error.strerror}", fix) from None


def _below(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return  # it is not there, or told of by itself
    for entry in entries if depth else []:
        yield Path(entry.path)
        yield from _below(Path(entry.path), depth - 1)


def _not_writable(folder: Path) -> Path | None:
    """The folder, or its nearest parent that is there, if nothing can be made in it."""
    while not os.path.exists(folder):  # nor where this user may not look
        folder = folder.parent
    return None if os.access(folder, os.W_OK | os.X_OK) else folder


def _user() -> str:
    return f"user {os.geteuid()}:{os.getegid()}"


def _whose(folder: Path) -> str:
    found = folder.stat()
    return f"{folder} is {found.st_uid}:{found.st_gid}'s, mode {found.st_mode & 0o7777:o}; this is {_user()}"


def _give(folder: Path) -> str:
    return f"as root: chown -R {os.geteuid()}:{os.getegid()} {folder} (a volume: docs/operating/upgrade.md)"
