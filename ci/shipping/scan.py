"""ci/scan [--sbom FILE] [--database URL]: whether what the image adds to its base has known vulnerabilities.

Takes the additions from the SBOM (build/sbom.spdx.json) and asks the OSV database for each in its version. The base's
own packages are its makers' to patch; a scanner of your own finds them in the same SBOM. What counts and what is borne
until when stands in ci/shipping.toml.

Exit codes: 0 nothing that counts; 1 a finding; 64 bad arguments, or a policy that is none; 77 not scanned, and the line
says why: the database cannot be had.
"""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from command_line import Parser

from . import files, osv, spdx
from .errors import EXIT_FAILED, ShippingError, in_one_line

_IGNORED = {"id": str, "package": str, "until": datetime.date, "reason": str}


def main() -> int:
    parser = Parser(prog="ci/scan", description=__doc__)
    parser.add_argument("--sbom", type=Path, default=files.SBOM)
    parser.add_argument("--database", help="another address of OSV's API than ci/shipping.toml's")
    options = parser.parse_args()

    def run() -> int:
        policy = files.policy("vulnerabilities")
        check(policy)
        additions = spdx.ours(files.read(options.sbom, "ci/sbom"))
        return scan(additions, policy, options.database or policy["database"], datetime.date.today())

    return in_one_line(run)


def check(policy: dict[str, Any]) -> None:
    """Raises ShippingError where the policy would let something pass unseen."""
    if policy["fail-at"] not in osv.SEVERITIES:
        raise ShippingError(f"no severity: {policy['fail-at']}. Fix: one of {', '.join(osv.SEVERITIES)}", os.EX_USAGE)
    for entry in policy.get("ignored", []):
        wrong = [name for name, kind in _IGNORED.items() if not isinstance(entry.get(name), kind) or not entry[name]]
        if wrong or set(entry) - set(_IGNORED):
            fix = "id, package, until (a date) and reason, nothing else"
            raise ShippingError(f"ignored vulnerability {entry}: not whole. Fix: {fix}", os.EX_USAGE)


def scan(additions: dict[str, dict[str, Any]], policy: dict[str, Any], database: str, today: datetime.date) -> int:
    """Prints a line for each addition and finding; 1 where one counts."""
    if not additions:
        raise ShippingError("the SBOM names nothing that is added. Fix: ci/sbom", os.EX_USAGE)
    counted = 0
    for name, package in sorted(additions.items()):
        asked = osv.query(purl) if (purl := _purl(package)) else None
        if asked is None:
            print(f"-   {name} {package['versionInfo']}: OSV has no advisories for its kind")
            continue
        try:
            found = list(osv.findings(database, asked))
        except ShippingError as error:
            if not counted:
                raise
            # What was found before is no scan that was not made.
            raise ShippingError(f"vulnerabilities in what the image adds: {counted}; the rest {error}") from error
        if not found:
            print(f"ok  {name} {package['versionInfo']}")
        for finding in found:
            verdict = _verdict(name, finding, policy, today)
            counted += verdict == "fails"
            print(f"{verdict}: {name} {package['versionInfo']}: {finding.id} ({finding.severity}) {finding.summary}")
    if not counted:
        return 0
    fix = "a newer version, or with a reason and a day in ci/shipping.toml"
    print(f"kdtree: vulnerabilities in what the image adds: {counted}. Fix: {fix}", file=sys.stderr)
    return EXIT_FAILED


def _purl(package: dict[str, Any]) -> str | None:
    references: Iterator[str] = (
        reference["referenceLocator"]
        for reference in package.get("externalRefs", [])
        if reference["referenceType"] == "purl"
    )
    return next(references, None)


def _verdict(package: str, finding: osv.Finding, policy: dict[str, Any], today: datetime.date) -> str:
    if osv.SEVERITIES.index(finding.severity) < osv.SEVERITIES.index(policy["fail-at"]):
        return "below the policy's severity"
    for entry in policy.get("ignored", []):
        if entry["package"] == package and entry["id"] in finding.names and today < entry["until"]:
            return f"borne until {entry['until']} ({entry['reason']})"
    return "fails"
