"""Make PyPI's torchvision importable beside a CPU build of torch: `python -m kdtree_cpu_shim.torchvision_ops`.

PyPI's torchvision is linked against CUDA torch. Beside CPU torch its extension does not load, and its Python
side then fails on "operator torchvision::nms does not exist". SGLang imports torchvision but calls none of its
operators for a text model, so declaring the two operators without an implementation is enough. The lines are
appended to torchvision/extension.py of this interpreter's environment; a second run changes nothing.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

MARK = "# kdtree-cpu-shim: declare what a missing _C.so would have"
DECLARATION = f'''

{MARK}
if not _has_ops():
    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
'''


def main() -> int:
    spec = importlib.util.find_spec("torchvision")  # finds, does not import
    if spec is None or spec.origin is None:
        print("kdtree-cpu-shim: torchvision is not installed in this environment", file=sys.stderr)
        return 1
    extension = Path(spec.origin).with_name("extension.py")
    source = extension.read_text()
    if MARK not in source:
        extension.write_text(source + DECLARATION)
    return 0


if __name__ == "__main__":
    sys.exit(main())
