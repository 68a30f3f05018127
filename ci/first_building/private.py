"""What must not be in a report that is pasted in public: this host's names and addresses, paths, secrets, serials."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .running import run
from .site import ROOT

_SECRET_NAME = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH|(^|_)(PASS|PAT))$")
_USER_INFO = re.compile(r"(\w+://)[^/\s]+@")  # to the last @: a password may have one, too
_PASSWORD = re.compile(r"\w+://[^:@/\s]+:(\S+)@")
_SIGNED = re.compile(r"([?&][\w-]*(?:token|signature|sig|key|secret|credential|password)=)[^&\s\"']+", re.I)
_BEARER = re.compile(r"(\bBearer|Authorization: *\w+) +[\w.~+/=-]{8,}")
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SHORTEST = 4
"""A secret of fewer characters would hide half the report, and is none; a host's name of fewer is hidden as a word."""


class Privacy:
    """Hides what is private.

    Args:
        environment: Where secrets are looked for, by their names.
        names: This host's names and addresses.
    """

    def __init__(self, environment: Mapping[str, str], names: tuple[str, ...]):
        secrets = {v for k, v in environment.items() if _SECRET_NAME.search(k.upper()) and len(v) >= SHORTEST}
        # A password in an address, a proxy's: programs tell it in other forms than the address, too.
        secrets |= {v for text in environment.values() for v in _PASSWORD.findall(text) if len(v) >= SHORTEST}
        hidden = dict.fromkeys(secrets, "***")
        hidden[str(ROOT)] = "<checkout>"
        if str(Path.home()) not in ("/", "/root"):  # those tell of nobody, and the base's are root's, too
            hidden[str(Path.home())] = "~"
        # The longest first: a home folder is part of the checkout's path.
        self._hidden = sorted(hidden.items(), key=lambda pair: -len(pair[0]))
        words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True) if name)
        self._names = re.compile(rf"(?<![\w.-])(?:{words})(?![\w-])") if words else None

    def text(self, text: str) -> str:
        for private, shown in self._hidden:
            text = text.replace(private, shown)
        text = _USER_INFO.sub(r"\1***@", text)
        text = _SIGNED.sub(r"\1***", text)
        text = _BEARER.sub(r"\1 ***", text)
        text = _UUID.sub(r"\1-***", text)
        return self._names.sub("<host>", text) if self._names else text

    def document(self, found: Any) -> Any:
        """The same for every text in a JSON document, keys aside."""
        if isinstance(found, str):
            return self.text(found)
        if isinstance(found, Mapping):
            return {key: self.document(value) for key, value in found.items()}
        return [self.document(each) for each in found] if isinstance(found, list | tuple) else found


def of_this_host() -> Privacy:
    """By this process's environment and this host's own names."""
    name = socket.gethostname()
    addresses = run("hostname", "-I", timeout=10).output.split()
    names = {name, name.partition(".")[0], socket.getfqdn(), *addresses} - {"localhost", "127.0.0.1", "::1"}
    return Privacy(os.environ, tuple(names))
