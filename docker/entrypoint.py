#!/opt/sglang/bin/python
"""What the image runs first: checks the GPUs that this container sees, then becomes SGLang's server.

  docker run ... IMAGE --model-path ... [SGLang's arguments]   checks, then the server with KDTREE_VERIFY's mode
  docker run ... IMAGE bash|python3|kdtree|sglang ...          that program, as given, without checks
  docker run ... IMAGE --help                                  this, then SGLang's own help

  KDTREE_VERIFY        off (default), validate or on
  KDTREE_ALLOW_CC      development only: compute capabilities to accept besides 12.0, e.g. 9.0 or 9.0,10.0
  KDTREE_DEVICE        cpu: no GPU, the host library; only with --device cpu and where no GPU is visible
  KDTREE_API_KEY_FILE  file that holds the API key, handed on in no command line (SGLang's own log shows it)
  KDTREE_STATE_DIR     where the server and its ranks report (default /run/kdtree)

Exit codes: 64 bad usage or value, 69 GPU or driver refused; later ones are the server's. It ends in exec, so that
nothing of it remains, and never initializes CUDA: SGLang's ranks do, each for itself.
"""

from __future__ import annotations

import glob
import json
import os
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import gpus
from refusal import EXIT_USAGE, Refusal

EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127

MODES = ("off", "validate", "on")
DEVICES = ("cuda", "cpu")
PRODUCT_CC = "12.0"
IMAGE_STATE_DIR = "/run/kdtree"


@dataclass(frozen=True)
class Settings:
    """The environment, read once."""

    mode: str
    device: str
    allowed: tuple[str, ...]
    api_key_file: str
    state_dir: Path


def say(text: str) -> None:
    print(f"kdtree: {text}", file=sys.stderr, flush=True)


# ---- the environment


def read_settings(env: Mapping[str, str]) -> Settings:
    """Raises Refusal where a variable holds what it may not."""
    return Settings(
        mode=choice(env, "KDTREE_VERIFY", MODES),
        device=choice(env, "KDTREE_DEVICE", DEVICES),
        allowed=(PRODUCT_CC, *extra_capabilities(env.get("KDTREE_ALLOW_CC", ""))),
        api_key_file=env.get("KDTREE_API_KEY_FILE", ""),
        state_dir=state_dir(env),
    )


def choice(env: Mapping[str, str], name: str, values: tuple[str, ...]) -> str:
    """One of `values`, the first where the variable is unset or empty."""
    value = env.get(name) or values[0]
    if value not in values:
        listed = ", ".join(values)
        raise Refusal(EXIT_USAGE, f"{name} is not one of {listed}", f"'{value}'", f"set {name} to one of {listed}")
    return value


def extra_capabilities(text: str) -> tuple[str, ...]:
    """KDTREE_ALLOW_CC's list, e.g. "9.0,10.0"."""
    values = tuple(part.strip() for part in text.split(",") if part.strip())
    for value in values:
        if not re.fullmatch(r"[0-9]+\.[0-9]", value):
            fix = "set KDTREE_ALLOW_CC to a list such as 9.0,10.0, or unset it"
            raise Refusal(EXIT_USAGE, "KDTREE_ALLOW_CC holds no compute capability", f"'{value}'", fix)
    return values


def state_dir(env: Mapping[str, str]) -> Path:
    """The folder that kdtree_verify would choose, too: /run/kdtree where it can be written."""
    if env.get("KDTREE_STATE_DIR"):
        return Path(env["KDTREE_STATE_DIR"])
    if os.access(IMAGE_STATE_DIR, os.W_OK):
        return Path(IMAGE_STATE_DIR)
    return Path(env.get("XDG_RUNTIME_DIR") or "/tmp") / f"kdtree-{os.getuid()}"


# ---- the device


def check_gpus(settings: Settings, env: Mapping[str, str]) -> None:
    """Lists the GPUs; raises Refusal where the driver, or with validate and on a GPU, is not the image's."""
    try:
        found = gpus.survey(env)
    except Refusal as refusal:
        if settings.mode != "off":
            raise
        # Off is the way back: that NVML fails is no reason not to try. SGLang itself will tell.
        print(f"{refusal} (KDTREE_VERIFY=off: going on)", file=sys.stderr)
        return
    for gpu in found.gpus:
        say(f"{gpu}, driver {found.driver}")
    gpus.check_driver(found.driver)
    if settings.mode != "off":
        gpus.check_used(found, settings.mode, settings.allowed)


