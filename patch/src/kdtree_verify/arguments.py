"""The server's command line, read with SGLang's own parser: what the launcher has to know of it, and no more."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, NoReturn

from . import redaction
from .redaction import HIDDEN


@dataclass(frozen=True)
class Endpoint:
    """Where the server listens, and whether by TLS."""

    host: str
    port: int
    tls: bool


@dataclass(frozen=True)
class ServerArguments:
    """As given, before SGLang resolves its defaults: None where the command line says nothing.

    Attributes:
        expected_ranks: Scheduler processes that the server starts on this host.
        verify_backends: Attention backends named for prefill and for decode; verify runs on one of the two.
        use_ray: Whether Ray starts the schedulers.
        endpoint: Its HTTP endpoint.
        admin_key_alone: Whether there is an administrator's key and none for requests.
    """

    expected_ranks: int
    verify_backends: tuple[str | None, str | None]
    use_ray: bool
    endpoint: Endpoint
    admin_key_alone: bool = False


def parse(arguments: list[str]) -> ServerArguments | None:
    """Reads the command line; None where SGLang's parser refuses it or it only asks for help: SGLang answers then."""
    from sglang.srt.server_args import ServerArgs

    parser = _QuietParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    try:
        if "--config" in arguments:
            from sglang.srt.utils.server_args_config_parser import ConfigArgumentMerger

            arguments = ConfigArgumentMerger(parser).merge_config_with_args(arguments)
        found = parser.parse_args(arguments)
        expected_ranks = _expected_ranks(found)
    except Exception:  # its configuration file may be anything
        return None
    return ServerArguments(
        expected_ranks=expected_ranks,
        verify_backends=(
            found.prefill_attention_backend or found.attention_backend,
            found.decode_attention_backend or found.attention_backend,
        ),
        use_ray=bool(getattr(found, "use_ray", False)),
        endpoint=Endpoint(found.host, found.port, tls=bool(getattr(found, "ssl_certfile", None))),
        admin_key_alone=bool(getattr(found, "admin_api_key", None)) and not getattr(found, "api_key", None),
    )


def redacted(arguments: list[str]) -> list[str]:
    """The command line without secrets: neither the values of options that are, nor those inside a JSON argument."""
    redact = redaction.Redactor(redaction.find(arguments, {}))
    shown, hide = [], False
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        secret = redaction.is_secret_option(name)
        if hide and not argument.startswith("--"):
            shown.append(HIDDEN)
        else:
            shown.append(f"{name}={HIDDEN}" if secret and equals else redact(argument))
        hide = secret and not equals
    return shown


def _expected_ranks(found: Any) -> int:
    # As SGLang lays them out: pipeline stages over hosts first, then tensor ranks. Without DP attention every data-
    # parallel replica is a whole group of its own.
    hosts, tensor, pipeline = found.nnodes, found.tp_size, found.pp_size
    stages = max(pipeline // hosts, 1)
    hosts_per_stage = max(hosts // pipeline, 1)
    replicas = 1 if found.enable_dp_attention else found.dp_size
    return stages * (tensor // hosts_per_stage) * replicas


class _Refused(Exception):
    pass


class _QuietParser(argparse.ArgumentParser):
    """Leaves every message about the command line to SGLang."""

    def error(self, message: str) -> NoReturn:
        raise _Refused(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _Refused(message)
