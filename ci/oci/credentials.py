"""What `docker login` left: the user and password for a registry."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

# Under which name Docker Hub's credentials are kept.
_KEPT_AS = {"registry-1.docker.io": "https://index.docker.io/v1/"}


def basic(host: str) -> str | None:
    """The value of an HTTP Authorization header, None where nobody logged in there."""
    path = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "config.json"
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    key = _KEPT_AS.get(host, host)
    helper = config.get("credHelpers", {}).get(key) or config.get("credsStore")
    kept = _from_helper(helper, key) if helper else config.get("auths", {}).get(key, {}).get("auth")
    return f"Basic {kept}" if kept else None


def _from_helper(name: str, key: str) -> str | None:
    """What a credential helper of Docker's has, in the same form."""
    program = shutil.which(f"docker-credential-{name}")
    if program is None:
        return None
    done = subprocess.run([program, "get"], input=key, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    said: dict[str, Any] = json.loads(done.stdout)
    return base64.b64encode(f"{said['Username']}:{said['Secret']}".encode()).decode()
