"""What each server is asked, as token ids, and what it answers; over SGLang's native /generate, greedily."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from demo import conversation

from .starts import GRAPH_BATCH, MAX_REQUESTS

FIRST_WORD, VOCABULARY = 3, 512
"""Token ids of words of ci/demo/model.py."""


@dataclass(frozen=True)
class Request:
    """One prompt, or several that are sent at once.

    Attributes:
        name: Unique.
        lengths: Tokens of each prompt.
        tokens: To generate, for each.
        follows: Another request; its first prompt is how this one begins, so that a prefix cache holds that.
    """

    name: str
    lengths: tuple[int, ...]
    tokens: int
    follows: Request | None = None

    def prompts(self) -> list[list[int]]:
        begin = self.follows.prompts()[0] if self.follows else []
        return [[*begin, *_prompt(f"{self.name}/{i}", n - len(begin))] for i, n in enumerate(self.lengths)]

    def body(self) -> dict[str, Any]:
        """Of /generate: greedily, and all of the tokens."""
        sampling = {"temperature": 0.0, "max_new_tokens": self.tokens, "ignore_eos": True}
        return {"input_ids": self.prompts(), "sampling_params": sampling}


def requests(longest: int) -> tuple[Request, ...]:
    """All lengths up to `longest` alone; batches that fill a captured size, miss one, and exceed the largest."""
    lengths = [n for n in (16, 100, 1000, 4000, 16_000, 64_000) if n <= longest]
    alone = [Request(f"alone-{n}", (n,), 128) for n in lengths]
    alone += [Request(f"alone-{r.lengths[0]}-and-on", (r.lengths[0] + 77,), 128, r) for r in alone[2:4]]
    shared = [length for length in (60, 100, 250, 900, 2000, 16_000) if length <= longest]
    batches = [
        Request(f"batch-{size}", tuple(shared[i % len(shared)] + i for i in range(size)), 64)
        for size in (GRAPH_BATCH - 1, GRAPH_BATCH, GRAPH_BATCH + 2, MAX_REQUESTS)
    ]
    return (*alone, *batches)


def longest_sequence(asked: Sequence[Request]) -> int:
    """Tokens of the longest prompt and its answer."""
    return max(max(request.lengths) + request.tokens for request in asked)


@dataclass(frozen=True)
class Answer:
    """One prompt's answer.

    Attributes:
        prompt: The request's name and the prompt's place in it.
        tokens: The generated token ids.
        margins: For each token, by how much its logit leads the runner-up's.
        verify_calls: SGLang's own spec_verify_ct: tree-verify steps that this request was part of.
        cached: Tokens of the prompt that the prefix cache held.
    """

    prompt: str
    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    verify_calls: int
    cached: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(document: dict[str, Any]) -> Answer:
        lists = {name: tuple(document[name]) for name in ("tokens", "margins")}
        return Answer(**{**document, **lists})


def hold(url: str, asked: Sequence[Request]) -> list[Answer]:
    """Sends the requests one after another. Raises OSError where the server does not answer them."""
    return [answer for request in asked for answer in ask(url, request)]


def ask(url: str, request: Request) -> Iterator[Answer]:
    with conversation.generate(url, request.body() | {"return_logprob": True, "top_logprobs_num": 2}) as response:
        generated = json.load(response)
    for i, one in enumerate(generated):
        meta = one["meta_info"]
        tokens, margins = conversation.tokens_and_margins(meta)
        yield Answer(
            prompt=f"{request.name}/{i}",
            tokens=tokens,
            margins=margins,
            verify_calls=int(meta.get("spec_verify_ct") or 0),
            cached=int(meta.get("cached_tokens") or 0),
        )


def _prompt(name: str, length: int) -> list[int]:
    """Words in which phrases come again, so that an n-gram draft has something to go by; the same for the same name."""
    generator = random.Random(name)
    phrases = [
        [generator.randrange(FIRST_WORD, VOCABULARY) for _ in range(generator.randrange(4, 24))] for _ in range(12)
    ]
    words: list[int] = []
    while len(words) < length:
        words += generator.choice(phrases)
        if generator.random() < 0.3:
            words.append(generator.randrange(FIRST_WORD, VOCABULARY))
    return words[:length]