def check_cpu(arguments: list[str]) -> None:
    """KDTREE_DEVICE=cpu is for machines without a GPU; raises Refusal on any other, where it would hide one."""
    if not asks_for_cpu(arguments):
        fix = "add --device cpu to the server's arguments, or unset KDTREE_DEVICE"
        raise Refusal(EXIT_USAGE, "KDTREE_DEVICE=cpu needs a server on the CPU", "no --device cpu", fix)
    nodes = glob.glob("/dev/nvidia[0-9]*")
    if nodes or os.path.exists("/dev/dxg"):
        found = f"{', '.join(sorted(nodes)) or '/dev/dxg'} in this container"
        fix = "unset KDTREE_DEVICE to use the GPU, or start the container without one"
        raise Refusal(EXIT_USAGE, "KDTREE_DEVICE=cpu on a machine with a GPU", found, fix)


def asks_for_cpu(arguments: list[str]) -> bool:
    return ("--device", "cpu") in pairwise(arguments) or "--device=cpu" in arguments


# ---- the API key


def with_api_key(arguments: list[str], settings: Settings) -> list[str]:
    """The arguments with a --config file that holds the key of KDTREE_API_KEY_FILE; as they are where none is asked.

    The file is this user's alone (0600). SGLang takes one --config, and lets arguments override what it says.
    """
    key = read_key(settings.api_key_file)
    if key is None:
        return arguments
    if "--config" in arguments:
        fix = "put 'api-key:' into that file (mode 0600) and unset KDTREE_API_KEY_FILE"
        raise Refusal(EXIT_USAGE, "SGLang takes one --config", "--config beside KDTREE_API_KEY_FILE", fix)
    config = settings.state_dir / "server-arguments.yaml"
    try:
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        config.unlink(missing_ok=True)
        descriptor = os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            # JSON's strings are YAML's.
            file.write(f"api-key: {json.dumps(key)}\n")
    except OSError as error:
        fix = "set KDTREE_STATE_DIR to a folder that can be written (--tmpfs /run/kdtree)"
        raise Refusal(EXIT_USAGE, "the API key cannot be handed on", f"{config}: {error.strerror}", fix) from None
    return ["--config", str(config), *arguments]


def read_key(path: str) -> str | None:
    """The key in a file; None where no file is named, or where it is a device (compose.yaml's default, /dev/null)."""
    if not path:
        return None
    fix = "set KDTREE_API_KEY_FILE to a file with one line, or unset it"
    try:
        if stat.S_ISCHR(os.stat(path).st_mode):
            return None
        key = Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise Refusal(EXIT_USAGE, "the API key's file cannot be read", f"{path}: {reason}", fix) from None
    if not key or len(key.split()) != 1 or key.startswith("-"):
        found = "nothing" if not key else "more than one word" if len(key.split()) > 1 else "a leading -"
        raise Refusal(EXIT_USAGE, "the API key's file holds no key", f"{path}: {found}", fix)
    return key


# ---- becoming something else


def become(command: list[str]) -> NoReturn:
    """Replaces this process. Ends it with the shell's codes where the program is missing or not one."""
    sys.stderr.flush()
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        say(f"no such program: {command[0]}. Fix: name one in the image, or give SGLang arguments that begin with -")
        sys.exit(EXIT_NOT_FOUND)
    except OSError as error:
        say(f"{command[0]} cannot be run: {error.strerror}. Fix: name a program")
        sys.exit(EXIT_NOT_EXECUTABLE)


def serve(arguments: list[str], env: Mapping[str, str]) -> NoReturn:
    """Checks, then the server. Raises Refusal."""
    settings = read_settings(env)
    say(f"mode {settings.mode}")
    if len(settings.allowed) > 1:
        say(f"warning: KDTREE_ALLOW_CC accepts {', '.join(settings.allowed[1:])}: for development, not for serving")
    if settings.device == "cpu":
        check_cpu(arguments)
        say("warning: KDTREE_DEVICE=cpu: the host library, for tests and demonstrations, not for serving")
    else:
        check_gpus(settings, env)
    become([sys.executable, "-m", "kdtree_verify.launch", *with_api_key(arguments, settings)])


def main(arguments: list[str]) -> NoReturn:
    if not arguments or not arguments[0]:
        fix = "give SGLang's arguments (--model-path ...), a program, or --help"
        raise Refusal(EXIT_USAGE, "nothing to run", "no arguments" if not arguments else "an empty argument", fix)
    if not arguments[0].startswith("-"):
        become(arguments)
    if arguments[0] in ("-h", "--help"):
        print(__doc__, flush=True)
        become([sys.executable, "-m", "sglang.launch_server", *arguments])
    serve(arguments, os.environ)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except Refusal as refusal:
        print(refusal, file=sys.stderr, flush=True)
        sys.exit(refusal.code)
