"""The worker of vLLM's CPU backend. Options: arguments of its engine, as dtype=bfloat16; cache: GiB for keys and values
(default 4).
"""

from __future__ import annotations

import itertools
import os
import sys

from .worker import Clock, Engine, Request, work


def environment(threads: int, options: dict[str, str]) -> dict[str, str]:
    """Read when vLLM is imported. Without the cores by name it leaves one of them idle."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "VLLM_CPU_KVCACHE_SPACE": options.pop("cache", "4"),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Vllm(Engine):
    def __init__(self, model: str, threads: int, options: dict[str, str]):
        os.environ |= environment(threads, options)
        import vllm

        self.llm, self.params = vllm.LLM(model, max_num_seqs=128, **options), vllm.SamplingParams
        self.name, self.ids = f"vLLM {vllm.__version__}", itertools.count()
        self.vocab = self.llm.get_tokenizer().vocab_size

    def run(self, requests: list[Request], shared: int, clock: Clock) -> None:
        engine, index, seen = self.llm.llm_engine, {}, [0] * len(requests)
        for i, request in enumerate(requests):
            name = f"bench-{next(self.ids)}"
            index[name] = i
            params = self.params(temperature=0, ignore_eos=True, max_tokens=request.output)
            engine.add_request(name, {"prompt_token_ids": request.prompt}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                i, count = index[output.request_id], len(output.outputs[0].token_ids)
                if count > seen[i]:
                    clock.tick(i, count - seen[i])
                    seen[i] = count

    @classmethod
    def server(cls, model: str, threads: int, port: int, options: dict[str, str]) -> list[str]:
        cls.environment = environment(threads, options)
        del cls.environment["VLLM_ENABLE_V1_MULTIPROCESSING"]
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        module = "vllm.entrypoints.openai.api_server"
        return [sys.executable, "-m", module, "--model", model, "--host", "127.0.0.1", "--port", str(port), *flags]


if __name__ == "__main__":
    work(Vllm)
