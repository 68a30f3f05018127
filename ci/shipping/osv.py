"""The OSV database's API, as much of it as asks for one package: https://google.github.io/osv.dev/post-v1-query/."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .errors import EXIT_SKIPPED, ShippingError

SEVERITIES = ("negligible", "low", "medium", "high", "critical")
_WORDS = {"moderate": "medium"}
_DISTRIBUTIONS = {"debian": "Debian:{}", "ubuntu": "Ubuntu:{}:LTS"}
_TIMEOUT = 30.0
_PAGES = 100  # of advisories for one package: more is a database that never ends


@dataclass(frozen=True)
class Finding:
    """An advisory that names a package in its version.

    Attributes:
        id: OSV's.
        names: That and its aliases, a CVE among them as a rule.
        severity: One of SEVERITIES; critical where the advisory has no word for it.
    """

    id: str
    names: frozenset[str]
    severity: str
    summary: str


def query(purl: str) -> dict[str, Any] | None:
    """What to ask for a package URL; None where OSV has nothing of its kind."""
    kind, _, rest = purl.removeprefix("pkg:").partition("/")
    name_version, _, qualifiers = rest.partition("?")
    name, _, version = urllib.parse.unquote(name_version).rpartition("@")
    if kind == "pypi":
        return {"package": {"ecosystem": "PyPI", "name": name}, "version": version}
    if kind != "deb":
        return None
    # A distribution's advisories are of source packages.
    told = dict(urllib.parse.parse_qsl(qualifiers))
    distribution, _, package = name.partition("/")
    source, _, source_version = told.get("upstream", package).partition("@")
    _, _, release = told.get("distro", "").partition("-")
    if distribution not in _DISTRIBUTIONS or not release:
        return None
    ecosystem = _DISTRIBUTIONS[distribution].format(release)
    return {"package": {"ecosystem": ecosystem, "name": source}, "version": source_version or version}


def findings(database: str, asked: dict[str, Any]) -> Iterator[Finding]:
    """All advisories for a query. Raises ShippingError with EXIT_SKIPPED where the database cannot be had."""
    page: dict[str, Any] = {}
    for _ in range(_PAGES):
        answer = _post(f"{database}/v1/query", asked | page)
        for found in answer.get("vulns", []):
            names = frozenset([found["id"], *found.get("aliases", []), *found.get("upstream", [])])
            yield Finding(found["id"], names, _severity(found), found.get("summary", ""))
        if not (token := answer.get("next_page_token")):
            return
        page = {"page_token": token}
    raise ShippingError(f"not scanned: {database} does not end: {asked}. Fix: the database", EXIT_SKIPPED)


def _severity(found: dict[str, Any]) -> str:
    """The advisory's own word. A CVSS vector alone is none: what is not understood is not taken for harmless."""
    words = [found.get("database_specific", {}).get("severity")]
    words += [each.get("score") for each in found.get("severity", []) if each.get("type") == "Ubuntu"]
    known = [_WORDS.get(str(word).lower(), str(word).lower()) for word in words if word]
    return max((word for word in known if word in SEVERITIES), key=SEVERITIES.index, default="critical")


def _post(url: str, asked: dict[str, Any]) -> dict[str, Any]:
    local = urllib.parse.urlsplit(url).hostname in ("127.0.0.1", "localhost")
    opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))
    request = urllib.request.Request(url, json.dumps(asked).encode(), {"Content-Type": "application/json"})
    try:
        with opener.open(request, timeout=_TIMEOUT) as answer:
            found = json.load(answer)
            if isinstance(found, dict):
                return found
            why = "its answer is no JSON object"
    except urllib.error.HTTPError as error:
        if error.code < 500:
            said = f"{url} refuses the question with HTTP {error.code}: {asked}"
            raise ShippingError(f"{said}. Fix: ci/shipping/osv.py") from error
        why = f"HTTP {error.code}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        why = str(getattr(error, "reason", error))
    raise ShippingError(f"not scanned: the database cannot be had: {url}: {why}. Fix: the network", EXIT_SKIPPED)
