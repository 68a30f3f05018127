"""A repository's tags, from a registry that lists them page by page, each of which says where the next is."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

from answering_registry import Answer, registry
from oci import names
from oci.client import Client

PAGES = (["a", "b"], ["c", "d"], ["e"])


def page(asked: BaseHTTPRequestHandler) -> Answer:
    number = int(asked.path.partition("last=")[2] or 0)
    following = {"Link": f'</v2/x/y/tags/list?n=2&last={number + 1}>; rel="next"'} if number + 1 < len(PAGES) else {}
    return 200, following, json.dumps({"name": "x/y", "tags": PAGES[number]}).encode()


def test_tags_on_several_pages_are_all_listed() -> None:
    with registry(page) as address:
        assert Client(names.repository(f"{address}/x/y")).tags() == ["a", "b", "c", "d", "e"]
