"""SGLang's entry point (group sglang.srt.plugins, name kdtree): called in every process of the server.

It imports nothing of SGLang. A process that imports the Triton backend, a scheduler, is patched as it does so.
"""

from __future__ import annotations

import functools
import os
import sys

from . import redaction
from .config import Mode, from_environment
from .contract import BACKEND_MODULE, RUNNER_MODULE
from .errors import ContractError, KdtreeError, end_process
from .importhook import when_imported
from .orphan import end_if_orphan

SCHEDULER_MODULE = "sglang.srt.managers.scheduler"


def register() -> None:
    """Arms this process for what KDTREE_VERIFY asks. A second call finds the first one's work and adds none.

    Raises:
        SystemExit: The environment is wrong or SGLang is foreign; one line on stderr says what to do.
    """
    end_if_orphan()
    # In a process that the launcher started, or one that was spawned, this is there already.
    redaction.everywhere(redaction.find(sys.argv[1:], os.environ))
    try:
        _register()
    except KdtreeError as error:
        end_process(error)
    except Exception as error:
        # SGLang logs an Exception of a plugin and serves on without it.
        end_process(ContractError("the plugin could not be loaded", repr(error), "reinstall the kdtree-verify wheel"))


@functools.cache
def _register() -> None:
    config = from_environment()
    if config.mode is Mode.OFF:
        from . import off

        when_imported(SCHEDULER_MODULE, lambda module: off.report_scheduler(module, config.state_dir))
        return
    from .rank.process import Process

    process = Process(config)
    when_imported(RUNNER_MODULE, process.patch_runner)
    when_imported(BACKEND_MODULE, process.patch_backend)
    when_imported(SCHEDULER_MODULE, process.patch_scheduler)
