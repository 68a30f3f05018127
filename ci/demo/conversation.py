"""The requests that every mode is asked, and what came back; over SGLang's native /generate."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

# A request is one prompt, or several in one batch; with the number of tokens to generate. The words are of
# model.vocabulary(), in no order that means anything.
Request = tuple[tuple[str, ...], int]

REQUESTS: tuple[Request, ...] = (
    (("dipi biko nalo sane duni foro",), 12),
    (("niko gusu rupi dike lulu dari nake guzo bidu rara nubu gebi rezi nuso popo mosu fafa dave",), 12),
    (
        (
            "bobo dari duma sapo bise kefu fano mopa fame bega refe sapo guda gaga badi lita lodi dolu gisi mama "
            "nome dede gado femi kepi file five biza naru lulu mufo depe fasi fezi lupo livi sane duni foro mosu",
        ),
        12,
    ),
    (
        (
            "rezi nubu depe mufo biza",
            "file five naru lulu kefu gusu rupi dike dari nake guzo bidu",
            "lita lodi dolu gisi mama nome dede gado femi kepi fasi fezi popo nake lupo livi niko dave fabo muro fafa",
        ),
        8,
    ),
)


@dataclass(frozen=True)
class Answer:
    """One prompt's answer.

    Attributes:
        prompt: As sent.
        text: As generated, greedily.
        tokens: The generated token ids.
        margins: For each token, by how much its logit leads the runner-up's.
        verify_calls: SGLang's own spec_verify_ct: tree-verify steps this request was part of.
    """

    prompt: str
    text: str
    tokens: tuple[int, ...]
    margins: tuple[float, ...]
    verify_calls: int


def hold(
    url: str, requests: tuple[Request, ...] = REQUESTS, heard: Callable[[Answer], None] = lambda answer: None
) -> list[Answer]:
    """Sends the requests one after another and returns the answers in the order of the prompts.

    Raises:
        OSError: The server does not answer, or answers with an HTTP error.
    """
    answers = []
    for prompts, tokens in requests:
        for answer in ask(url, prompts, tokens):
            heard(answer)
            answers.append(answer)
    return answers


def ask(url: str, prompts: tuple[str, ...], tokens: int, timeout: float = 300.0) -> Iterator[Answer]:
    """Sends prompts as one batch; yields their answers. Raises OSError as `hold` does."""
    body = {
        "text": list(prompts),
        "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 2,
    }
    with generate(url, body, timeout) as response:
        generated = json.load(response)
    for prompt, one in zip(prompts, generated, strict=True):
        meta = one["meta_info"]
        tokens_made, margins = tokens_and_margins(meta)
        yield Answer(prompt, one["text"].strip(), tokens_made, margins, int(meta.get("spec_verify_ct") or 0))


def generate(url: str, body: Mapping[str, Any], timeout: float = 300.0) -> HTTPResponse:
    """Opens /generate's response. Raises OSError as `hold` does."""
    request = urllib.request.Request(
        f"{url}/generate", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    response: HTTPResponse = urllib.request.urlopen(request, timeout=timeout)
    return response


def tokens_and_margins(meta: Mapping[str, Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """An Answer's, of a meta_info with the two leading log-probabilities of each token."""
    # Log-probabilities of one step differ from its logits by a constant: their difference is the logits'.
    first_two = [(best[0], second[0]) for best, second in meta["output_top_logprobs"]]
    tokens = tuple(int(token) for _, token, *_ in meta["output_token_logprobs"])
    return tokens, tuple(best - second for best, second in first_two)
