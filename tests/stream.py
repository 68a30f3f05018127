"""A long generation under way, for the tests of what signals do to it."""

from __future__ import annotations

import json
import threading
import urllib.request

PROMPT = "dipi biko nalo sane duni foro"


class Stream:
    """A streamed answer, read by a thread. The constructor is back when its first tokens have come.

    Args:
        url: The server's.
        tokens: How many are asked for; it does not end before.
        key: The server's API key, if it has one.
    """

    def __init__(self, url: str, tokens: int, key: str | None = None):
        self._begun, self._last, self._error = threading.Event(), "", ""
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        body = json.dumps({"text": PROMPT, "sampling_params": sampling, "stream": True}).encode()
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        asked = urllib.request.Request(f"{url}/generate", body, headers)
        self._thread = threading.Thread(target=self._read, args=(asked,), daemon=True)
        self._thread.start()
        assert self._begun.wait(120), self._error

    def _read(self, asked: urllib.request.Request) -> None:
        try:
            with urllib.request.urlopen(asked, timeout=300) as response:
                for line in response:
                    if line.startswith(b"data: {"):
                        self._last = line.decode().removeprefix("data: ")
                        self._begun.set()
        except (OSError, ValueError) as error:
            self._error = repr(error)

    def under_way(self) -> bool:
        return self._thread.is_alive()

    def answered(self, seconds: float) -> int | None:
        """Tokens of the whole answer, once it has ended; None where it was cut. Fails where it goes on for longer."""
        self._thread.join(seconds)
        assert not self.under_way()
        about = json.loads(self._last)["meta_info"]
        return about["completion_tokens"] if (about["finish_reason"] or {}).get("type") == "length" else None
