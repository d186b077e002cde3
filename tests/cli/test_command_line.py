"""The command line as a user meets it: a process, its output and its exit status."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.cli.main import build_parser, run
from octavo.cli.options import read_engine_flags, read_flags
from octavo.config import EngineConfig, ServerConfig

SERVE_LINES = [
    "serve MODEL --port 8000 --dtype auto --max-model-len 8192 --gpu-memory-utilization 0.9 --tensor-parallel-size 1 "
    "--max-num-seqs 256",
    "serve MODEL --host 0.0.0.0 --port 8000 --dtype auto --max-model-len 32768 --gpu-memory-utilization 0.9 "
    "--enable-prefix-caching --max-num-seqs 128",
    "serve MODEL --max-num-seqs 512 --max-model-len 4096 --gpu-memory-utilization 0.85 --enable-prefix-caching",
    "serve MODEL --max-num-seqs 32 --max-model-len 131072 --block-size 32 --gpu-memory-utilization 0.95",
    "serve MODEL --enable-chunked-prefill --max-num-batched-tokens 2560",
    "serve MODEL --dtype half",
    "serve MODEL --dtype float16",
    "serve MODEL --dtype bfloat16",
    "serve MODEL --trust-remote-code",
    "serve --model MODEL --no-enable-prefix-caching --max-model-len 32K --served-model-name a b",
]


def octavo(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("line", SERVE_LINES)
def test_lines_that_users_of_vllm_know_are_understood(line: str) -> None:
    args = build_parser().parse_args(line.split())
    read_flags(args, ServerConfig)
    config = read_engine_flags(args)
    assert config.model == "MODEL"
    assert ("--max-num-seqs" in line) == (config.max_num_seqs != EngineConfig().max_num_seqs or "128" in line)


@pytest.mark.parametrize(
    "line",
    [
        "serve MODEL --quantization awq",
        "serve MODEL --tensor-parallel-size 4 --dtype bfloat16 --max-model-len 8192 --quantization fp8",
        "serve MODEL --tensor-parallel-size 2 --pipeline-parallel-size 2",
        "serve MODEL --model OTHER",
        "serve MODEL --block-size 17",
        "generate hello --dtype int3",
    ],
)
def test_what_cannot_be_met_ends_in_one_sentence_and_status_2(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("octavo: ") and shown.err.count("\n") == 1


def test_help_is_instant_and_lists_every_option() -> None:
    seconds = []
    for _ in range(3):  # bytecode is compiled on the first run
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = octavo("--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert done.returncode == 0 and "serve" in done.stdout
    assert min(seconds) < 0.5  # of processor time; 0.14 on a quiet machine, twice that on a busy one
    shown = octavo("serve", "--help").stdout
    for name in [*EngineConfig.options(), *ServerConfig.options()]:
        assert "--" + name.replace("_", "-") in shown


def test_help_imports_nothing_heavy() -> None:
    check = (
        "import sys\nfrom octavo.cli.main import build_parser\nbuild_parser()\n"
        "heavy = {'numpy', 'fastapi', 'pydantic', 'tokenizers', 'asyncio', 'jinja2', 'octavo._native'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60)


def test_underscores_in_flags_count_as_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "MODEL", "--block_size=17"]) == 2
    assert "block_size" in capsys.readouterr().err


def test_unknown_commands_and_flags_are_refused() -> None:
    for line in (["frobnicate"], ["serve", "MODEL", "--frobnicate"]):
        with pytest.raises(SystemExit) as ended:
            run(line)
        assert ended.value.code == 2


def test_collect_env_names_the_kernels_and_why() -> None:
    done = octavo("collect-env")
    assert done.returncode == 0
    for word in ("octavo", "python", "cores", "memory"):
        assert word in done.stdout


def test_a_port_in_use_is_found_before_the_model_is_looked_for() -> None:
    """Two servers on one port: the second ends at once and names the port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = octavo("serve", "/no/such/model", "--port", str(port))
        assert done.returncode == 2
        assert str(port) in done.stderr and "no/such" not in done.stderr


def openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate with its key, another key, the key under a password, and what is neither."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("keys")
    curve = ("-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")
    for name in ("key", "other"):
        openssl("genpkey", *curve, "-out", folder / name)
    openssl("req", "-x509", "-new", "-key", folder / "key", "-subj", "/CN=localhost", "-out", folder / "cert")
    openssl("pkey", "-in", folder / "key", "-aes256", "-passout", "pass:secret", "-out", folder / "locked")
    (folder / "garbage").write_text("no PEM\n")
    return folder


@pytest.mark.parametrize(
    ("cert", "key", "says"),
    [
        ("none", "key", "ssl_certfile = .*none.* cannot be read: No such file"),
        ("cert", "none", "ssl_keyfile = .*none.* cannot be read: No such file"),
        ("garbage", "key", "no certificate and its key"),
        ("cert", "garbage", "no certificate and its key"),
        ("cert", "other", "key values mismatch"),
        ("cert", "locked", "encrypted"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_found_before_the_model_is_looked_for(
    keys: Path, cert: str, key: str, says: str
) -> None:
    files = ("--ssl-certfile", str(keys / cert), "--ssl-keyfile", str(keys / key))
    done = octavo("serve", "/no/such/model", "--port", "0", *files)
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(f"octavo: .*{says}.*\n", done.stderr), done.stderr


def test_a_certificate_that_can_be_used_is_no_hindrance(keys: Path) -> None:
    files = ("--ssl-certfile", str(keys / "cert"), "--ssl-keyfile", str(keys / "key"))
    done = octavo("serve", "/no/such/model", "--port", "0", *files)
    assert done.returncode == 2 and "/no/such/model" in done.stderr
