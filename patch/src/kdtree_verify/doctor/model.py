"""How large a model's weights are, by its files: a folder, a GGUF file, or what the Hugging Face cache has."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .arguments import Plan

INDEX = "model.safetensors.index.json"
# In the order in which SGLang looks for them: one kind is loaded.
_KINDS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


@dataclass(frozen=True)
class Weights:
    """A model's weights in bytes and in which files, or None and why they are unknown."""

    size: int | None
    reason: str = ""
    files: tuple[Path, ...] = ()


def weights(plan: Plan, env: Mapping[str, str]) -> Weights:
    """The weights of the plan's model. Nothing is downloaded."""
    if plan.model is None:
        return Weights(None, "no --model-path was given")
    path = Path(plan.model)
    if path.is_file():
        return Weights(path.stat().st_size, files=(path,))
    if path.is_dir():
        return _of_folder(path)
    if path.is_absolute() or plan.model.startswith(".") or plan.model.count("/") != 1:
        return Weights(None, f"{plan.model} is no folder here, nor a name on Hugging Face")
    folder = snapshot(plan, env)
    if folder is None:
        return Weights(None, f"{plan.model} is not in {hub(plan, env)}: it will be downloaded")
    return _of_folder(folder)


def hub(plan: Plan, env: Mapping[str, str]) -> Path:
    """Where the plan's model is downloaded to, if it has a name on Hugging Face."""
    return Path(plan.download_dir) if plan.download_dir else _cache(env)


def snapshot(plan: Plan, env: Mapping[str, str]) -> Path | None:
    """The folder of the plan's model among what was downloaded; None where it is not there."""
    name = f"models--{(plan.model or '').replace('/', '--')}"
    return _snapshot(hub(plan, env) / name, plan.revision or "main")


def _of_folder(folder: Path) -> Weights:
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        return _sum({folder / name for name in index["weight_map"].values()})
    except FileNotFoundError:
        pass  # a small model has no index
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return Weights(None, f"{folder / INDEX} is no index of weights")
    for kind in _KINDS:
        if files := sorted(folder.glob(kind)):
            return _sum(files)
    return Weights(None, f"{folder} holds no weights")


def _sum(files: Iterable[Path]) -> Weights:
    files = tuple(sorted(files))
    lost = [file for file in files if not file.exists()]
    if lost:
        return Weights(None, f"{lost[0]} is not there" + (f", nor {len(lost) - 1} more" if len(lost) > 1 else ""))
    return Weights(sum(file.stat().st_size for file in files), files=files)


def _cache(env: Mapping[str, str]) -> Path:
    """Where huggingface_hub keeps models."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name])
    cache = Path(env.get("XDG_CACHE_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".cache"))
    return Path(env.get("HF_HOME") or cache / "huggingface") / "hub"


def _snapshot(repository: Path, revision: str) -> Path | None:
    with suppress(OSError):  # a commit is its own name
        revision = (repository / "refs" / revision).read_text(encoding="ascii").strip()
    folder = repository / "snapshots" / revision
    return folder if folder.is_dir() else None
