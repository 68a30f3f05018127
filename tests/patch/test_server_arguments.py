"""What the launcher reads of the server's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kdtree_verify import arguments

MODEL = ["--model-path", "m"]


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ([], 1),
        (["--tp", "4"], 4),
        (["--tensor-parallel-size=4", "--pp-size", "2"], 8),
        (["--tp-size", "2", "--dp-size", "3"], 6),
        (["--tp-size", "8", "--dp-size", "8", "--enable-dp-attention"], 8),
        (["--tp-size", "16", "--nnodes", "2", "--node-rank", "1"], 8),
        (["--tp-size", "8", "--pp-size", "2", "--nnodes", "2"], 8),
        (["--tp-size", "8", "--pp-size", "2", "--nnodes", "4"], 4),
    ],
)
def test_expected_ranks_of_this_host(given, ranks) -> None:
    assert arguments.parse([*MODEL, *given]).expected_ranks == ranks


def test_named_backends() -> None:
    def named(*given: str) -> tuple[str | None, str | None]:
        return arguments.parse([*MODEL, *given]).verify_backends

    assert named() == (None, None)
    assert named("--attention-backend", "triton") == ("triton", "triton")
    assert named("--decode-attention-backend=triton") == (None, "triton")
    assert named("--attention-backend", "fa3", "--prefill-attention-backend", "triton") == ("triton", "fa3")


def test_a_configuration_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("tp-size: 4\nattention-backend: flashinfer\nport: 31000\n")
    parsed = arguments.parse([*MODEL, "--config", str(path), "--host", "::"])
    assert (parsed.expected_ranks, parsed.verify_backends) == (4, ("flashinfer", "flashinfer"))
    assert parsed.endpoint == arguments.Endpoint("::", 31000, tls=False)


def test_a_configuration_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "server.yaml"
    path.write_text("{:::\n - x")
    assert arguments.parse([*MODEL, "--config", str(path)]) is None


def test_where_it_listens() -> None:
    assert arguments.parse(MODEL).endpoint == arguments.Endpoint("127.0.0.1", 30000, tls=False)
    given = ["--por", "1", "--host=0.0.0.0", "--ssl-certfile", "c", "--ssl-keyfile", "k", "--port=2"]
    assert arguments.parse([*MODEL, *given]).endpoint == arguments.Endpoint("0.0.0.0", 2, tls=True)


@pytest.mark.parametrize(
    "given", [["--no-such-option"], ["--tp-size", "x"], ["--help"], ["--config", "/no/such"], ["--nnodes", "0"]]
)
def test_what_sglang_will_answer_itself(given, capsys) -> None:
    assert arguments.parse([*MODEL, *given]) is None
    assert capsys.readouterr() == ("", "")


def test_secrets_are_not_shown() -> None:
    given = [*MODEL, "--api-key", "a", "--admin-api-key=b", "--max-total-tokens", "64", "--tokenizer-path", "t"]
    shown = [*MODEL, "--api-key", "***", "--admin-api-key=***", "--max-total-tokens", "64", "--tokenizer-path", "t"]
    assert arguments.redacted(given) == shown


@pytest.mark.parametrize("name", ["--api-key", "--api", "--api-k", "--api_key", "--admin-a", "--ssl-keyfile-pass"])
def test_a_secret_is_one_by_any_name(name) -> None:
    assert "sesame" not in str(arguments.redacted([name, "sesame", f"{name}=sesame"]))
