"""What the tests of the laws share: tiny models in every packed format, a load of mixed requests, and a runner that
is listened to.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny

from octavo.build import build
from octavo.config import EngineConfig
from octavo.engine.batch import Batch
from octavo.engine.outputs import RequestOutput
from octavo.loaded_model import LoadedModel
from octavo.sampling_params import SamplingParams

# Stored format of the matrices -> what they are packed as.
GGUF_FORMATS = {
    "Q2_K": "i2",
    "Q3_K": "i3",
    "Q4_0": "i4",
    "Q4_1": "i4",
    "Q4_K": "i4",
    "Q5_0": "i5",
    "Q5_1": "i5",
    "Q5_K": "i5",
    "Q6_K": "i6",
    "Q8_0": "i8",
}


def write_gguf(path: Path, matrix_type: str, seed: int = 5) -> Path:
    """A tiny llama-like GGUF file whose matrices are random blocks of one type; the tokenizer is SmolLM2-like bytes."""
    random_state = np.random.RandomState(seed)
    kind = gguf.GGMLQuantizationType[matrix_type]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    hidden, inner, heads, vocab, layers = 256, 512, 4, 320, 2
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(layers)
    writer.add_context_length(4096)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocab)
    backend = tiny.tokenizer()["model"]
    tokens = sorted(backend["vocab"], key=backend["vocab"].get)
    tokens[-1] = tokens[65] + tokens[66]  # what the one merge makes
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges([f"{tokens[65]} {tokens[66]}"])
    writer.add_eos_token_id(257)

    def matrix(name: str, n: int, k: int) -> None:
        values = (random_state.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)
        writer.add_tensor(name, quantise(values, matrix_type, block, size, random_state), raw_dtype=kind)

    def vector(name: str, n: int) -> None:
        writer.add_tensor(name, (1 + 0.1 * random_state.standard_normal(n)).astype(np.float32))

    matrix("token_embd.weight", vocab, hidden)
    vector("output_norm.weight", hidden)
    for i in range(layers):
        vector(f"blk.{i}.attn_norm.weight", hidden)
        matrix(f"blk.{i}.attn_q.weight", hidden, hidden)
        matrix(f"blk.{i}.attn_k.weight", hidden // 2, hidden)
        matrix(f"blk.{i}.attn_v.weight", hidden // 2, hidden)
        matrix(f"blk.{i}.attn_output.weight", hidden, hidden)
        vector(f"blk.{i}.ffn_norm.weight", hidden)
        matrix(f"blk.{i}.ffn_gate.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_up.weight", inner, hidden)
        matrix(f"blk.{i}.ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def quantise(values: np.ndarray, kind: str, block: int, size: int, state: np.random.RandomState) -> np.ndarray:
    """Blocks of `kind`: true ones where the gguf package can make them, else random bits with scales of a fitting
    size.
    """
    try:
        return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    except NotImplementedError:
        n, k = values.shape
        blocks = state.randint(0, 256, (n, k // block, size), dtype=np.uint8)
        scale = np.float16(0.02 / np.sqrt(k)).tobytes()
        # Q4_K and Q5_K begin with two f16 scales, Q2_K ends with two, Q3_K and Q6_K end with one.
        ends = {"Q4_K": slice(0, 4), "Q5_K": slice(0, 4), "Q2_K": slice(size - 4, size)}
        where = ends.get(kind, slice(size - 2, size))
        blocks[:, :, where] = np.frombuffer(scale * 2, np.uint8)[: where.stop - where.start]
        return blocks.reshape(n, -1)


@dataclass
class Heard:
    """The logits' bits of every sampled position, and counters that show what happened."""

    logits: dict[tuple[str, int], str] = field(
        default_factory=dict
    )  # (request, position) of n = 1; (request/index, position)
    prefill_steps: int = 0
    mixed_steps: int = 0
    chunks: int = 0


