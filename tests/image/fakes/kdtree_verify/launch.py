"""Tells what it was started with, as one JSON line on stdout, and ends; if told so, once it has read a line."""

import fcntl
import json
import os
import sys
from pathlib import Path


def is_locked(path: str) -> bool:
    """By another open of the file than this one."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


argv = sys.argv[1:]
config = argv[argv.index("--config") + 1] if "--config" in argv else None
print(
    json.dumps(
        {
            "argv": argv,
            "pid": os.getpid(),
            "config": Path(config).read_text() if config else None,
            "locked": is_locked(config) if config else None,
            "mode": oct(Path(config).stat().st_mode & 0o777) if config else None,
        }
    ),
    flush=True,
)
if os.environ.get("FAKE_LAUNCH_WAITS"):
    sys.stdin.readline()
