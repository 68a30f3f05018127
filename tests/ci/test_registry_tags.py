"""A repository's tags, from a registry that lists them page by page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from oci import names
from oci.client import Client


@contextmanager
def pages(*parts: list[str]) -> Iterator[str]:
    """A registry that lists its tags on several pages, each of which says where the next is."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = int(self.path.partition("last=")[2] or 0)
            body = json.dumps({"name": "x/y", "tags": parts[number]}).encode()
            self.send_response(200)
            if number + 1 < len(parts):
                self.send_header("Link", f'</v2/x/y/tags/list?n=2&last={number + 1}>; rel="next"')
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def test_tags_on_several_pages_are_all_listed() -> None:
    with pages(["a", "b"], ["c", "d"], ["e"]) as address:
        assert Client(names.repository(f"{address}/x/y")).tags() == ["a", "b", "c", "d", "e"]
