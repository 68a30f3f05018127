"""The log's filter: which values are secret, how they are hidden, and in which processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from kdtree_verify.redaction import Redactor, find, is_secret_option

KEY = "a-key-that-nobody-else-has"
ODD = 'it\'s \\ an "odd" kéy & more'


@pytest.mark.parametrize(
    "name",
    [
        *("--api-key", "--api", "--api-k", "--api_key", "--admin-api-key", "--adm", "--ssl-keyfile-p", "--hf-token"),
        *("--watermark-config", "--some-password", "--client-secret"),
    ],
)
def test_options_that_are_secret(name: str) -> None:
    assert is_secret_option(name)


@pytest.mark.parametrize(
    "name",
    [
        *("--ssl-keyfile", "--max-total-tokens", "--tokenizer-path", "--bucket-time-to-first-token", "-a", "--", "--a"),
        *("--kt-max-deferred-experts-per-token", "--speculative-token-map", "--model-path", "api-key"),
    ],
)
def test_options_that_are_not(name: str) -> None:
    assert not is_secret_option(name)


def test_every_option_of_sglang_is_judged_rightly() -> None:
    from argparse import ArgumentParser

    from sglang.srt.server_args import ServerArgs

    parser = ArgumentParser()
    ServerArgs.add_cli_args(parser)
    options = {option for action in parser._actions for option in action.option_strings}
    assert {option for option in options if is_secret_option(option)} <= {
        "--api-key",
        "--admin-api-key",
        "--ssl-keyfile-password",
        "--watermark-config",
    }
    assert "--api-key" in options


def test_secrets_are_found_wherever_they_are_given(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text('api-key: "from the file"\nadmin_api_key: underscored\nport: 1\nmodel-loader-extra-config:\n')
    nested = json.dumps({"access_key": "nested", "endpoint": "http://h", "more": [{"client_secret": ["deep"]}]})
    given = [
        *("--config", str(config), "--api-k", "shortened", "--admin-api-key=equals"),
        *("--hicache-storage-backend-extra-config", nested, "--watermark-config", '{"key": "w1", "key_b": "w2"}'),
        *("--json-model-override-args", '{"eos_token": "<end>", "key": "k"}', "--tokenizer-path", "t"),
    ]
    (tmp_path / "token").write_text("from a token's file\n")
    env = {
        "HF_TOKEN_PATH": str(tmp_path / "token"),
        "HF_TOKEN": "from the environment",
        "SOME_KEY": "/",
        "PATH": "p",
        "KDTREE_API_KEY_FILE": "f",
        "X_KEY": "",
    }
    expected = {"from the file", "underscored", "shortened", "equals", "nested", "deep", "w1", "w2"}
    assert find(given, env) == expected | {"from the environment", "from a token's file"}
    assert find([f"--config={config}"], {}) == {"from the file", "underscored"}
    config.write_text('api-key: ["the only item"]\ntp-size: 1\n')  # as SGLang's own reader takes it: --api-key ITEM
    assert find(["--config", str(config)], {}) == {"the only item"}
    # A key that looks like JSON is one all the same.
    assert '{"a":1234567890}' in find(["--api-key", '{"a":1234567890}'], {})


@pytest.mark.parametrize("given", [["--config"], ["--config", "/no/such"], ["--api-key"], ["--x", "{"], [""]])
def test_what_cannot_be_read_is_not_ours_to_refuse(given: list[str]) -> None:
    assert find(given, {}) == frozenset()


def test_a_configuration_that_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    for path in (tmp_path / "pipe.yaml", Path("/dev/zero")):
        assert find(["--config", str(path), "--api-key", KEY], {}) == {KEY}


def test_a_configuration_that_is_none_hides_what_the_arguments_say(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("{:::\n - x")
    assert find(["--config", str(config), "--api-key", "k"], {}) == {"k"}


@pytest.mark.parametrize("secret", [KEY, ODD])
@pytest.mark.parametrize(
    "write",
    [
        str,
        repr,
        json.dumps,
        lambda value: json.dumps({"a": value}, ensure_ascii=False),
        lambda value: repr({"api_key": value}),
        lambda value: repr(repr({"api_key": value})),
        lambda value: json.dumps(json.dumps({"x": value})),
        lambda value: __import__("urllib.parse").parse.quote(value),
        lambda value: f"GET /v1/models?q={__import__('urllib.parse').parse.quote_plus(value)} HTTP/1.1",
    ],
)
def test_a_known_value_is_hidden_however_it_is_spelled(secret: str, write) -> None:
    text = f"before {write(secret)} after"
    shown = Redactor({secret})(text)
    assert "***" in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert not any(part in shown for part in ("nobody", "odd", "k%C3%A9y", "more"))


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(api_key='s3same', admin_api_key=None)",
        "{'api_key': 's3same', 'port': 1}",
        '{"admin_api_key": "s3same"}',
        r'{"extra": "{\"secret_key\": \"s3same\"}"}',
        "--admin-api-k=s3same",
        '"GET /health?api_key=s3same&x=1 HTTP/1.1" 200',
        "ssl_keyfile_password='s3same'",
        "an-other.some_api_key='s3same'",
        "Authorization: Bearer s3sames3samesames3same",
        "token hf_s3sames3sames3sames3same",
    ],
)
def test_a_value_beside_its_name_is_hidden_though_nobody_told_it(text: str) -> None:
    shown = Redactor()(text)
    assert "***" in shown
    assert "s3same" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "ServerArgs(api_key=None, ssl_keyfile='/tls/key.pem', tokenizer_path='t')",
        "eos_token='<|end|>', pad_token='<pad>', next_token='the'",
        "    api_key=get_serving().api_key,",
        "--grpc-port is incompatible with --api-key/--admin-api-key",
        "--ssl-keyfile-password has no effect without --ssl-certfile",
        "Prefill batch, #new-seq: 1, #new-token: 128, #cached-token: 0, token usage: 0.00",
        "KeyError: 'model.layers.0.key'",
        "",
    ],
)
def test_other_lines_are_as_they_were(text: str) -> None:
    assert Redactor({KEY, "short"})(text) == text


def test_a_short_value_does_not_take_the_log_with_it() -> None:
    redact = Redactor({"a"})
    assert redact("a batch of a day, api_key='a'") == "a batch of a day, api_key='***'"
    assert redact("server --api-key a --host a.b") == "server --api-key *** --host a.b"


def test_one_secret_inside_another() -> None:
    assert Redactor({"longlong", "longlong-and-more"})("longlong-and-more longlong") == "*** ***"


@pytest.mark.parametrize(
    "text",
    ["a-" * 50_000 + "key", "--a" * 30_000 + "key", "api_key='" * 10_000, "api_key" + "\\" * 90_000 + "'", "x" * 10**6],
)
def test_no_text_makes_it_slow(text: str) -> None:
    # Any client sends 64 KiB of path, which the access log has: the server answers nobody else meanwhile.
    began = time.process_time()
    Redactor({KEY})(text)
    assert time.process_time() - began < 0.3  # 0.05 on an idle core


def test_a_line_costs_little() -> None:
    redact, rounds = Redactor({KEY, ODD, "another-key-01"}), 2000
    line = "[2026-11-30 18:00:00 TP0] Decode batch, #running-req: 4, #token: 812, token usage: 0.40, gen throughput: 9"
    began = time.process_time()
    for _ in range(rounds):
        redact(line)
    assert (time.process_time() - began) / rounds < 200e-6  # 3 us on an idle core


# What a process of the server does, as a program: each line that it writes holds the secret.
WRITER = """
import logging, sys, traceback, warnings

