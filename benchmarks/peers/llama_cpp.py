"""The worker of llama.cpp: continuous batching over its C interface, as its own server does it.

Slots hold a sequence each; a step decodes one token of every running sequence and fills the rest of the batch with
prompts. Options: slots (at most; default 32), batch (2048) and ubatch (512), the defaults of its server; share=0: the
beginning that all prompts share is computed for each. server=PATH: a llama-server for the runs over HTTP, which the
Python package does not have.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from importlib.metadata import version

import llama_cpp as lib
import numpy as np

from .worker import Clock, Engine, Request, work


@dataclass
class Sequence:
    index: int  # of the request
    tokens: list[int]
    done: int = 0  # tokens that the cache has
    left: int = 0  # tokens to generate


def order(sequence: Sequence) -> tuple[bool, int]:
    """Who comes first in a step: those that decode, then prompts as they came."""
    return (sequence.done + 1 < len(sequence.tokens), sequence.index)


class LlamaCpp(Engine):
    def __init__(self, model: str, threads: int, options: dict[str, str]):
        self.threads = threads
        self.slots = int(options.get("slots", 32))
        self.batch_size, self.ubatch_size = int(options.get("batch", 2048)), int(options.get("ubatch", 512))
        self.shares = options.get("share", "1") != "0"
        self.quiet = lib.llama_log_callback(lambda level, text, data: None)
        lib.llama_log_set(self.quiet, ctypes.c_void_p())
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(os.fsencode(model), lib.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {model}")
        self.vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        self.name = f"llama-cpp-python {version('llama_cpp_python')}"
        self.batch = lib.llama_batch_init(self.batch_size, 0, 1)
        self.context, self.shape = None, (0, 0)

    def open(self, slots: int, length: int) -> None:
        """An empty context. Each slot has a cache of its own: a common one makes every sequence look at all."""
        if self.shape != (slots, length):
            if self.context:
                lib.llama_free(self.context)
            params = lib.llama_context_default_params()
            params.n_seq_max, params.n_ctx, params.kv_unified = slots, slots * length, False
            params.n_batch, params.n_ubatch = self.batch_size, self.ubatch_size
            params.n_threads = params.n_threads_batch = self.threads
            self.context, self.shape = lib.llama_init_from_model(self.model, params), (slots, length)
            if not self.context:
                raise SystemExit(f"llama.cpp cannot make a context of {slots} x {length} tokens")
        self.memory = lib.llama_get_memory(self.context)
        lib.llama_memory_clear(self.memory, False)

    def decode(self, parts: list[tuple[int, Sequence, int]]) -> list[int]:
        """One step over (slot, sequence, tokens of it); the next token of each that has none left to compute."""
        batch, n, rows = self.batch, 0, []
        for slot, sequence, count in parts:
            for position in range(sequence.done, sequence.done + count):
                batch.token[n], batch.pos[n] = sequence.tokens[position], position
                batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = 1, slot, 0
                n += 1
            sequence.done += count
            if sequence.done == len(sequence.tokens):
                batch.logits[n - 1] = 1
                rows.append(n - 1)
        batch.n_tokens = n
        if lib.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        logits = (lib.llama_get_logits_ith(self.context, row) for row in rows)
        return [int(np.ctypeslib.as_array(row, (self.vocab,)).argmax()) for row in logits]

    def run(self, requests: list[Request], shared: int, clock: Clock) -> None:
        shared = shared if self.shares else 0
        length = max(len(request.prompt) + request.output for request in requests)
        # The first slot keeps what is shared; lengths are what its cache comes in.
        self.open(min(self.slots, len(requests)) + bool(shared), -(-length // 256) * 256)
        if shared:
            prefix = Sequence(-1, requests[0].prompt[:shared])
            while prefix.done < shared:
                self.decode([(0, prefix, min(self.batch_size, shared - prefix.done))])
        waiting = [Sequence(i, list(r.prompt), shared, r.output) for i, r in enumerate(requests)][::-1]
        free = list(range(bool(shared), self.shape[0]))[::-1]
        running: dict[int, Sequence] = {}
        while waiting or running:
            while waiting and free:
                slot = free.pop()
                lib.llama_memory_seq_rm(self.memory, slot, -1, -1)
                if shared:
                    lib.llama_memory_seq_cp(self.memory, 0, slot, -1, -1)
                running[slot] = waiting.pop()
            parts, room = [], self.batch_size
            for slot, sequence in sorted(running.items(), key=lambda item: order(item[1])):
                if count := min(room, len(sequence.tokens) - sequence.done):
                    parts.append((slot, sequence, count))
                    room -= count
            tokens = iter(self.decode(parts))
            for slot, sequence, _ in parts:
                if sequence.done == len(sequence.tokens):
                    sequence.tokens.append(next(tokens))
                    sequence.left -= 1
                    clock.tick(sequence.index)
                    if not sequence.left:
                        del running[slot]
                        free.append(slot)

    @classmethod
    def server(cls, model: str, threads: int, port: int, options: dict[str, str]) -> list[str]:
        if "server" not in options:
            return []
        slots = options.get("slots", "16")
        flags = ["-t", str(threads), "-np", slots, "-c", str(1024 * int(slots)), "--no-kv-unified"]
        return [options["server"], "-m", model, "--host", "127.0.0.1", "--port", str(port), *flags]


if __name__ == "__main__":
    work(LlamaCpp)
