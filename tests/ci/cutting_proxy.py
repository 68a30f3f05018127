"""A network that is cut: passes connections on to a registry, until it has passed on so many bytes of answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def cut_after(address: str, answered: int) -> Iterator[str]:
    """An address that answers as the given one does, for `answered` bytes in all; then every connection ends."""
    host, _, port = address.partition(":")
    left, lock = [answered], threading.Lock()

    def answers(upstream: socket.socket, client: socket.socket) -> None:
        with upstream, client, suppress(OSError):
            while part := upstream.recv(1 << 14):
                with lock:
                    part = part[: left[0]]
                    left[0] -= len(part)
                client.sendall(part)
                if left[0] == 0:
                    client.shutdown(socket.SHUT_RDWR)
                    return

    def serve(client: socket.socket) -> None:
        with suppress(OSError):
            upstream = socket.create_connection((host, int(port)))
            threading.Thread(target=answers, args=(upstream, client), daemon=True).start()
            while part := client.recv(1 << 14):
                upstream.sendall(part)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
