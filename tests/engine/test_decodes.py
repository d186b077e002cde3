"""Plain decodes: who is among them, what a step looks at, and what becomes of faults."""

from __future__ import annotations

import logging

import pytest
from engine_world import Oracle, World, request
from test_engine import Letters, engine, run

from octavo.engine.block_tables import BlockTables
from octavo.engine.scheduler import CacheGroup, SchedulerConfig
from octavo.engine.speculation import Speculation

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


def world(count: int, **limits: int) -> World:
    options = {"max_num_seqs": 32, "max_num_batched_tokens": 64, "max_model_len": 200, "max_output_rows": 64} | limits
    w = World(SchedulerConfig(**options), [CacheGroup("full", 400, 8)])
    for number in range(count):
        w.add(request(f"r{number}", [number, *PROMPT], max_tokens=60))
    return w


def test_a_step_looks_only_at_those_that_have_filled_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(20)
    for _ in range(6):
        w.step()
    decodes = w.scheduler.decodes.ranges
    assert len(decodes) == 20
    looked_at: list[tuple[str, int]] = []
    reserve = BlockTables.reserve

    def counted(self, sequence, count, batch):
        looked_at.append((sequence.request.request_id, sequence.num_computed_tokens))
        return reserve(self, sequence, count, batch)

    monkeypatch.setattr(BlockTables, "reserve", counted)
    for _ in range(24):
        batch = w.scheduler.schedule()
        assert batch is not None and batch.decodes is decodes and not batch.others
        w._collect(w.scheduler.commit(batch, w.runner.launch(batch).outputs()))
        w.check()
    assert len(looked_at) == 20 * 24 // 8
    assert all(position % 8 == 0 for _, position in looked_at)
    w.run()
    w.verify()


def test_they_go_on_together_while_a_step_is_in_flight() -> None:
    """Those that join or end in between take nobody else out."""
    w = world(12)
    w.ahead = 1
    for number in range(12, 24):
        w.add(request(f"r{number}", [number, *PROMPT], max_tokens=3 * (number - 8), eos=frozenset({7})))
    for _ in range(6):
        w.step()
    for _ in range(30):
        w.step()
        batch, _ = w.in_flight[-1]
        running = len(w.scheduler.running)
        assert running - 2 <= len(batch.decodes) <= running + 2, "all but who ends now"
        assert len(batch.others) <= 2
    w.run()
    w.verify()


def test_whoever_asks_for_more_than_a_token_is_not_among_them() -> None:
    w = world(2)
    w.add(request("scored", PROMPT, max_tokens=30, logprobs=1))
    w.add(request("penalised", PROMPT, max_tokens=30, presence_penalty=1.0))
    w.add(request("held", PROMPT, max_tokens=30, min_tokens=20))
    for _ in range(10):
        w.step()
    among = {scheduled.sequence.request.request_id for scheduled in w.scheduler.decodes.ranges}
    assert among == {"r0", "r1"}
    for _ in range(15):
        w.step()
    assert {scheduled.sequence.request.request_id for scheduled in w.scheduler.decodes.ranges} == {"r0", "r1", "held"}
    w.run()
    w.verify()


@pytest.mark.parametrize("limits", [{"max_num_batched_tokens": 4}, {"max_output_rows": 4}])
def test_where_not_all_have_a_place_the_first_go_first(limits: dict[str, int]) -> None:
    w = world(8, **limits)
    w.run()
    w.verify()
    ends = [next(step for step in reversed(range(len(w.batches))) if any(one[0] == f"r{n}" for one in w.batches[step]))
            for n in range(8)]  # fmt: skip
    assert ends == sorted(ends)


def test_an_older_prompt_gets_on_beside_them() -> None:
    """They have their places in a step first, but leave what the first in line needs to go on."""
    w = world(6, max_num_batched_tokens=8)
    for _ in range(12):
        w.step()
    w.add(request("urgent", PROMPT * 6, max_tokens=4, priority=-1))
    for _ in range(40):
        w.step()
    assert w.results["urgent", 0].reason == "length" and not w.results["r0", 0].reason
    w.run()
    w.verify()


def test_a_fault_of_all_ends_them_and_nobody_else(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    w = world(3)
    for _ in range(4):
        w.step()
    batch = w.scheduler.schedule()
    assert batch is not None and len(batch.decodes) == 3
    w.add(request("later", PROMPT, max_tokens=9))
    with monkeypatch.context() as broken:
        broken.setattr(w.scheduler.decodes, "commit", lambda *given: 1 / 0)
        news = list(w.scheduler.commit(batch, w.runner.launch(batch).outputs()))
    assert {(new.request_id, new.finish_reason) for new in news} == {(f"r{n}", "error") for n in range(3)}
    w._collect(news)
    w.run()
    w.verify()
    assert w.results["later", 0].reason == "length"


def test_a_block_that_cannot_be_published_ends_its_request_only(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    e = engine()
    publish = BlockTables.publish

    def broken(self, sequence, end):
        if sequence.request.request_id == "bad" and end > 16:
            raise RuntimeError("broken")
        publish(self, sequence, end)

    monkeypatch.setattr(BlockTables, "publish", broken)
    good = request("good", PROMPT, max_tokens=30)
    outputs = run(e, request("bad", PROMPT, max_tokens=30, n=2), good)
    assert [one.finish_reason for one in outputs["bad"].outputs] == ["error", "error"]
    assert outputs["good"].outputs[0].token_ids == Oracle([0]).run(good, 0)[0]
    assert (e.snapshot().kv_cache_usage, e._live) == (0.0, {})


def test_a_fault_of_the_drafter_costs_drafts_only(caplog) -> None:
    class Broken:
        calls = 0

        def draft(self, sequence, most):
            self.calls += 1
            raise RuntimeError("broken")

    caplog.set_level(logging.CRITICAL)
    e = engine()
    drafter = Broken()
    e.scheduler.speculation = Speculation(drafter, 4)
    asked = [request(f"r{n}", [n, *PROMPT], max_tokens=100) for n in range(3)]
    outputs = run(e, *asked)
    for one in asked:
        assert outputs[one.request_id].outputs[0].token_ids == Oracle([0]).run(one, 0)[0]
    assert drafter.calls == 3


def test_tokens_and_times_are_counted_however_they_are_told() -> None:
    """Some requests are plain decodes, some are not, one stops at a string and one is aborted in between."""
    e = engine(detokenizer=Letters)
    asked = [request(f"r{n}", [n, *PROMPT], max_tokens=10 + 7 * n) for n in range(4)]
    asked.append(request("scored", PROMPT, max_tokens=20, logprobs=0))
    told: dict[str, int] = {}
    for one in asked:
        e.add(one)
    steps = 0
    while e.has_work():
        news = e.step()
        steps += 1
        if steps == 12:
            news = news + e.abort("r3")
        for output in news:
            told[output.request_id] = told.get(output.request_id, 0) + len(output.token_ids)
    totals = e.snapshot().totals
    assert totals.generation_tokens == sum(told.values())
    assert totals.request_generation_tokens.total == sum(told.values())
    assert sum(totals.inter_token_latency.counts) == sum(told.values()) - len(asked)
    assert totals.request_success["length"] == 4 and totals.request_success["abort"] == 1
