"""The `kdtree` command. Only `selftest` and `replay` import torch."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NoReturn

from . import versions
from .config import Config, Device, from_environment
from .doctor import command as doctor
from .errors import ExitCode, KdtreeError, LibraryError, UsageError
from .native import abi, library
from .native.devices import check_architecture, on_machine
from .replay import command as replay
from .reporting import status_command
from .verdict import command as report

if TYPE_CHECKING:
    import torch

_EXIT_CODES = """\
exit codes:
  0   as asked
  1   health: not healthy; status: no server has reported; replay: see there, up to 4
  2   report: not yet
  3   report: no, on is not justified
  64  a bad argument or environment value
  65  doctor: the NVIDIA driver is too old
  66  a GPU that the kernel was not made for, or that the library has no machine code for
  68  replay: no memory left for the call
  69  no GPU can be seen, or not that one
  70  the kernel library is missing or foreign
  71  doctor: CUDA does not start
  72  doctor: /dev/shm is too small for the ranks
  73  doctor: the model's weights do not fit the GPUs' free memory
  74  doctor --p2p: the GPUs do not exchange data rightly, or not in time
  75  doctor: too little memory may be locked
  76  the kernel failed its self-test
  77  doctor: the model's folder cannot be read, or the caches' written
  78  doctor: SGLang is not what the patch was written for, or the plugin cannot load
  141 who read the output ended before it was written

environment:
  KDTREE_LIBRARY_DIR  where the kernel libraries lie (default /opt/kdtree/lib)
  KDTREE_STATE_DIR    where server and ranks report (default /run/kdtree where that can be written)
  KDTREE_EVIDENCE_DIR report: where what validate measured is kept (default /var/lib/kdtree, likewise)
  KDTREE_DEVICE       cpu: the host library
  KDTREE_ALLOW_CC     doctor: compute capabilities to accept besides 12.0, for development"""


_BROKEN_PIPE = 128 + 13  # as the signal would have ended it


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code; what it refuses is one line on stderr."""
    # A model's name, or a file's, need not be in the terminal's encoding: the verdict is written all the same.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        parsed, unknown = _parser().parse_known_args(arguments)
        if unknown:
            fix = "see kdtree --help"
            if parsed.command is doctor.main:  # what is mostly forgotten there
                fix = "give the server's arguments after --: kdtree doctor -- --model-path ..."
            raise UsageError("bad arguments", f"unrecognized arguments: {' '.join(unknown)}", fix)
        config = from_environment()
        code = int(parsed.command(parsed, config))
        if sys.stdout is not None:  # as it is where it was closed: the exit code was wanted alone
            sys.stdout.flush()
        return code
    except KdtreeError as error:
        print(error, file=sys.stderr)
        return int(error.code)
    except BrokenPipeError:
        # `kdtree report | head`: who reads has enough. Not 0, which would be a yes.
        _abandon_stdout()
        return _BROKEN_PIPE
    except OSError as error:
        if error.filename is not None:
            raise
        _abandon_stdout()
        # Not 1, which would say what `replay` and `health` found.
        refused = UsageError("the output cannot be written", error.strerror or str(error), "send it elsewhere")
        print(refused, file=sys.stderr)
        return int(refused.code)


def _abandon_stdout() -> None:
    """Python would try once more when it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError("bad arguments", message, f"see {self.prog} --help")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kdtree",
        description="Proves, shows and checks KDTree, the tree-verify kernel in SGLang.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    command = commands.add_parser(
        "selftest",
        help="prove the kernel library on this machine's GPUs, in seconds",
        description="Computes about 15 shapes with every compiled variant, eager and in a CUDA graph, and "
        "compares them with recorded float64 results. Needs no model. An idle GPU is not needed, some memory is.",
    )
    command.add_argument(
        "--device",
        metavar="DEVICE",
        help="cuda:N, all (GPUs), or cpu, the host library (default all, or KDTREE_DEVICE)",
    )
    command.add_argument("--heads", type=int, default=16, metavar="H", help="query heads of one rank (default 16)")
    command.add_argument(
        "--draft-tokens", type=int, default=16, metavar="T", help="draft tokens of one request (default 16)"
    )
    command.add_argument("--json", action="store_true", help="every case as JSON on stdout")
    command.set_defaults(command=_selftest)

    doctor.add_to(commands)

    status_command.add_to(commands)
    replay.add_to(commands)
    report.add_to(commands)

    command = commands.add_parser(
        "version", help="versions, and what the kernel libraries say of themselves", description="For bug reports."
    )
    command.add_argument("--json", action="store_true", help="as JSON on stdout")
    command.set_defaults(command=_version)
    return parser


def _selftest(arguments: argparse.Namespace, config: Config) -> ExitCode:
    device = arguments.device or ("cpu" if config.device is Device.CPU else "all")
    devices = on_machine(device)
    kernels = library.load(config.library_dir, Device.CPU if device == "cpu" else Device.CUDA)
    code = ExitCode.OK
    documents = []
    for each in devices:
        document, line, error = _prove(kernels, each, arguments)
        documents.append(document)
        if not arguments.json and line:
            print(line, flush=True)
        if error:  # The other devices are still worth knowing.
            print(error, file=sys.stderr, flush=True)
            code = code or error.code
    if arguments.json:
        print(json.dumps({"passed": code == ExitCode.OK, "reports": documents}, indent=1))
    return code


def _prove(
    kernels: library.Library, device: torch.device, arguments: argparse.Namespace
) -> tuple[dict[str, Any], str | None, KdtreeError | None]:
    """The self-test's report on one device as JSON and as a line, and what it failed with."""
    from . import selftest

    try:
        check_architecture(kernels, device)
        report = selftest.run(kernels, device, arguments.heads, arguments.draft_tokens)
    except UsageError:
        raise
    except KdtreeError as error:
        return {"device": str(device), "passed": False, "error": str(error)}, None, error
    return report.as_dict(), report.summary(), report.failure()


def _version(arguments: argparse.Namespace, config: Config) -> ExitCode:
    document: dict[str, Any] = {
        **versions.versions(),
        "python": sys.version.split()[0],
        "abi": abi.ABI_VERSION,
        "libraries": {device.value: _describe(config, device) for device in Device},
    }
    if arguments.json:
        print(json.dumps(document, indent=1))
        return ExitCode.OK
    libraries = document.pop("libraries")
    print(", ".join(f"{name} {value}" for name, value in document.items() if value is not None))
    for name, found in libraries.items():
        print(f"{name}: {found.get('error') or _library_line(found)}")
    return ExitCode.OK


def _library_line(found: dict[str, Any]) -> str:
    made_for, variants = ", ".join(found["archs"]) or "host", ", ".join(found["variants"])
    return (
        f"{found['path']}: {found['version']}, {made_for}, {found['compiler']}, variants {variants}, "
        f"sha256 {found['sha256'][:12]}, sources {found['source_hash'][:12]}"
    )


def _describe(config: Config, device: Device) -> dict[str, Any]:
    try:
        description = library.load(config.library_dir, device).description
    except LibraryError as error:
        return {"error": f"{error.what}: {error.found}"}
    dtypes = ("q_dtypes", "pool_dtypes", "out_dtypes")
    return asdict(description) | {
        "path": str(description.path),
        **{name: sorted(dtype.name.lower() for dtype in getattr(description, name)) for name in dtypes},
    }


if __name__ == "__main__":
    sys.exit(main())
