"""The worker of octavo. Options: those of EngineConfig, as max_num_batched_tokens=1024."""

from __future__ import annotations

import itertools
import sys

from octavo import LLM, SamplingParams, __version__

from .worker import Clock, Engine, Request, work

DEFAULTS = {"kv_cache_memory": "2GiB"}  # a share of what is free would depend on the other engine


class Octavo(Engine):
    def __init__(self, model: str, threads: int, options: dict[str, str]):
        self.llm = LLM(model, threads=threads, **(DEFAULTS | options))
        self.name, self.vocab = f"octavo {__version__}", self.llm.get_tokenizer().vocab_size
        self.ids = itertools.count()

    def run(self, requests: list[Request], shared: int, clock: Clock) -> None:
        model, index = self.llm._loaded(), {}
        for i, request in enumerate(requests):
            params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=request.output)
            name = f"bench-{next(self.ids)}"
            index[name] = i
            model.engine.add(model.admit(name, request.prompt, params))
        while model.engine.has_work():
            for news in model.engine.step():
                if news.token_ids:
                    clock.tick(index[news.request_id], len(news.token_ids))

    @classmethod
    def server(cls, model: str, threads: int, port: int, options: dict[str, str]) -> list[str]:
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in (DEFAULTS | options).items()]
        return [
            sys.executable,
            "-m",
            "octavo",
            "serve",
            "--model",
            model,
            f"--threads={threads}",
            f"--port={port}",
            *flags,
        ]


if __name__ == "__main__":
    work(Octavo)
