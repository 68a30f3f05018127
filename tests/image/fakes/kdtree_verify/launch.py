"""Tells what it was started with, as one JSON line on stdout, and ends."""

import json
import os
import sys
from pathlib import Path

argv = sys.argv[1:]
config = argv[argv.index("--config") + 1] if "--config" in argv else None
print(
    json.dumps(
        {
            "argv": argv,
            "pid": os.getpid(),
            "config": Path(config).read_text() if config else None,
            "mode": oct(Path(config).stat().st_mode & 0o777) if config else None,
        }
    )
)