class Listener:
    """A runner around the runner: notes the logits of each step before they are overwritten."""

    def __init__(self, runner: Any, heard: Heard) -> None:
        self._runner = runner
        self._heard = heard

    def launch(self, batch: Batch) -> Any:
        pending = self._runner.launch(batch)
        logits = self._runner.logits()
        row = 0
        kinds = set()
        for scheduled, output in zip(batch.ranges, pending.outputs(), strict=True):
            low, high = scheduled.prompt_logprob_rows
            row += high - low
            sequence = scheduled.sequence
            kinds.add(scheduled.num_tokens > 1)
            self._heard.chunks += scheduled.num_tokens > 1 and not scheduled.sample_indices
            if scheduled.sample_indices:
                known = scheduled.start + scheduled.num_tokens - scheduled.num_drafts
                # A row behind a draft that was not sampled is of a text that never was.
                kept = 0
                if scheduled.num_drafts:
                    for draft, sample in zip(sequence.draft_token_ids, output.samples, strict=False):
                        if draft != sample.token_id:
                            break
                        kept += 1
                for offset in range(kept + 1):
                    digest = hashlib.sha256(logits[row + offset].tobytes()).hexdigest()
                    for index in scheduled.sample_indices:
                        self._heard.logits[f"{sequence.request.request_id}/{index}", known + offset] = digest
                row += scheduled.num_drafts + 1
        self._heard.prefill_steps += True in kinds
        self._heard.mixed_steps += len(kinds) == 2
        return pending

    def close(self) -> None:
        self._runner.close()


def load(path: Path | str, **options: Any) -> tuple[LoadedModel, Heard]:
    model = build(EngineConfig(model=str(path), **options))
    heard = Heard()
    model.engine.runner = Listener(model.engine.runner, heard)
    return model, heard


Asked = tuple[str, list[int], SamplingParams]


def mixed_requests(count: int, longest: int, new_tokens: int, vocab: int = 256, seed: int = 3) -> list[Asked]:
    """Half greedy, half at temperature 1 with penalties, filters, logprobs and n = 2; some share prefixes."""
    generator = random.Random(seed)
    requests: list[Asked] = []
    for i in range(count):
        length = round(2 ** generator.uniform(1, np.log2(longest)))
        if i % 4 == 3 and requests:
            base = requests[generator.randrange(len(requests))][1]
            ids = base[: max(1, len(base) * 3 // 4)] + [generator.randrange(vocab) for _ in range(5)]
        else:
            ids = [generator.randrange(vocab) for _ in range(length)]
        if i % 2 == 0:
            params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        else:
            params = SamplingParams(
                temperature=1.0,
                seed=1000 + i,
                n=2 if i % 4 == 1 else 1,
                top_p=generator.choice([1.0, 0.9]),
                top_k=generator.choice([0, 40]),
                presence_penalty=generator.choice([0.0, 0.7]),
                frequency_penalty=generator.choice([0.0, 0.4]),
                repetition_penalty=generator.choice([1.0, 1.2]),
                logprobs=generator.choice([None, 3]),
                max_tokens=new_tokens,
                ignore_eos=True,
            )
        requests.append((f"r{i}", ids[:longest], params))
    return requests


def run_together(model: LoadedModel, requests: Iterable[Asked]) -> dict[str, RequestOutput]:
    """All at once, in the order given; the scheduler and its block pools are checked as they go."""
    results: dict[str, RequestOutput] = {}
    for name, ids, params in requests:
        request = model.admit(name, ids, params)
        results[name] = RequestOutput.empty(request)
        model.engine.add(request)
    steps = 0
    while model.engine.has_work():
        for news in model.engine.step():
            assert news.finish_reason != "error"
            results[news.request_id].apply(news)
        steps += 1
        if steps % 16 == 0:
            model.engine.scheduler.check()
    model.engine.scheduler.check()
    return results


def run_alone(model: LoadedModel, requests: Sequence[Asked]) -> dict[str, RequestOutput]:
    """One after the other; nothing is remembered between them if prefix caching is off."""
    return {name: run_together(model, [(name, ids, params)])[name] for name, ids, params in requests}


def tokens_of(results: dict[str, RequestOutput]) -> dict[str, list[Any]]:
    """Everything a client sees of each request, exactly."""
    return {
        name: [
            (output.token_ids, output.text, output.cumulative_logprob, [dict(entry) for entry in output.logprobs or ()])
            for output in result.outputs
        ]
        for name, result in results.items()
    }
