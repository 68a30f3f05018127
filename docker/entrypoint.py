#!/opt/sglang/bin/python
"""What the image runs first: checks what the server needs of this container, then becomes SGLang's server.

  docker run ... IMAGE --model-path ... [SGLang's arguments]   checks, then the server with KDTREE_VERIFY's mode
  docker run ... IMAGE bash|python3|kdtree|sglang ...          that program, as given, without checks
  docker run ... IMAGE --help                                  this, then SGLang's own help

  KDTREE_VERIFY        off (default), validate or on
  KDTREE_ALLOW_CC      development only: compute capabilities to accept besides 12.0, e.g. 9.0 or 9.0,10.0
  KDTREE_DEVICE        cpu: no GPU, the host library; only with --device cpu and where no GPU is visible
  KDTREE_API_KEY_FILE  file that holds the API key, handed on in no command line, and hidden in the log
  HF_TOKEN_PATH        file that holds the Hugging Face token
  KDTREE_STATE_DIR     where the server and its ranks report (default /run/kdtree)

Exit codes: 64 bad usage or value, 65 driver too old, 66 another card than the kernel's, 69 no GPU, 71 CUDA does not
start, 72 /dev/shm too small, 73 the model does not fit the GPUs, 75 memlock too low, 77 the model or the caches are
another user's, 78 no kdtree-verify wheel; later ones are the server's. `kdtree doctor` asks the same, and more. It ends
in exec, so that nothing of it remains, and never initializes CUDA: a child process does, to try it, and SGLang's ranks
do, each for itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

try:
    from kdtree_verify.config import Config, Mode, from_environment
    from kdtree_verify.doctor import arguments as server_arguments
    from kdtree_verify.doctor import run
    from kdtree_verify.doctor.finding import Status
    from kdtree_verify.errors import KdtreeError, UsageError
except ImportError as error:  # programs run without it; a server does not
    no_wheel: ImportError | None = error
else:
    no_wheel = None

EXIT_USAGE = 64
EXIT_CONTRACT = 78
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


def say(text: str) -> None:
    print(f"kdtree: {text}", file=sys.stderr, flush=True)


# ---- the checks


def check(arguments: list[str], config: Config, env: Mapping[str, str]) -> None:
    """Says what is here. The first failure ends this process with its line and its code."""
    about = run.subject(config.mode, server_arguments.read(arguments), env)
    if len(about.allowed) > 1:
        say(f"warning: KDTREE_ALLOW_CC accepts {', '.join(about.allowed[1:])}: for development, not for serving")
    for finding in run.examine(about, run.BEFORE_OFF if config.mode is Mode.OFF else run.BEFORE_KERNEL):
        if finding.status is not Status.SKIPPED:
            print(finding.line(), file=sys.stderr, flush=True)
        if finding.status is Status.FAILED:
            sys.exit(finding.code)


# ---- the API key


def with_api_key(arguments: list[str], state_dir: Path, env: Mapping[str, str]) -> list[str]:
    """The arguments with a --config file that holds the key of KDTREE_API_KEY_FILE; as they are where none is asked.

    The file is this user's alone (0600). SGLang takes one --config, and lets arguments override what it says.
    """
    key = read_key(env.get("KDTREE_API_KEY_FILE", ""))
    if key is None:
        return arguments
    if "--config" in arguments:
        fix = "put 'api-key:' into that file (mode 0600) and unset KDTREE_API_KEY_FILE"
        raise UsageError("SGLang takes one --config", "--config beside KDTREE_API_KEY_FILE", fix)
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        owner = state_dir.stat().st_uid
        if not env.get("KDTREE_STATE_DIR") and owner not in (0, os.geteuid()):
            # Below /tmp anybody may have made it, and could then put arguments of his own into the file's place.
            fix = "set KDTREE_STATE_DIR to a folder of this user"
            raise UsageError("the API key cannot be handed on", f"{state_dir} is user {owner}'s", fix)
        config = own_file(state_dir, f"api-key: {json.dumps(key)}\n")  # JSON's strings are YAML's
    except OSError as error:
        fix = "set KDTREE_STATE_DIR to a folder that can be written (--tmpfs /run/kdtree)"
        raise UsageError("the API key cannot be handed on", f"{state_dir}: {error.strerror}", fix) from None
    return ["--config", str(config), *arguments]


def own_file(folder: Path, text: str) -> Path:
    """A new file (0600) that no other server takes or removes while this process lives, or what it becomes.

    A second server with the same folder, which its launcher refuses only later, must not change the key of one that has
    not read it yet. A lock says that a file is in use, in whichever container: a PID means another process in each. It
    is the open file's, which exec keeps. What dead servers left goes.
    """
    at_work = os.open(folder, os.O_RDONLY)
    fcntl.flock(at_work, fcntl.LOCK_EX)  # nobody looks between a file's making and its lock
    for left in folder.glob("server-arguments-*.yaml"):
        with suppress(OSError), open(os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails where it is in use
            left.unlink()
    descriptor, name = tempfile.mkstemp(".yaml", "server-arguments-", folder)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.set_inheritable(descriptor, True)
    os.write(descriptor, text.encode())
    os.close(at_work)
    return Path(name)


def check_token(env: Mapping[str, str]) -> None:
    """Raises UsageError where the Hugging Face token's file cannot be read: SGLang would end with a traceback."""
    path = env.get("HF_TOKEN_PATH", "")
    try:
        if path:
            open(path, "rb").close()
    except FileNotFoundError:
        pass  # as huggingface_hub takes it: no token
    except OSError as error:
        fix = f"{may_read()}, or unset HF_TOKEN_PATH"
        raise UsageError("the Hugging Face token's file cannot be read", f"{path}: {error.strerror}", fix) from None


