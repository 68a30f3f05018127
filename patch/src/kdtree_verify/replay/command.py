"""`kdtree replay`: a captured call once more, and who was right."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import Config, Device
from ..errors import UsageError
from ..native import library
from ..native.devices import check_architecture, on_machine
from ..terminal import printable

if TYPE_CHECKING:
    import torch

    from .capture import Capture
    from .origin import Origin

DESCRIPTION = """\
Computes a call that a server kept, because its difference left the bound, once more: in float64, by every variant of
this machine's kernel library, and by SGLang's own kernel where a GPU is, or where Triton's interpreter was asked for
(TRITON_INTERPRET=1, with --device cpu). Then says who was right. Files lie in captures/ of KDTREE_EVIDENCE_DIR.

exit codes:
  0   both were within what their arithmetic allows
  1   ours was wrong
  2   stock was wrong, ours right
  3   both were wrong
  4   cannot be repeated: recorded ours was wrong, the same library computes the recorded inputs rightly
  64  a bad argument, or a file that is no capture
  66  the library has no machine code for the GPU
  68  the GPU has no memory left for the call
  69  no such GPU
  70  the kernel library is missing, foreign, or refuses the call"""


def add_to(commands: argparse._SubParsersAction[Any]) -> None:
    command = commands.add_parser(
        "replay",
        help="repeat a call that left its bound, from its file, and say who was right",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("file", type=Path, metavar="FILE", help="a capture")
    command.add_argument(
        "--device",
        metavar="DEVICE",
        help="cpu, the host library, or cuda:N (default cuda:0 where that library made the capture and a GPU is here)",
    )
    command.add_argument("--json", action="store_true", help="every figure as JSON on stdout")
    command.set_defaults(command=main)


def main(parsed: argparse.Namespace, config: Config) -> int:
    """Raises KdtreeError where the file, the device or the library is none."""
    if parsed.device == "all":
        raise UsageError("--device is none", "'all'", "give cuda:N or cpu")
    (cpu,) = on_machine("cpu")  # refuses where torch is not

    from . import file, judge, origin, reference, repeat, text

    capture, made = file.read(parsed.file)
    (device,) = on_machine(parsed.device or _default_device(made, config))
    kernels = library.load(config.library_dir, Device.CPU if device == cpu else Device.CUDA)
    check_architecture(kernels, device)
    where = text.Where(parsed.file, origin.device_name(device), origin.library_facts(kernels.description))
    if not parsed.json:
        _print(text.head(where, capture, made))
    exact = reference.compute(capture)
    ours = repeat.ours(capture, kernels, device)
    stock, why_not = _stock(capture, device)
    found = judge.judge(capture, made, exact, where.library, ours, stock)
    if parsed.json:
        print(json.dumps(text.document(where, capture, made, found), indent=1))
    else:
        _print(text.findings(capture, exact, found, why_not))
    return int(found.verdict)


def _print(lines: Iterable[str]) -> None:
    print("\n".join(map(printable, lines)), flush=True)


def _default_device(made: Origin, config: Config) -> str:
    import torch

    wanted = made.library.get("kind") == "cuda" and config.device is not Device.CPU
    return "cuda:0" if wanted and torch.cuda.is_available() else "cpu"


def _stock(capture: Capture, device: torch.device) -> tuple[torch.Tensor | None, str]:
    """What SGLang's kernel answers here, or None and why it was not asked. Its recorded answer stands then."""
    from . import repeat

    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return None, "it needs a GPU, or Triton's interpreter (TRITON_INTERPRET=1)"
    try:
        if device.type == "cpu":
            # As in a server: what mends the interpreter's arithmetic on bf16 is a plugin.
            from sglang.srt.plugins import load_plugins

            load_plugins()
        return repeat.stock(capture, device), ""
    except Exception as error:  # another SGLang, none, or one whose kernel does not compile here
        return None, " ".join(str(error).split())[:200] or type(error).__name__
