"""Replaces secrets in a text: known values wherever they stand, and what a secret's name is given."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import quote, quote_plus

HIDDEN = "***"

SHORTEST = 8
"""Characters. A shorter value is hidden beside its name only: everywhere, it would take words of the log with it."""

# Bounded, and begun once in a word, so that no text makes the search long: a client's path may be one of dashes.
_NAME = (
    r"(?:[\w-]{0,80}(?:api|access|admin|secret|private|watermark|signing)[_-]key(?:_b)?"
    r"|[\w-]{0,80}(?:password|passwd|passphrase|secret)"
    r"|(?:[\w-]{0,80}[_-])?(?:hf|hub|auth|access|refresh|bearer|session|api)[_-]token)"
)
_FORMS = (
    # api_key='...', 'api_key': '...', "api_key": "..." and the same inside a quoted string.
    re.compile(rf"(?P<before>(?<![\w-]){_NAME}\\*[\"']?\s*[=:]\s*(?P<quote>\\*[\"']))(?:(?!(?P=quote)).)+", re.I),
    # --api-key=..., as a command line is written. argparse takes a beginning for the name.
    re.compile(
        rf"(?P<before>(?<![\w-])--(?:{_NAME}|api(?:-ke?)?|ad[\w-]*|ssl-keyfile-[\w-]*)=[\"']?)[^\s\"',)\]}}]+", re.I
    ),
    # ?api_key=... of a request's line.
    re.compile(rf"(?P<before>[?&](?:{_NAME}|key|token)=)[^\s&\"'#]+", re.I),
    re.compile(r"(?P<before>\bBearer )[\w.~+/=-]{16,}"),
    re.compile(r"(?P<before>\bhf_)[A-Za-z0-9]{20,}"),
)
# No form is without one of these, and few lines have one.
_HINTS = ("key", "pass", "secret", "token=", "token'", 'token"', "token\\", "bearer ", "hf_", "--")


class Redactor:
    """Replaces secrets by ***.

    Args:
        secrets: Values that are hidden wherever they stand, if they are long enough.
    """

    def __init__(self, secrets: Iterable[str] = ()):
        self.secrets = frozenset(secrets)
        spellings = {each for value in self.secrets if len(value) >= SHORTEST for each in _spellings(value)}
        # The longest first: one value may hold another.
        self._values = sorted(spellings, key=lambda value: (-len(value), value))
        short = "|".join(re.escape(value) for value in sorted(self.secrets) if 0 < len(value) < SHORTEST)
        # A command line with a blank between; without the value it could be a sentence about the option.
        given = [re.compile(rf"(?P<before>(?<![\w-])--[\w-]+ [\"']?)(?:{short})(?=[\s\"',)\]}}]|$)")] if short else []
        self._forms = (*_FORMS, *given)

    def __call__(self, text: str) -> str:
        """The text without secrets. Anything but a string is returned as it is."""
        if not isinstance(text, str):
            return text
        for value in self._values:
            if value in text:
                text = text.replace(value, HIDDEN)
        lower = text.lower()
        if any(hint in lower for hint in _HINTS):
            for form in self._forms:
                text = form.sub(rf"\g<before>{HIDDEN}", text)
        return text


def _spellings(value: str) -> set[str]:
    """As it is, inside a repr or JSON, inside one that is inside another, and in an address."""
    once = {value} | _quoted(value)
    twice = {each for inner in once for each in _quoted(inner)}
    return once | twice | {quote(value), quote(value, safe=""), quote_plus(value)}


def _quoted(value: str) -> set[str]:
    return {text[1:-1] for text in (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False))}