def may_read() -> str:
    return f"let user {os.geteuid()} or group {os.getegid()} read it (chgrp and chmod 640: docs/operating/security.md)"


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
        if isinstance(error, PermissionError):
            fix = f"{may_read()}, or unset KDTREE_API_KEY_FILE"
        raise UsageError("the API key's file cannot be read", f"{path}: {reason}", fix) from None
    if found := wrong_with(key):
        raise UsageError("the API key's file holds no key", f"{path}: {found}", fix)
    return key


def wrong_with(key: str) -> str:
    """Why it is no key; empty where it is one."""
    if not key:
        return "nothing"
    if len(key.split()) > 1:
        return "more than one word"
    if not (key.isascii() and key.isprintable()):
        return "a character beyond printable ASCII (a byte order mark?), with which SGLang answers no request"
    return "a leading -" if key.startswith("-") else ""


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
    """Checks, then the server. Raises UsageError."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # as SIGTERM: it ends this process, and the check that it waits for
    os.umask(0o002)  # what one user of the group compiles, the next may use and replace
    config = from_environment(env)
    say(f"mode {config.mode}; checking what the server needs of this container")
    check_token(env)
    check(arguments, config, env)
    become([sys.executable, "-m", "kdtree_verify.launch", *with_api_key(arguments, config.state_dir, env)])


def main(arguments: list[str]) -> NoReturn:
    if not arguments or not arguments[0]:
        found = "no arguments" if not arguments else "an empty argument"
        say(f"nothing to run: {found}. Fix: give SGLang's arguments (--model-path ...), a program, or --help")
        sys.exit(EXIT_USAGE)
    if not arguments[0].startswith("-"):
        become(arguments)
    if arguments[0] in ("-h", "--help"):
        print(__doc__, flush=True)
        become([sys.executable, "-m", "sglang.launch_server", *arguments])
    if no_wheel is not None:
        say(f"the kdtree-verify wheel cannot be imported: {no_wheel}. Fix: rebuild the image, or run its base")
        sys.exit(EXIT_CONTRACT)
    try:
        serve(arguments, os.environ)
    except KdtreeError as error:
        print(error, file=sys.stderr, flush=True)
        sys.exit(error.code)


if __name__ == "__main__":
    main(sys.argv[1:])
