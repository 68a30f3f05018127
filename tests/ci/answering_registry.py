"""A registry on loopback that answers whatever a test wants it to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers, body."""


@contextmanager
def registry(answer: Callable[[BaseHTTPRequestHandler], Answer]) -> Iterator[str]:
    """Its address; it answers each request as `answer` says, whatever the method."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, body = answer(self)
            length = {} if "Transfer-Encoding" in headers else {"Content-Length": str(len(body))}
            self.send_response(status)
            for key, value in (length | dict(headers)).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_POST = do_PUT = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
