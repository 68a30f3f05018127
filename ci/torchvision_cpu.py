#!/usr/bin/env python3
"""Makes an installed PyPI torchvision importable beside a CPU torch: torchvision_cpu.py SITE_PACKAGES

PyPI's torchvision is linked to CUDA's torch. Beside a CPU build its _C.so does not load, nothing registers
torchvision::nms, and the import of torchvision fails where it registers shapes for it. SGLang imports
torchvision but calls none of its operators on a text model, so declaring their schemas is enough; a call
still fails, by name. For test environments and stand-in images, never for a real base.
"""

from __future__ import annotations

import sys
from pathlib import Path

MARK = "# kdtree: schemas only, for a CPU torch"
DECLARATION = f"""

{MARK}
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print(__doc__, file=sys.stderr)
        return 64
    extension = Path(argv[0]) / "torchvision" / "extension.py"
    source = extension.read_text(encoding="utf-8")
    if MARK not in source:
        extension.write_text(source + DECLARATION, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
