"""One model over two nodes, SGLang's own way: two launchers on this machine, each with a rank and a state folder."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from demo import conversation
from kdtree_verify.reporting import health, status
from outcome import REQUESTS
from proof.server import Server, free_port, started, state_of
from serving import NGRAM, Launch

pytestmark = [pytest.mark.server, pytest.mark.slow]

ENVIRONMENT = {"SGLANG_CPU_OMP_THREADS_BIND": "0|1", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def nodes(new_launch: Callable[..., Launch]) -> Iterator[list[Server]]:
    address = f"127.0.0.1:{free_port()}"

    def node(rank: int) -> Launch:
        shared = ("--tp-size", "2", "--nnodes", "2", "--dist-init-addr", address)
        arguments = (*NGRAM, *shared, "--node-rank", str(rank))
        return new_launch("validate", arguments=arguments, environment=ENVIRONMENT)

    with started(node(0)) as first, started(node(1)) as second:
        first.wait_ready()
        yield [first, second]


def test_every_node_is_patched_and_reports_its_own_rank(nodes: list[Server]) -> None:
    conversation.hold(nodes[0].url, REQUESTS[:1])
    for number, node in enumerate(nodes):
        ((name, rank),) = node.settled().items()
        assert name == f"dp0-pp0-tp{number}"
        assert rank["state"] == "serving"
        assert rank["counters"]["kernel_calls"] > 0
        assert rank["counters"]["declined"] == {}
        assert sum(layer["exceeded_calls"] + layer["nonfinite"] for layer in rank["layers"]) == 0
        # SGLang answers /health on the second node as well, by a server of its own.
        assert health.check(status.read(state_of(node.launch)), f"http://127.0.0.1:{node.port}/health")


def test_the_first_node_ends_both(nodes: list[Server]) -> None:
    os.kill(nodes[0].process.pid, signal.SIGTERM)
    assert [node.wait_end() for node in nodes] == [0, 0]
