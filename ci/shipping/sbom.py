"""ci/sbom IMAGE [--output FILE]: writes the SPDX document (JSON) of an image that ci/image has built last.

All packages, the base's and ours; ours with their licences, the kernel libraries with the hash of their sources, and
what is linked into them. Without --output it is build/sbom.spdx.json.

Exit codes: 1 no such image, or one that ci/image did not build; 64 bad arguments; 69 no Syft; 73 the file
cannot be written.
"""

from __future__ import annotations

from pathlib import Path

from command_line import Parser
from pinning import lockfile

from . import built, files, spdx, syft
from .errors import in_one_line


def main() -> int:
    parser = Parser(prog="ci/sbom", description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--output", type=Path, default=files.SBOM)
    options = parser.parse_args()
    return in_one_line(lambda: write(options.image, options.output))


def write(image: str, path: Path) -> int:
    found = built.look_at(image)
    licences, runtime = files.policy("licences"), lockfile.get(lockfile.load(), "cuda.version")
    document = files.write(path, lambda: spdx.document(syft.scan(image), found, licences, runtime))
    ours = ", ".join(f"{name} {package['versionInfo']}" for name, package in sorted(spdx.ours(document).items()))
    print(f"{path}: {len(document['packages'])} packages; added to the base: {ours}")
    return 0
