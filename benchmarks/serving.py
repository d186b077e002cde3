"""What the server takes: output tokens per second of 64 streams over HTTP, beside the same requests offline.

The requests are those of workload C, all at once. `octavo serve` is a process of its own; the client reads bytes and
parses the last event only. The two take turns, and a ratio is of two runs that follow one another.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from common import engine_options, parser, random_prompt, show, spread, workload_c

from octavo import LLM, SamplingParams

START_SECONDS = 300
Work = list[tuple[list[int], int]]  # prompts and numbers of output tokens


@contextmanager
def server(options: dict[str, Any]) -> Iterator[int]:
    """`octavo serve` on a free port, once it takes connections."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "octavo", "serve", f"--port={port}", *flags]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            time.sleep(0.1)
        else:
            raise SystemExit("octavo serve did not start.")
        yield port
    finally:
        process.terminate()
        process.wait()


async def stream(port: int, prompt: list[int], output: int) -> int:
    """One streamed completion; returns how many tokens it had."""
    body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True, "stream": True}
    data = json.dumps(body | {"stream_options": {"include_usage": True}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\nconnection: close\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + data)
    received = await reader.read()
    writer.close()
    usage = received[received.rindex(b'"usage":') + len(b'"usage":') :]
    tokens: int = json.JSONDecoder().raw_decode(usage.decode())[0]["completion_tokens"]
    return tokens


async def online(port: int, work: Work) -> int:
    return sum(await asyncio.gather(*(stream(port, prompt, output) for prompt, output in work)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = options.parse_args()
    # A share of the free memory would depend on who of the two starts first.
    more = {"max_num_batched_tokens": args.max_num_batched_tokens, "kv_cache_memory": "2GiB"}
    llm = LLM(**engine_options(args, **more))
    vocab, lengths = llm.get_tokenizer().vocab_size, workload_c()
    rates: dict[str, list[float]] = {"offline": [], "over HTTP": []}

    def measure(name: str, run: int) -> None:
        prompts = [
            random_prompt(args.seed + 1000 * run + i, entry["prompt_len"], vocab) for i, entry in enumerate(lengths)
        ]
        outputs = [entry["output_len"] for entry in lengths]
        start = time.perf_counter()
        if name == "offline":
            params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=output) for output in outputs]
            llm.generate(prompts, params, use_tqdm=False)
        else:
            assert asyncio.run(online(port, list(zip(prompts, outputs, strict=True)))) == sum(outputs)
        rates[name].append(sum(outputs) / (time.perf_counter() - start))

    with server(engine_options(args, **more)) as port:
        for run in range(args.repeat):
            # Other prompts for each, so that neither finds the other's in its cache; who begins changes.
            for name in ("offline", "over HTTP") if run % 2 else ("over HTTP", "offline"):
                measure(name, 2 * run + (name == "offline"))
    shares = [100 * served / alone for served, alone in zip(rates["over HTTP"], rates["offline"], strict=True)]
    rows = {f"output tok/s, {name}": spread(values) for name, values in rates.items()}
    show("workload C served", {**rows, "served, % of offline": spread(shares)}, args.json)


if __name__ == "__main__":
    main()
