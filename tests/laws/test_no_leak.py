"""Law L2 on the real engine: a walk of adds, aborts, forks and finishes with every table checked, and memory that
stays flat.
"""

from __future__ import annotations

import random
from pathlib import Path

import tiny
from world import load

from octavo.sampling_params import BeamSearchParams, SamplingParams

MIB = 1 << 20


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_memory_is_flat_over_ten_thousand_steps(tmp_path: Path) -> None:
    path = tiny.write_checkpoint("gemma3", tmp_path)
    model, heard = load(path, max_num_seqs=8, max_num_batched_tokens=32, max_model_len=128, kv_cache_memory="200KiB")
    generator = random.Random(4)
    engine, added, live = model.engine, 0, []
    sizes: dict[int, int] = {}
    gathered = 0  # preempted beam searches
    for step in range(10_000):
        while len(live) < 6 or (len(live) < 20 and generator.random() < 0.02):
            ids = [generator.randrange(256) for _ in range(generator.randrange(1, 60))]
            params = SamplingParams(
                temperature=generator.choice([0.0, 1.0]),
                n=generator.choice([1, 1, 2, 3]),
                max_tokens=generator.randrange(1, 40),
                presence_penalty=generator.choice([0.0, 0.5]),
                logprobs=generator.choice([None, 2]),
            )
            beams = None
            if generator.random() < 0.1:
                params = SamplingParams(n=2, max_tokens=16, stop_token_ids=list(range(20)))
                beams = BeamSearchParams(beam_width=3, max_tokens=16)
            engine.add(model.admit(f"r{added}", ids, params, beams=beams))
            live.append(f"r{added}")
            added += 1
        if generator.random() < 0.02:
            engine.abort(generator.choice(live))
        engine.step()
        live = [name for name in live if name in engine.scheduler.requests]
        heard.logits.clear()
        gathered += any(s.search is not None and s.num_samples == 0 for s in engine.scheduler.waiting)
        if step % 25 == 0:
            engine.scheduler.check()
        if step in (2_000, 9_999):
            sizes[step] = resident()
    for name in live:
        engine.abort(name)
    while engine.has_work():
        engine.step()
    engine.scheduler.check()
    assert engine.scheduler.num_preemptions > 0 and gathered > 0 and added > 1_000
    assert engine.scheduler.kv_cache_usage == 0.0
    assert sizes[9_999] - sizes[2_000] < 8 * MIB, sizes
