"""Is the server what was asked for? The container's health check: the standard library only, a fraction of a second.

Healthy is a server whose process lives, and every expected rank of which
  - has reported, and reports the mode that was asked for,
  - lives, and (validate, on) has said so within STALE_AFTER seconds,
  - is `armed` (no verify call yet) or `serving`; with off: `off`;
and whose HTTP endpoint answers 200, where one is given.

`armed, not serving` is NOT healthy: the answers are right, stock computes them, but validate or on was asked for and
is not what happens. It does not mend itself; its reason says what to change, or go back to off.

Live is less: a server whose process lives, and whose ranks, as far as they have reported, live and go on reporting.
What is not live, a restart may mend; a load of half an hour, a mode that is not what was asked for or a rank that does
not serve it does not.

Neither asks the GPU for anything. SGLang's /health has the model generate a token where nothing else runs; /ready and
/ping look at flags.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from ..config import Mode
from ..errors import ExitCode, KdtreeError, UsageError
from .state import State
from .status import SERVES, STALE_AFTER, Rank, Snapshot

AUTO = "auto"
_NAMED = 3  # at most so many problems are spelled out
_LOGS = "read the server's log"


class Unhealthy(KdtreeError):
    """The server is not what was asked for, or does not answer."""

    code = ExitCode.UNHEALTHY


@dataclass(frozen=True)
class Problem:
    found: str
    fix: str


def check(snapshot: Snapshot, url: str | None = None, timeout: float = 25.0) -> str:
    """One line that says what is healthy.

    Args:
        snapshot: The state folder.
        url: http URL that must answer 200 within `timeout` seconds; "auto" is /ready where the server's own arguments
            and configuration file say that it listens, by TLS if they say so; or /ping where there is no /ready.

    Raises:
        Unhealthy: It is not; the line names every problem, or the first few.
        UsageError: The URL is not one.
    """
    parts = None if url in (None, AUTO) else _parse(str(url))
    problems = _server_problems(snapshot)
    if not problems and url is not None:
        problems = _endpoint_problems(parts, timeout) if parts else own_endpoint_problems(snapshot, timeout)
    if problems:
        raise Unhealthy("unhealthy", *_told(problems))
    calls = sum(rank.counter("kernel_calls") for rank in snapshot.ranks)
    notes = "; ".join(snapshot.warnings())
    idle = " (no verify call yet)" if snapshot.mode != Mode.OFF and not calls else ""
    return f"healthy: {snapshot.mode}, {len(snapshot.ranks)} ranks, {calls} kernel calls{idle}" + (
        f"; warning: {notes}" if notes else ""
    )


def check_live(snapshot: Snapshot) -> str:
    """One line that says what lives.

    Raises:
        Unhealthy: The server or a rank that had reported is not there any more, or a rank is silent.
    """
    problems = _process_problems(snapshot)
    problems += [problem for rank in snapshot.ranks if not rank.error and (problem := _silence(rank))]
    if problems:
        raise Unhealthy("not live", *_told(problems))
    of = "" if snapshot.expected_ranks is None else f" of {snapshot.expected_ranks}"
    return f"live: {snapshot.mode}, {len(snapshot.ranks)}{of} ranks report"


def _told(problems: list[Problem]) -> tuple[str, str]:
    more = f"; and {len(problems) - _NAMED} more" if len(problems) > _NAMED else ""
    return "; ".join(problem.found for problem in problems[:_NAMED]) + more, problems[0].fix


def _process_problems(snapshot: Snapshot) -> list[Problem]:
    if snapshot.server is None:
        found = snapshot.error or f"no server has reported in {snapshot.directory}"
        return [Problem(found, "start it with python -m kdtree_verify.launch, with the same KDTREE_STATE_DIR")]
    if not snapshot.server_alive:
        return [Problem(f"the server (pid {snapshot.server.get('pid')}) has ended", _LOGS)]
    return []


def _server_problems(snapshot: Snapshot) -> list[Problem]:
    if problems := _process_problems(snapshot):
        return problems
    if snapshot.mode not in SERVES:
        return [Problem(f"server.json asks for mode '{snapshot.mode}'", "use launcher and kdtree of one version")]
    problems = [problem for rank in snapshot.ranks if (problem := _rank_problem(rank, Mode(snapshot.mode)))]
    expected = snapshot.expected_ranks
    missing = (1 if expected is None else expected) - len(snapshot.ranks)
    if missing > 0:
        of = "" if expected is None else f" of {expected}"
        problems.append(Problem(f"{missing}{of} ranks have not reported", f"wait while it loads, else {_LOGS}"))
    return problems


def _rank_problem(rank: Rank, mode: Mode) -> Problem | None:
    if rank.error:
        return Problem(rank.error, "use launcher and kdtree of one version")
    reason = f" ({rank.document['reason']})" if rank.document.get("reason") else ""
    if rank.state == State.FAILED:
        return Problem(f"{rank.name} failed{reason}", "do as the reason says, or set KDTREE_VERIFY=off and restart")
    silence = _silence(rank)
    if silence and not rank.alive:
        return silence
    if rank.mode != mode:
        return Problem(f"{rank.name} reports mode {rank.mode}, {mode} was asked for", "restart the server")
    if rank.state not in SERVES[mode]:
        if rank.state == State.LOADING:
            return Problem(f"{rank.name} is loading ({rank.phase})", f"wait while it loads, else {_LOGS}")
        fix = "change what the reason names, or set KDTREE_VERIFY=off and restart"
        return Problem(f"{rank.name} is {rank.state}{reason}", fix)
    return silence


def _silence(rank: Rank) -> Problem | None:
    if not rank.alive:
        return Problem(f"{rank.name} (pid {rank.document.get('pid')}) has ended", _LOGS)
    if rank.stale:
        return Problem(f"{rank.name} has not reported for {rank.age:.0f} s (limit {STALE_AFTER:.0f})", _LOGS)
    return None


class _Endpoint(NamedTuple):
    host: str
    port: int
    path: str
    tls: bool = False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls else ''}://{host}:{self.port}{self.path}"


def _own_endpoint(snapshot: Snapshot) -> _Endpoint:
    """Where the server's own arguments and configuration file say that it listens; SGLang's defaults where unknown."""
    told = (snapshot.server or {}).get("endpoint") or {"host": "127.0.0.1", "port": 30000, "tls": False}
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(told["host"], told["host"])
    return _Endpoint(host, told["port"], "/ready", told["tls"])


def own_endpoint_problems(snapshot: Snapshot, timeout: float) -> list[Problem]:
    """Why the server cannot be asked where it listens; empty where it answers that it is ready."""
    endpoint = _own_endpoint(snapshot)
    if (answer := _answer(endpoint, timeout)) == HTTPStatus.NOT_FOUND:
        # Where a model spans hosts, only the first has the API; the others have a stub, which knows no /ready.
        return _endpoint_problems(endpoint._replace(path="/ping"), timeout)
    return _judged(endpoint, answer)


def _parse(url: str) -> _Endpoint:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
        (host or "").encode("idna")  # as the look-up of its address does
    except ValueError:
        parts, host, port = urlsplit(""), None, 0
    if parts.scheme != "http" or not host or not (url.isascii() and url.isprintable() and " " not in url):
        raise UsageError("the URL is not one", f"'{url}'", "give --url http://HOST:PORT/ready, or --url auto")
    return _Endpoint(host, port, parts.path + (f"?{parts.query}" if parts.query else "") or "/")


def _endpoint_problems(endpoint: _Endpoint, timeout: float) -> list[Problem]:
    return _judged(endpoint, _answer(endpoint, timeout))


def _judged(endpoint: _Endpoint, answer: int | str) -> list[Problem]:
    if answer == HTTPStatus.OK:
        return []
    found = f"{endpoint} answers {answer}" if isinstance(answer, int) else f"{endpoint} does not answer: {answer}"
    return [Problem(found, f"wait while it loads, else {_LOGS}")]


def _answer(endpoint: _Endpoint, timeout: float) -> int | str:
    """The status of a GET, or why there is none."""
    import http.client  # a third of this command's time, and not always needed
    import ssl

    make: Callable[..., http.client.HTTPConnection] = http.client.HTTPConnection
    if endpoint.tls:
        # The server's own certificate, by its address: asked is whether it answers, not who it is.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        make = partial(http.client.HTTPSConnection, context=context)
    try:
        with closing(make(endpoint.host, endpoint.port, timeout=timeout)) as connection:
            connection.request("GET", endpoint.path)
            return connection.getresponse().status
    except (OSError, OverflowError, UnicodeError, http.client.HTTPException) as error:  # a port or name may be none
        return getattr(error, "strerror", None) or str(error) or type(error).__name__
