"""Which values are secret: those of arguments, configuration and environment whose names say so."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

_WORDS = {"key", "apikey", "token", "secret", "password", "passwd", "passphrase", "credential", "credentials"}
# A key of something is one; a token that a vocabulary, or a count, is about is none.
_NO_SECRET = re.compile(
    r"^[-_]*key$|(?:^|[-_])(?:eos|bos|pad|unk|sep|cls|mask|image|video|audio|per|first)[-_]token$", re.IGNORECASE
)
# argparse takes the beginning of a name for the name. --ssl-keyfile is one of its own: a path.
_OPTIONS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password", "--watermark-config")
_PATH_OPTION = "--ssl-keyfile"
# Its configuration is a secret with all that it holds.
_WATERMARK = "watermark"
_LONGEST_FILE = 4096  # characters; a key is shorter


def is_secret_option(name: str) -> bool:
    """Whether `--name` (or its beginning) gives SGLang a secret."""
    if not name.startswith("--") or name == _PATH_OPTION:
        return False
    beginning = len(name) > 3 and any(option.startswith(name) for option in _OPTIONS)
    return beginning or _is_secret_name(name)


def find(arguments: Sequence[str], env: Mapping[str, str]) -> frozenset[str]:
    """Every secret value in the server's arguments, in its --config file and in the environment.

    Never raises: what cannot be read is SGLang's to refuse.
    """
    found: set[str] = set()
    with suppress(Exception):
        found.update(_of_entries(_entries(arguments)))
    with suppress(Exception):
        for path in _configurations(arguments):
            found.update(_of_entries(_file_entries(path)))
    for name, value in env.items():
        with suppress(Exception):
            found.update(_of_variable(name, value))
    return frozenset(value for value in found if value.strip())


def _of_variable(name: str, value: str) -> Iterator[str]:
    """The value of a name that says so, and what the file holds that HF_TOKEN_PATH or X_KEY_FILE names."""
    what, _, kind = name.rpartition("_")
    if kind in ("FILE", "PATH") and _is_secret_name(what) and os.path.isfile(value):
        with open(value, encoding="utf-8") as file:
            yield file.read(_LONGEST_FILE).strip()
    elif _is_secret_name(name) and not os.path.exists(value):  # a path tells nothing, and the log should
        yield value


def _is_secret_name(name: str) -> bool:
    words = re.split(r"[-_]+", name.strip("-_ ").lower())
    return words[-1] in _WORDS and not _NO_SECRET.search(name)


def _entries(arguments: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Options with their values: `--name value` and `--name=value`."""
    name = ""
    for argument in arguments:
        if argument.startswith("--"):
            name, equals, value = argument.partition("=")
            if equals:
                yield name, value
        elif name:
            yield name, argument


def _configurations(arguments: Iterable[str]) -> list[str]:
    return [str(value) for name, value in _entries(arguments) if name == "--config"]


def _file_entries(path: str) -> list[tuple[str, Any]]:
    import yaml  # SGLang brings it

    if not os.path.isfile(path):  # a pipe would wait, a device never end: SGLang refuses them
        return []
    entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    return [(f"--{name}", value) for name, value in entries.items()] if isinstance(entries, dict) else []


def _of_entries(entries: Iterable[tuple[str, Any]]) -> Iterator[str]:
    for name, value in entries:
        nested = _nested(value)
        if nested is not None:
            # A list in a --config file is an option with its items for values.
            yield from _walk(nested, secret=_WATERMARK in name or is_secret_option(name))
        if is_secret_option(name) and isinstance(value, str | int | float) and not (nested and _WATERMARK in name):
            yield str(value)  # a key may look like JSON, too


def _nested(value: Any) -> Any:
    """What a JSON argument holds, None where it is a plain value."""
    if isinstance(value, dict | list):
        return value
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.loads(value)
    return None


def _walk(value: Any, *, secret: bool) -> Iterator[str]:
    """Strings below a secret name; with `secret` every string."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _walk(each, secret=secret or _is_secret_name(str(name)))
    elif isinstance(value, list):
        for each in value:
            yield from _walk(each, secret=secret)
    elif isinstance(value, str) and secret:
        yield value
