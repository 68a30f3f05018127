"""A registry on loopback that has one image, and fails while it is pulled, in a way that is chosen."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NAME = "base/image"


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _layer() -> bytes:
    """A layer with one file that does not compress."""
    unpacked = io.BytesIO()
    with tarfile.open(fileobj=unpacked, mode="w") as archive:
        file = tarfile.TarInfo("noise")
        file.size = 1 << 20
        archive.addfile(file, io.BytesIO(os.urandom(file.size)))
    return unpacked.getvalue()


class FaultyRegistry:
    """Use as a context manager; `fault` is none, missing, wrong bytes, cut or stalled. `reached` says that it was."""

    def __init__(self) -> None:
        unpacked = _layer()
        self.layer = gzip.compress(unpacked)
        self.fault = "none"
        self.reached = threading.Event()
        self.closing = threading.Event()
        self.config = json.dumps(
            {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [_digest(unpacked)]}}
        ).encode()
        oci = "application/vnd.oci.image"
        self.manifest_type = f"{oci}.manifest.v1+json"
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": self.manifest_type,
                "config": self._described(f"{oci}.config.v1+json", self.config),
                "layers": [self._described(f"{oci}.layer.v1.tar+gzip", self.layer)],
            }
        ).encode()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def image(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}/{NAME}@{_digest(self.manifest)}"

    @staticmethod
    def _described(media_type: str, content: bytes) -> dict[str, Any]:
        return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}

    def __enter__(self) -> FaultyRegistry:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self.server.shutdown()
        self.server.server_close()

    def _handler(registry) -> type[BaseHTTPRequestHandler]:  # the handler has a self of its own
        contents = {_digest(part): part for part in (registry.layer, registry.config, registry.manifest)}

        class Handler(BaseHTTPRequestHandler):
            # A client that tries TLS first must be told in HTTP that this is none.
            default_request_version = "HTTP/1.0"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                content = contents.get(self.path.rpartition("/")[2], b"{}")
                if self.path != "/v2/" and (content == b"{}" or registry.fault == "missing"):
                    self.send_error(404)
                    return
                faulty = content is registry.layer
                if faulty and registry.fault == "wrong bytes":
                    content = content[:-9] + bytes(9)
                self.send_response(200)
                is_manifest = content is registry.manifest
                self.send_header("Content-Type", registry.manifest_type if is_manifest else "application/octet-stream")
                self.send_header("Content-Length", str(len(content)))
                if is_manifest:
                    self.send_header("Docker-Content-Digest", _digest(content))
                self.end_headers()
                if self.command == "HEAD":
                    return
                self.close_connection = True
                if faulty and registry.fault in ("cut", "stalled"):
                    self.wfile.write(content[: len(content) // 2])
                    registry.reached.set()
                    if registry.fault == "stalled":
                        registry.closing.wait(60)
                    return
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
