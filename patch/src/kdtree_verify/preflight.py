"""What must hold before a server starts with validate or on: checked without a GPU and without importing SGLang.

`python -m kdtree_verify.preflight` runs the same checks for every library in the folder; the image build does.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points

from . import contract
from .config import Config, Device, from_environment
from .errors import ContractError, ExitCode, KdtreeError, LibraryError
from .native import library

GROUP = "sglang.srt.plugins"
NAME = "kdtree"
FILTER = "SGLANG_PLUGINS"


def check(config: Config) -> None:
    """Checks the plugin, the installed SGLang and the library that the server would use.

    Raises:
        ContractError: SGLang would not load the plugin, or is not the one it was written for.
        LibraryError: The library is missing or foreign.
    """
    check_plugin(os.environ.get(FILTER, ""))
    contract.check_sources(contract.installed_root())
    library.load(config.library_dir, config.device)


def check_plugin(allowed: str) -> None:
    """Checks that SGLang will find the plugin and load it.

    Args:
        allowed: SGLANG_PLUGINS: names of plugins, comma-separated; empty allows all.

    Raises:
        ContractError: The entry point is missing, does not load, or is filtered out.
    """
    found = [entry for entry in entry_points(group=GROUP) if entry.name == NAME]
    if not found:
        raise ContractError(
            "SGLang cannot find the plugin", f"no entry point {NAME} in {GROUP}", "install the kdtree-verify wheel"
        )
    names = {name.strip() for name in allowed.split(",") if name.strip()}
    # SGLang takes any text at all for a list: " " and "," name no plugin, and let none in.
    if allowed and NAME not in names:
        raise ContractError(
            "SGLang would leave the plugin out", f"{FILTER}='{allowed}'", f"add {NAME} to {FILTER}, or unset it"
        )
    try:
        found[0].load()
    except Exception as error:
        raise ContractError("the plugin does not load", repr(error), "reinstall the kdtree-verify wheel") from error


def main() -> int:
    try:
        config = from_environment()
        check_plugin("")
        contract.check_sources(contract.installed_root())
        present = [device for device in Device if (config.library_dir / library.FILE_NAMES[device]).is_file()]
        if not present:
            raise LibraryError("no kernel library", str(config.library_dir), "set KDTREE_LIBRARY_DIR")
        for device in present:
            found = library.load(config.library_dir, device).description
            print(f"{found.path}: {found.version}, {found.device_kind} {','.join(found.archs)}, {found.compiler}")
        print(f"SGLang in {contract.installed_root()}: as expected; plugin {NAME}: found")
    except KdtreeError as error:
        print(error, file=sys.stderr)
        return int(error.code)
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
