"""`python -m kdtree_verify.launch ARGS`: makes sure that the plugin will load, then is `sglang.launch_server ARGS`.

Serving without it (`python -m sglang.launch_server ARGS`) is the rollback; the plugin works there too, but nothing
would then notice that SGLang had left it out.
"""

from __future__ import annotations

import os
import runpy
import sys
import traceback
from dataclasses import asdict
from pathlib import Path

from . import arguments, preflight, redaction
from .config import Config, Mode, from_environment
from .doctor import arguments as plan
from .errors import ContractError, KdtreeError, end_process
from .reporting import state
from .startup import about, clock
from .startup.watch import REPEAT_EVERY, Watch, say

SERVER = "sglang.launch_server"

HOW_TO_SEE = (
    "SGLang starts now; how far it is: kdtree status --watch (with Compose: docker compose exec "
    "server kdtree status --watch)"
)
_ADMIN_KEY_ALONE = (
    "warning: --admin-api-key without --api-key: SGLang's /server_info shows it to everybody who reaches the "
    "port. Fix: set a key for requests, too"
)


def main(server_arguments: list[str]) -> None:
    """Checks, then runs SGLang's server in this process until it ends.

    Raises:
        SystemExit: A check failed, or the server ended; with a documented code where a rank refused to serve.
    """
    redaction.everywhere(redaction.find(server_arguments, os.environ))
    try:
        config = from_environment()
        every = min(REPEAT_EVERY, config.log_interval)
        watch = Watch(config.state_dir, plan.read(server_arguments), os.environ, clock.process_start(), every)
        reports: Path | None = config.state_dir
        if config.mode is Mode.OFF:
            reports = _announce_off(config, server_arguments, watch)
        else:
            _check(config, server_arguments, watch)
    except KdtreeError as error:
        end_process(error)
    _serve(server_arguments, reports)


def _check(config: Config, server_arguments: list[str], watch: Watch) -> None:
    preflight.check(config)
    state.prepare(config.state_dir)
    parsed = _parse(server_arguments, watch)
    if parsed is None:
        return
    named = parsed.verify_backends
    if all(named) and "triton" not in named:
        raise ContractError(
            f"KDTREE_VERIFY={config.mode} needs the Triton attention backend for verify",
            " and ".join(sorted({str(name) for name in named})),
            "start with --attention-backend triton, or set KDTREE_VERIFY=off",
        )
    if parsed.use_ray:
        raise ContractError(
            "SGLang does not load plugins in Ray's schedulers", "--use-ray", "drop --use-ray, or set KDTREE_VERIFY=off"
        )
    try:
        _announce(config, server_arguments, parsed)
    except OSError as error:
        raise state.unwritable(config.state_dir, error) from error


def _announce_off(config: Config, server_arguments: list[str], watch: Watch) -> Path | None:
    """The state folder if it is this server's. Off hands over; that nobody could be told is no reason not to."""
    reports: Path | None = None
    try:
        state.prepare(config.state_dir)
        reports = config.state_dir
        _announce(config, server_arguments, _parse(server_arguments, watch))
    except Exception as error:
        say(f"the state folder is not used: {error}")
        if reports is None:
            os.environ["KDTREE_STATE_DIR"] = os.devnull  # by the ranks neither: it may be another server's
    return reports


def _parse(server_arguments: list[str], watch: Watch) -> arguments.ServerArguments | None:
    say("importing SGLang, whose parser reads its arguments")  # which takes seconds, on a cold disk a minute
    watch.start()
    parsed = arguments.parse(server_arguments)
    if parsed is None:  # SGLang will refuse them, or print its help
        watch.stop()
    return parsed


def _announce(config: Config, server_arguments: list[str], parsed: arguments.ServerArguments | None) -> None:
    if parsed and parsed.admin_key_alone:
        say(_ADMIN_KEY_ALONE)
    known = (parsed.expected_ranks, asdict(parsed.endpoint)) if parsed else (None, None)
    document = state.server_document(config.mode, arguments.redacted(server_arguments), *known)
    state.write(config.state_dir / state.SERVER_FILE, document)
    if parsed:
        say(f"versions: {about.line(config)}")
        say(HOW_TO_SEE)


def _serve(server_arguments: list[str], reports: Path | None) -> None:
    # As `python -m` would: the module is __main__, so that spawned children import it and not this one.
    sys.argv = [SERVER, *server_arguments]
    try:
        runpy.run_module(SERVER, run_name="__main__", alter_sys=True)
    except Exception:
        failure = state.first_failure(reports) if reports else None
        if failure is None:
            raise
        # SGLang says only that a rank died. Its own line and code say why.
        traceback.print_exc()
        reason, code = failure
        print(reason, file=sys.stderr, flush=True)
        sys.exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
