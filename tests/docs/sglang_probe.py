"""Run by itself, once for each SGLang: what that SGLang's parser and KDTree's launcher make of command lines.

Says {"version", "options"} on stdout; then answers each line of stdin, a JSON list of argument lists, with one line: a
list of {"error": text} or of what the tests ask.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from typing import Any, NoReturn

ASKED = (
    *("tp_size", "dp_size", "pp_size", "nnodes", "node_rank", "dcp_size", "page_size", "kv_cache_dtype"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"),
    *("speculative_ngram_max_bfs_breadth", "speculative_draft_model_path", "model_path"),
    *("enable_dp_attention", "enable_pdmux", "enable_deterministic_inference"),
)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def look(parser: Parser, words: list[str]) -> dict[str, Any]:
    from kdtree_verify import arguments

    try:
        parsed = parser.parse_args(words)
    except ValueError as error:
        return {"error": str(error)}
    ours = arguments.parse(words)
    if ours is None:
        return {"error": "KDTree's launcher cannot read it"}
    asked = {name: getattr(parsed, name) for name in ASKED}
    return asked | {"ranks": ours.expected_ranks, "backends": ours.verify_backends, "use_ray": ours.use_ray}


def main() -> None:
    from sglang.srt.server_args import ServerArgs

    # Abbreviations would pass today and mean something else with the next option.
    parser = Parser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    options = sorted(option for action in parser._actions for option in action.option_strings)
    print(json.dumps({"version": version("sglang"), "options": options}), flush=True)
    for line in sys.stdin:
        print(json.dumps([look(parser, words) for words in json.loads(line)]), flush=True)


if __name__ == "__main__":
    main()
