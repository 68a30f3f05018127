"""The OCI distribution protocol, as much of it as it takes to push by digest and to give a tag.

https://github.com/opencontainers/distribution-spec/blob/v1.1.1/spec.md. Not Docker's own push, because that wants a
tag, and a tag that is there before the image was tested is what must not be.
"""

from __future__ import annotations

import email.message
import hashlib
import http.client
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from . import credentials
from .errors import Missing, RegistryError, Unreachable
from .names import Repository
from .stream import Blob

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_TIMEOUT = 120.0  # seconds without a byte
_PAGES = 1000  # of tags, of up to a thousand each: more is no repository, but a registry that never ends
_LARGEST = 32 << 20  # bytes of an answer that is kept in memory: manifests, configurations, lists
_BROKEN = (urllib.error.URLError, http.client.HTTPException, OSError)


@dataclass(frozen=True)
class Manifest:
    """A manifest or an index, to the byte."""

    media_type: str
    body: bytes

    @property
    def digest(self) -> str:
        return digest_of(self.body)

    def parsed(self) -> dict[str, Any]:
        """Raises RegistryError where it is no document."""
        return document(self.body, self.digest)

    @property
    def config(self) -> str:
        """The digest of the image's configuration. Raises RegistryError where this is not an image of one platform."""
        config = self.parsed().get("config")
        if not isinstance(config, dict) or not isinstance(config.get("digest"), str):
            raise RegistryError(f"not an image of one platform: {self.digest}. Fix: the digest that ci/push printed")
        return str(config["digest"])


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: email.message.Message
    body: bytes


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def document(body: bytes, what: str) -> dict[str, Any]:
    """The JSON object that a registry's answer is. Raises RegistryError where it is none."""
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RegistryError(
            f"the registry's answer is no JSON document: {what}. Fix: its name, or see what answers there"
        )
    return found


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Who asks whether a blob is there does not want it: before 3.13 Python follows a HEAD by a GET, of gigabytes."""

    def redirect_request(self, req: urllib.request.Request, *told: Any) -> urllib.request.Request | None:
        following = super().redirect_request(req, *told)
        if following is not None and req.get_method() == "HEAD":
            following.method = "HEAD"
        return following


class Client:
    """One repository of one registry. Raises RegistryError, or what is derived from it, wherever it is asked."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        loopback = repository.host.partition(":")[0] in ("localhost", "127.0.0.1")
        self._base = f"{'http' if loopback else 'https'}://{repository.host}/v2/{repository.path}"
        self._basic = credentials.basic(repository.host)
        self._authorization = self._basic
        # A proxy is for what lies outside.
        self._opener = urllib.request.build_opener(_Redirects, *([urllib.request.ProxyHandler({})] if loopback else []))

    def digest(self, reference: str) -> str | None:
        """The digest that a tag or digest stands for now; None where the registry has it not."""
        answer = self._ask("HEAD", f"/manifests/{reference}", accept=True)
        if answer.status == 404:
            return None
        self._expect(answer, 200, f"ask for {reference}")
        digest = answer.headers.get("Docker-Content-Digest")
        if digest is None:  # headers that were cut off look like these
            raise Unreachable(
                f"the registry does not answer: {self.repository.host}: no digest for {reference}. "
                "Fix: the network, then again"
            )
        return digest

    def manifest(self, digest: str) -> Manifest:
        """The manifest of that digest. Raises Missing, or RegistryError where the bytes are not that digest's."""
        answer = self._ask("GET", f"/manifests/{digest}", accept=True)
        if answer.status == 404:
            raise Missing(f"no such image: {self.repository.name}@{digest}. Fix: push it, or another digest")
        self._expect(answer, 200, f"fetch {digest}")
        found = Manifest(answer.headers.get_content_type(), answer.body)
        if found.digest != digest:
            raise RegistryError(
                f"the registry answers with another image: {self.repository.name}: asked for {digest}, "
                f"got {found.digest}. Fix: trust nothing of it before that is understood"
            )
        return found

    def small_blob(self, digest: str) -> bytes:
        """A blob that fits in memory, an image's configuration; checked. Raises RegistryError."""
        answer = self._ask("GET", f"/blobs/{digest}")
        self._expect(answer, 200, f"fetch {digest}")
        if digest_of(answer.body) != digest:
            raise RegistryError(f"the registry answers with another blob: {digest}. Fix: push the image again")
        return answer.body

    def tags(self) -> list[str]:
        """Every tag of the repository. Raises Missing where there is no such repository."""
        found: list[str] = []
        path = "/tags/list?n=1000"
        for _ in range(_PAGES):
            answer = self._ask("GET", path)
            if answer.status == 404:
                raise Missing(f"no such repository: {self.repository.name}. Fix: its name")
            self._expect(answer, 200, "list the tags")
            found += document(answer.body, "the tags").get("tags") or []
            more = re.match(r'<([^>]+)>; *rel="?next', answer.headers.get("Link", ""))
            query = urllib.parse.urlsplit(more[1]).query if more else ""
            if not query:
                return found
            path = f"/tags/list?{query}"
        raise RegistryError(f"the list of tags does not end: {self.repository.name}. Fix: see what answers there")

    @contextmanager
    def blob(self, digest: str, size: int) -> Iterator[Blob]:
        """A blob as a stream, for one that does not fit in memory. Raises Missing, Unreachable or RegistryError."""
        if not self.has_blob(digest):  # which asks for a new token where the last has expired
            raise Missing(f"no such blob: {self.repository.name}@{digest}. Fix: push the image again")
        request = urllib.request.Request(f"{self._base}/blobs/{digest}")
        if self._authorization:
            request.add_unredirected_header("Authorization", self._authorization)
        try:
            answer = self._opener.open(request, timeout=_TIMEOUT)
        except _BROKEN as error:
            raise Unreachable(
                f"the registry does not answer: {self.repository.host}: {error}. Fix: the network, then again"
            ) from error
        with answer:
            yield Blob(digest, size, answer.read)

    def put_manifest(self, manifest: Manifest, reference: str) -> None:
        """Stores the manifest under its own digest or a tag; the one step that makes an image, or names it."""
        answer = self._ask("PUT", f"/manifests/{reference}", manifest.body, {"Content-Type": manifest.media_type})
        self._expect(answer, 201, f"store {reference}")
        if self.digest(reference) != manifest.digest:
            what = f"{self.repository.name}: {reference} is not what was stored"
            raise RegistryError(f"{what}. Fix: see who else writes there")

    def has_blob(self, digest: str) -> bool:
        answer = self._ask("HEAD", f"/blobs/{digest}")
        if answer.status in (401, 403, 404):  # a repository that is not there yet is not shown to everybody
            return False
        self._expect(answer, 200, f"ask for {digest}")
        return True

    def upload(self, digest: str, size: int, content: IO[bytes] | Blob) -> None:
        """Uploads a blob from a stream that is read once; the registry checks the digest."""
        begun = self._ask("POST", "/blobs/uploads/", b"")
        self._expect(begun, 202, "begin an upload")
        place = self._safe(urllib.parse.urljoin(f"{self._base}/", begun.headers.get("Location", "")))
        place += ("&" if "?" in place else "?") + urllib.parse.urlencode({"digest": digest})
        kind = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._expect(self._send("PUT", place, content, kind), 201, f"upload {digest}")

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, *,
        accept: bool = False,
    ) -> _Answer:  # fmt: skip
        """One request, repeated with a token where one is asked for."""
        wanted = dict(headers or {})
        if accept:
            wanted["Accept"] = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
        answer = self._send(method, self._base + path, body, wanted)
        if answer.status == 401 and (challenge := answer.headers.get("WWW-Authenticate", "")).startswith("Bearer "):
            self._authorization = f"Bearer {self._token(challenge)}"
            answer = self._send(method, self._base + path, body, wanted)
        return answer

    def _send(self, method: str, url: str, body: bytes | IO[bytes] | Blob | None, headers: dict[str, str]) -> _Answer:
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        if self._authorization:
            request.add_unredirected_header("Authorization", self._authorization)  # a blob's storage is elsewhere
        try:
            return self._exchange(request)
        except _BROKEN as error:
            why = " ".join(str(getattr(error, "reason", error)).split())
            raise Unreachable(
                f"the registry does not answer: {self.repository.host}: {why}. "
                "Fix: the network, then again; what it has already is not sent twice"
            ) from error

    def _exchange(self, request: urllib.request.Request) -> _Answer:
        try:
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                return _Answer(answer.status, answer.headers, self._body(answer))
        except urllib.error.HTTPError as error:
            with error:
                return _Answer(error.code, error.headers, self._body(error))

    def _body(self, answer: Any) -> bytes:
        """All of an answer, of whatever status. Raises RegistryError where it is too much, told before or not."""
        told: int | None = answer.length
        if (told or 0) <= _LARGEST:
            body: bytes = answer.read() if told is not None else answer.read(_LARGEST + 1)
            if len(body) <= _LARGEST:
                return body
        size = f"{told:,}" if told else f"more than {_LARGEST:,}"
        raise RegistryError(f"{self.repository.name}: an answer of {size} bytes. Fix: another image")

    def _safe(self, url: str) -> str:
        """An address that the registry names, and that gets credentials or an image. Raises RegistryError where it is a
        file's, or would take them from TLS."""
        if urllib.parse.urlsplit(url).scheme not in {"https", self._base.partition(":")[0]}:
            raise RegistryError(f"the registry sends us to {url!r}. Fix: trust nothing of it before that is understood")
        return url

    def _token(self, challenge: str) -> str:
        """A token as the challenge says; anonymous where nobody logged in."""
        asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        query = urllib.parse.urlencode({key: asked[key] for key in ("service", "scope") if key in asked})
        self._authorization = self._basic
        answer = self._send("GET", self._safe(f"{asked.get('realm', '')}?{query}"), None, {})
        self._expect(answer, 200, "log in")
        said = document(answer.body, "the token")
        token = str(said.get("token") or said.get("access_token") or "")
        if not re.fullmatch(r"[!-~]+", token):
            raise RegistryError(f"the registry gives no token: {self.repository.host}. Fix: see what answers there")
        return token

    def _expect(self, answer: _Answer, status: int, what: str) -> None:
        if answer.status == status:
            return
        said = " ".join(answer.body.decode(errors="replace").split())[:300]
        fix = "docker login, as one who may" if answer.status in (401, 403) else "what the registry says"
        raise RegistryError(f"{self.repository.name}: cannot {what}: HTTP {answer.status} {said}. Fix: {fix}")
