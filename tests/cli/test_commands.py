"""The invocations that users of vLLM know, run as they are written: each serves, or is refused in a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("model", "server"))

import tiny
from real_server import RealServer

from octavo import LLM, SamplingParams
from octavo.cli.main import run

SERVED = [
    "--port 8000 --dtype auto --max-model-len 8192 --gpu-memory-utilization 0.9 --tensor-parallel-size 1 "
    "--max-num-seqs 256",
    "--host 0.0.0.0 --port 8000 --dtype auto --max-model-len 32768 --gpu-memory-utilization 0.9 "
    "--enable-prefix-caching --max-num-seqs 128",
    "--max-num-seqs 512 --max-model-len 4096 --gpu-memory-utilization 0.85 --enable-prefix-caching",
    "--max-num-seqs 32 --max-model-len 131072 --block-size 32 --gpu-memory-utilization 0.95",
    "--enable-chunked-prefill --max-num-batched-tokens 2560",
    "--dtype half",
    "--dtype float16",
    "--dtype bfloat16",
    "--kv-cache-dtype fp8",
    "--kv-cache-dtype fp8_e5m2",
]
REFUSED = {
    "--quantization awq --dtype auto": "awq",
    "--quantization gptq --dtype auto": "gptq",
    "--quantization fp8 --dtype auto": "fp8",
    "--quantization squeezellm --dtype auto": "squeezellm",
    "--tensor-parallel-size 4 --dtype bfloat16 --max-model-len 8192 --quantization fp8": "not implemented yet",
    "--tensor-parallel-size 2 --pipeline-parallel-size 2": "not implemented yet",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made for 131,072 positions. Its folder holds code of its own, which would leave a file behind if it ran."""
    path = tiny.write_checkpoint("llama", tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((path / "config.json").read_text())
    code = {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnModel"}, "max_position_embeddings": 131072}
    (path / "config.json").write_text(json.dumps(config | code))
    (path / "modeling_own.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    return path


def serve(model: Path, log: Path, options: str) -> RealServer:
    # Only the port is another than the user's: it may be taken where tests run. The last one given counts.
    return RealServer(log, *options.split(), "--port", "0", command=("serve", str(model)))


@pytest.mark.parametrize("options", SERVED)
def test_a_known_line_serves(model: Path, tmp_path: Path, options: str) -> None:
    server = serve(model, tmp_path / "log", options)
    try:
        reply = server.post("/v1/completions", prompt="abc", max_tokens=3, temperature=0, ignore_eos=True)
        assert reply["usage"]["completion_tokens"] == 3
        (card,) = server.client.get("/v1/models").json()["data"]
        assert card["id"] == str(model)
        if "--max-model-len" in options:
            assert f"--max-model-len {card['max_model_len']} " in options + " "
    finally:
        assert server.close() == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("options", REFUSED)
def test_what_comes_later_is_refused_in_a_sentence(
    model: Path, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(model), *options.split(), "--port", "0"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("octavo: ") and shown.err.count("\n") == 1
    assert REFUSED[options] in shown.err


def test_more_context_than_the_model_was_made_for_is_refused(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", str(model), "--max-model-len", "262144", "--port", "0"]) == 2
    shown = capsys.readouterr().err
    assert "262144" in shown and "131072" in shown and shown.count("\n") == 1


def test_code_in_the_models_folder_never_runs(model: Path, tmp_path: Path) -> None:
    server = serve(model, tmp_path / "log", "--trust-remote-code")
    try:
        assert server.post("/v1/completions", prompt="abc", max_tokens=1)
    finally:
        assert server.close() == 0
    assert not (model / "ran").exists()


def test_the_python_that_users_know(model: Path) -> None:
    prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=100)
    with LLM(model=str(model), tensor_parallel_size=1, max_num_seqs=256) as llm:
        outputs = llm.generate(prompts, sampling_params)
    assert [output.prompt for output in outputs] == prompts
    for output in outputs:
        assert isinstance(output.outputs[0].text, str) and 0 < len(output.outputs[0].token_ids) <= 100


def test_the_clients_that_users_know(model: Path, tmp_path: Path) -> None:
    server = serve(model, tmp_path / "log", "--served-model-name mine")
    try:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY", max_retries=0)
        stream = client.chat.completions.create(
            model="mine",
            messages=[{"role": "system", "content": "You are helpful."}, {"role": "user", "content": "Hello!"}],
            temperature=0.7,
            max_tokens=500,
            stream=True,
        )
        reasons = []
        for chunk in stream:
            if chunk.choices[0].delta.content is not None:
                assert isinstance(chunk.choices[0].delta.content, str)
            reasons.append(chunk.choices[0].finish_reason)
        assert reasons[-1] in ("stop", "length") and set(reasons[:-1]) == {None}
        # What frameworks send that spell out every default.
        reply = client.completions.create(
            model="mine",
            prompt=["What is the capital of France ?"],
            temperature=0.7,
            top_p=1,
            frequency_penalty=0,
            presence_penalty=0,
            n=1,
            max_tokens=256,
            logit_bias=None,
        )
        assert reply.usage is not None and reply.usage.completion_tokens > 0
    finally:
        client.close()
        assert server.close() == 0


def test_a_prompt_given_to_generate(model: Path) -> None:
    command = [sys.executable, "-m", "octavo", "generate", "--model", str(model)]
    done = subprocess.run([*command, "abc", "--ignore-eos"], capture_output=True, timeout=120)
    assert done.returncode == 0 and done.stderr == b""
    again = subprocess.run([*command, "-", "--max-tokens", "1"], capture_output=True, timeout=120, input=b"abc")
    assert again.returncode == 0 and len(again.stdout) < len(done.stdout)
    for wrong, says in (
        (["abc", "--temperature", "-1"], b"temperature"),
        (["", "--chat", "--chat-template", "/no/such/file"], b"/no/such/file"),
        (["-"], b"maximum context length is 131072 tokens. However, you requested 140001 tokens"),
    ):
        refused = subprocess.run([*command, *wrong], capture_output=True, timeout=120, input=b"a" * 140_000)
        assert refused.returncode == 2 and refused.stdout == b""
        assert refused.stderr.startswith(b"octavo: ") and refused.stderr.count(b"\n") == 1
        assert says in refused.stderr