SECRET = "a-key-that-nobody-else-has"

class Arguments:
    def __repr__(self):
        return f"ServerArgs(api_key={SECRET!r})"

def write(who):
    logging.basicConfig(level=logging.DEBUG, force=True)
    logging.getLogger().addHandler(logging.FileHandler(f"{who}.log"))
    logging.getLogger(who).info("as the message %s", SECRET)
    logging.getLogger(who).debug("as an object %s", Arguments())
    print("printed", Arguments())
    print("printed", SECRET, file=sys.stderr)
    sys.stdout.writelines(["written ", SECRET, "\\n"])
    warnings.warn(f"warned of {SECRET}")
    try:
        raise RuntimeError(f"raised with {Arguments()}")
    except RuntimeError:
        logging.getLogger(who).exception("with a traceback")
        traceback.print_exc()
    logging.getLogger(who).info("badly formatted %d", SECRET)
    sys.stdout.flush()
"""
PARENT = """
import multiprocessing
from kdtree_verify import redaction
from writer import SECRET, write

def middle():
    write("child")
    grandchild = multiprocessing.Process(target=write, args=("grandchild",))
    grandchild.start()
    grandchild.join()

def dying():
    raise RuntimeError(f"the child died of {SECRET}")

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    redaction.everywhere({SECRET})
    redaction.everywhere(())  # as a plugin that knows nothing does
    write("parent")
    for target in (middle, dying):
        child = multiprocessing.Process(target=target)
        child.start()
        child.join()
    raise SystemExit(f"ended with {SECRET}")
"""


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a parent, its spawned child and that one's child wrote."""
    folder = tmp_path_factory.mktemp("family")
    (folder / "writer.py").write_text(textwrap.dedent(WRITER))
    (folder / "parent.py").write_text(textwrap.dedent(PARENT))
    run = subprocess.run([sys.executable, "parent.py"], cwd=folder, capture_output=True, text=True, timeout=120)
    files = sorted(folder.glob("*.log"))
    assert [file.stem for file in files] == ["child", "grandchild", "parent"]
    return run.stdout + run.stderr + "".join(file.read_text() for file in files)


def test_no_process_of_the_family_writes_the_secret(family: str) -> None:
    leaks = [line for line in family.splitlines() if KEY in line and "raise" not in line]
    assert leaks == []


@pytest.mark.parametrize("who", ["parent", "child", "grandchild"])
def test_every_process_still_writes(family: str, who: str) -> None:
    assert f"INFO:{who}:as the message ***" in family
    assert f"DEBUG:{who}:as an object ServerArgs(api_key='***')" in family
    assert f"ERROR:{who}:with a traceback" in family


def test_each_way_of_writing_was_tried(family: str) -> None:
    for text in ("printed ***", "written ***", "warned of ***", "RuntimeError: raised with ServerArgs(api_key='***')"):
        assert family.count(text) >= 3, text
    assert "the child died of ***" in family
    assert "ended with ***" in family


def test_streams_stay_what_they_were() -> None:
    program = (
        "import sys; from kdtree_verify import redaction; out = sys.stdout\n"
        "redaction.everywhere(['a-key-that-is-hidden']); redaction.everywhere([])\n"
        "assert sys.stdout is out and out.fileno() == 1 and not out.isatty()\n"
        "print('plain'); out.buffer.write(b'bytes\\n'); print('a-key-that-is-hidden')\n"
        "sys.stdout = None; sys.stderr = None; redaction.everywhere(['more-than-eight'])\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(run.stdout.split()) == ["***", "bytes", "plain"]
