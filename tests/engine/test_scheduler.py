"""What the scheduler promises: order, sharing, waiting, preemption, forks, drafts, rows, and steps in flight."""

import gc
import random
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import pytest
from engine_world import VOCAB, World, request

from octavo.engine.batch import RangeOutput, TokenOutput
from octavo.engine.request import Status
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.engine.scheduler_config import SHORTEST_CHUNK
from octavo.errors import ConfigError, RequestError

PROMPT = random.Random(7).choices(range(VOCAB), k=100)


def world(
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    budget: int = 512,
    seqs: int = 16,
    context: int = 400,
    rows: int = 64,
    windows: tuple[int, ...] = (0,),
    window_blocks: int | None = None,
    ahead: int = 0,
    drafts: int = 0,
    **config,
) -> World:
    groups = [
        CacheGroup("window" if w else "full", (window_blocks or num_blocks + 1) if w else num_blocks, block_size, w)
        for w in windows
    ]
    return World(SchedulerConfig(seqs, budget, context, rows, **config), groups, ahead=ahead, drafts=drafts)


def finish(w: World) -> World:
    w.run()
    w.verify()
    return w


@pytest.mark.parametrize("budget", [1, 7, 15, 16, 17, 512])
@pytest.mark.parametrize("windows", [(0,), (0, 9), (9,)])
def test_any_budget_gives_the_same_tokens_alone_and_beside_others(budget: int, windows: tuple[int, ...]) -> None:
    w = world(budget=budget, windows=windows)
    w.add(request("other", PROMPT[50:], max_tokens=30))
    w.step()
    w.add(request("long", PROMPT, max_tokens=5))
    finish(w)


@pytest.mark.parametrize("length", [15, 16, 17])
def test_a_hit_is_whole_blocks_and_never_the_last_token(length: int) -> None:
    w = world()
    for name in ("cold", "warm"):
        w.add(request(name, PROMPT[:length], max_tokens=3))
        finish(w)
    cold, warm = w.results["cold", 0], w.results["warm", 0]
    assert cold.num_cached == 0
    assert warm.num_cached == (length - 1) // 4 * 4
    assert warm.tokens == cold.tokens
    assert w.scheduler.num_prefix_queries == 2 * length and w.scheduler.num_prefix_hits == warm.num_cached


def test_generated_tokens_are_found_by_the_next_turn() -> None:
    w = world()
    w.add(request("turn", PROMPT[:10], max_tokens=10))
    finish(w)
    w.add(request("next", PROMPT[:10] + w.results["turn", 0].tokens + [1], max_tokens=2))
    finish(w)
    assert w.results["next", 0].num_cached == 16  # 19 tokens were computed


def test_salts_and_priorities_do_not_mix_caches() -> None:
    w = world()
    cached = []
    for name, salt in (("a1", "a"), ("a2", "a"), ("b", "b"), ("none", None), ("none2", None)):
        w.add(request(name, PROMPT[:20], salt=salt))
        finish(w)
        cached.append(w.results[name, 0].num_cached)
    assert cached == [0, 16, 0, 0, 16]


def test_caching_off_finds_nothing() -> None:
    w = world(enable_prefix_caching=False)
    for name in ("one", "two"):
        w.add(request(name, PROMPT))
        finish(w)
    assert w.scheduler.num_prefix_queries == 200 and w.scheduler.num_prefix_hits == 0
    assert w.scheduler.tables.pools[0].num_cached == 0


def test_evicted_prompts_are_computed_again() -> None:
    w = world(num_blocks=40)
    for turn in range(5):
        w.add(request(f"p{turn}", PROMPT, max_tokens=4))
        finish(w)
        assert w.results[f"p{turn}", 0].num_cached == 0
        for index in range(4):
            w.add(request(f"flood{turn}.{index}", [turn, index, *PROMPT[::-1]], max_tokens=4))
        finish(w)


def test_a_prompt_is_evicted_from_its_tail() -> None:
    w = world(num_blocks=30, context=110)
    w.add(request("one", PROMPT, max_tokens=2))
    finish(w)
    w.add(request("other", PROMPT[::-1][:40], max_tokens=2))
    finish(w)
    w.add(request("again", PROMPT, max_tokens=2))
    finish(w)
    assert 0 < w.results["again", 0].num_cached <= (30 - 11) * 4


@pytest.mark.parametrize("first_asks", [True, False])
def test_prompt_logprobs_ignore_the_cache_and_are_whole(first_asks: bool) -> None:
    w = world(budget=13, rows=7)
    for index, asks in enumerate((first_asks, not first_asks, True)):
        w.add(request(f"r{index}", PROMPT[:60], max_tokens=2, prompt_logprobs=1 if asks else None))
        finish(w)
        assert w.results[f"r{index}", 0].num_cached == (0 if asks or index == 0 else 56)


def test_prompt_logprobs_survive_a_preemption_in_mid_prompt() -> None:
    w = world(num_blocks=30, budget=5, context=110)
    w.add(request("old", PROMPT[:8], max_tokens=60))
    w.step()
    w.step()
    w.add(request("young", PROMPT[::-1], max_tokens=3, prompt_logprobs=0))
    w.step()
    young = w.scheduler.running[-1]
    while not young.num_preemptions:
        w.step()
    assert 0 < len(young.prompt_logprobs) < len(PROMPT) - 1
    finish(w)


def test_identical_prompts_are_computed_once() -> None:
    w = world(budget=16, num_blocks=300)
    for index in range(8):
        w.add(request(f"r{index}", PROMPT, max_tokens=3, n=2, seed=index))
    finish(w)
    # The first computes the prompt; the others its last block, each.
    assert w.runner.num_computed <= 100 + 7 * 4 + 16 * 3


def test_waiting_for_a_prefix_ends_with_its_owner() -> None:
    for lose in ("abort", "finish"):
        w = world(budget=16)
        w.add(request("owner", PROMPT, max_tokens=3))
        w.add(request("waiter", PROMPT[:80], max_tokens=3))
        w.step()
        assert [s.request.request_id for s in w.scheduler.waiting] == ["waiter"]
        w.step()
        if lose == "abort":
            w.abort("owner")
        finish(w)
        assert w.results["waiter", 0].num_cached == (32 if lose == "abort" else 76)


@pytest.mark.parametrize(("priority", "runs"), [(0, True), (1, False), (2, False)])
def test_nobody_waits_for_a_lower_priority(priority: int, runs: bool) -> None:
    w = world(budget=32, long_prefill_token_threshold=8)
    w.add(request("owner", PROMPT, max_tokens=3, priority=1))
    w.step()
    w.add(request("second", PROMPT, max_tokens=3, priority=priority))
    w.step()
    assert ("second" in {s.request.request_id for s in w.scheduler.running}) == runs
    finish(w)


def test_whoever_is_admitted_can_finish_its_prompt() -> None:
    w = world(budget=16, num_blocks=30, context=110)
    w.add(request("one", PROMPT, max_tokens=9))
    w.add(request("two", PROMPT[::-1], max_tokens=9))
    finish(w)
    assert w.scheduler.num_preemptions == 0


def test_a_sequence_that_waits_for_a_prefix_blocks_nobody() -> None:
    w = world(budget=32)
    w.add(request("owner", PROMPT, max_tokens=1))
    w.step()
    w.add(request("waiter", PROMPT, max_tokens=1))
    w.step()
    w.add(request("other", PROMPT[::-1][:8], max_tokens=1))
    while w.results["owner", 0].reason is None:
        w.step()
    assert w.results["other", 0].reason == "length"
    finish(w)


def test_abort_in_mid_prefill_publishes_only_what_was_computed() -> None:
    w = world(budget=10)
    w.add(request("gone", PROMPT, max_tokens=3))
    w.step()
    w.step()
    w.abort("gone")
    w.check()
    w.add(request("again", PROMPT, max_tokens=3))
    finish(w)
    assert w.results["again", 0].num_cached == 20


def test_windows_hit_what_the_window_still_sees() -> None:
    w = world(windows=(0, 9), num_blocks=100)
    w.add(request("one", PROMPT, max_tokens=2))
    finish(w)
    w.add(request("two", PROMPT, max_tokens=2))
    w.step()
    table = list(w.scheduler.running[0].block_tables[1])
    finish(w)
    assert w.results["two", 0].num_cached == 96
    assert table[:22] == [-1] * 22 and min(table[22:]) >= 0


def test_a_window_group_needs_blocks_for_its_window_only() -> None:
    w = world(windows=(0, 8), num_blocks=100, window_blocks=7, budget=12, context=390)
    w.add(request("long", PROMPT, max_tokens=280))
    most = 0
    while w.scheduler.has_work():
        w.step()
        most = max(most, 7 - w.scheduler.tables.pools[1].num_free)
    w.verify()
    assert most <= 6


def test_a_prefix_hit_is_limited_by_the_group_that_lost_most() -> None:
    w = world(windows=(0, 8), num_blocks=200, window_blocks=30, budget=16, context=100)
    w.add(request("one", PROMPT[:60], max_tokens=2))
    finish(w)
    w.add(request("flood", PROMPT[::-1][:99], max_tokens=1))
    finish(w)
    w.add(request("two", PROMPT[:60], max_tokens=2))
    finish(w)
    assert w.results["two", 0].num_cached in range(0, 60, 4)


def test_strict_order_and_the_giant_is_served() -> None:
    w = world(num_blocks=30, context=120)
    w.add(request("running", PROMPT[:40], max_tokens=40))
    w.step()
    w.add(request("giant", PROMPT[::-1], max_tokens=10))
    for index in range(5):
        w.add(request(f"small{index}", [index, *PROMPT[:4]], max_tokens=4))
    finish(w)
    admitted = list(dict.fromkeys(r[0] for batch in w.batches for r in batch))
    assert admitted == ["running", "giant", *(f"small{index}" for index in range(5))]


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    w = world(budget=16, seqs=4)
    w.add(request("long", PROMPT, max_tokens=1))
    for index in range(60):
        w.add(request(f"s{index}", [index % VOCAB, *PROMPT[:6]], max_tokens=2))
        w.step()
        if w.results["long", 0].reason:
            break
    assert w.num_steps <= 2 + len(PROMPT) // 16
    finish(w)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("ahead", [0, 1])
def test_growing_requests_preempt_and_keep_their_tokens(caching: bool, ahead: int) -> None:
    w = world(num_blocks=30, context=100, enable_prefix_caching=caching, ahead=ahead)
    for index in range(8):
        params = {"presence_penalty": 1.0} if index % 2 else {}
        w.add(
            request(
                f"r{index}", PROMPT[index : index + 9], max_tokens=60, min_tokens=9, seed=index, logprobs=1, **params
            )
        )
    w.step()
    oldest = w.scheduler.running[0]
    while w.scheduler.has_work():
        before = w.scheduler.num_preemptions
        w.step()
        # With a step in flight what one gives up comes back later: no reason to take from a second.
        assert not ahead or w.scheduler.num_preemptions - before <= 1
    finish(w)
    assert w.scheduler.num_preemptions > 0
    assert oldest.num_preemptions == 0


def test_high_priority_displaces_low() -> None:
    w = world(num_blocks=40, seqs=4, context=100)
    for index in range(4):
        w.add(request(f"low{index}", PROMPT[index : index + 20], max_tokens=30, priority=1))
    w.add(request("low4", PROMPT[40:60], max_tokens=30, priority=1))
    w.step()
    assert len(w.scheduler.running) == 4
    w.add(request("high", PROMPT[60:90], max_tokens=30, priority=0))
    w.step()
    assert w.results["high", 0].tokens
    assert not w.results["low4", 0].tokens
    assert w.scheduler.running[0].request.request_id == "high"
    finish(w)


def test_equal_priorities_go_by_arrival() -> None:
    w = world(seqs=1)
    for index in range(4):
        w.add(request(f"r{index}", PROMPT[index : index + 5], max_tokens=3, priority=5))
    finish(w)
    assert list(dict.fromkeys(r[0] for batch in w.batches for r in batch)) == ["r0", "r1", "r2", "r3"]


@pytest.mark.parametrize("length", [16, 17, 19])
def test_forks_share_the_prompt_and_copy_one_block_each_but_the_last(length: int) -> None:
    w = world()
    w.add(request("r", PROMPT[:length], max_tokens=6, n=4))
    w.step()
    pool = w.scheduler.tables.pools[0]
    assert pool.num_blocks - pool.num_free == -(-length // 4), "children share every block"
    finish(w)
    assert w.num_copies == (3 if length % 4 else 0)
    assert w.runner.num_computed == length + 4 * 5


def test_more_sequences_than_slots() -> None:
    w = world(seqs=3)
    w.add(request("r", PROMPT[:17], max_tokens=6, n=8))
    w.add(request("s", PROMPT[:9], max_tokens=6, n=2))
    finish(w)


def test_aborting_before_and_after_the_fork_ends_every_sequence() -> None:
    for num_steps in (0, 1, 3, 4):
        w = world(budget=16, ahead=1)
        w.add(request("r", PROMPT[:40], max_tokens=50, n=3))
        for _ in range(num_steps):
            w.step()
        w.abort("r")
        w.abort("r")
        assert [w.results["r", index].reason for index in range(3)] == ["abort"] * 3
        finish(w)
        w.tables.clear()
        w.add(request("r", PROMPT[:40], max_tokens=5, n=3))
        for index in range(3):
            w.results["r", index] = type(w.results["r", index])()
        finish(w)


def test_stop_rules() -> None:
    w = world()
    tokens, _ = w.oracle.run(request("probe", PROMPT[:9], max_tokens=30), 0)
    third = tokens[4]
    w.add(request("eos", PROMPT[:9], max_tokens=30, eos=frozenset({third})))
    w.add(request("id", PROMPT[:9], max_tokens=30, stop=frozenset({third})))
    w.add(request("late", PROMPT[:9], max_tokens=30, stop=frozenset({third}), min_tokens=5))
    w.add(request("none", PROMPT[:9], max_tokens=0))
    sequences = {s.request.request_id: s for s in w.scheduler.waiting}
    finish(w)
    assert w.results["eos", 0].tokens == w.results["id", 0].tokens == tokens[: tokens.index(third) + 1]
    assert sequences["eos"].stop_reason is None and sequences["id"].stop_reason == third
    assert len(w.results["late", 0].tokens) > 5
    assert w.results["none", 0].tokens == [] and w.results["none", 0].reason == "length"


@pytest.mark.parametrize("drafts", [1, 4])
def test_right_drafts_save_steps_and_wrong_ones_cost_nothing_but_work(drafts: int) -> None:
    plain, drafted = world(), world(drafts=drafts)
    for w in (plain, drafted):
        w.add(request("r", PROMPT[:21], max_tokens=60, eos=frozenset({3})))
        finish(w)
    assert drafted.num_steps <= plain.num_steps


def test_all_right_drafts_are_accepted_and_published() -> None:
    w = world()
    asked = request("r", PROMPT[:8], max_tokens=13)
    w.add(asked)
    w.step()
    tokens, _ = w.oracle.run(asked, 0)
    sequence = w.scheduler.running[0]
    for step in range(3):
        sequence.draft_token_ids = tokens[1 + 4 * step : 4 + 4 * step]
        w.step()
    assert sequence.status is Status.FINISHED
    assert w.results["r", 0].tokens == tokens
    assert w.scheduler.tables.pools[0].num_cached == 5


def test_rows_of_a_step_are_bounded() -> None:
    w = world(rows=5, drafts=4, seqs=8)
    for index in range(8):
        w.add(request(f"r{index}", PROMPT[index : index + 30], max_tokens=9, prompt_logprobs=1 if index % 2 else None))
    finish(w)  # every batch is checked against max_output_rows


def test_a_scored_prompt_keeps_to_the_rows_where_its_samples_do_not_fit() -> None:
    """Its end waits for four rows, and what comes before takes no more than there are."""
    w = world(rows=4, budget=64)
    w.add(request("first", PROMPT[:1], max_tokens=9))
    w.add(request("scored", PROMPT[:9], max_tokens=2, n=4, prompt_logprobs=0))
    finish(w)


def test_without_chunked_prefill_prompts_are_whole() -> None:
    with pytest.raises(ConfigError, match=r"100.*400"):
        world(budget=100, enable_chunked_prefill=False)
    w = world(budget=120, context=120, enable_chunked_prefill=False, num_blocks=200)
    for index in range(6):
        w.add(request(f"r{index}", PROMPT[index:], max_tokens=9))
    finish(w)
    prefills = [r for batch in w.batches for r in batch if r[3] > 1]
    assert len(prefills) == 6
    assert all(start + count == 100 - int(name[1:]) for name, _, start, count in prefills)


def test_long_prompts_take_part_of_a_step() -> None:
    w = world(budget=64, long_prefill_token_threshold=16)
    w.add(request("long", PROMPT, max_tokens=2))
    w.add(request("short", PROMPT[::-1][:10], max_tokens=2))
    w.step()
    assert w.batches[0] == [("long", 0, 0, 16), ("short", 0, 0, 10)]
    finish(w)


def test_far_into_a_prompt_chunks_are_shorter_by_what_lies_before_them() -> None:
    cost, prompt = 1 / 100, random.Random(8).choices(range(VOCAB), k=390)
    w = world(budget=64, num_blocks=200, context_cost=cost)
    w.add(request("streams", PROMPT[:5], max_tokens=40))
    w.step()
    w.add(request("long", prompt, max_tokens=2))
    w.add(request("short", PROMPT[::-1][:20], max_tokens=2))
    finish(w)
    chunks = [(start, count) for batch in w.batches for name, _, start, count in batch if name == "long" and count > 1]
    work = [count * (1 + cost * start) for start, count in chunks]
    assert all(50 < each < 64 for each, (_, count) in zip(work[:-1], chunks, strict=False) if count > SHORTEST_CHUNK)
    assert chunks[0] == (0, 63) and chunks[-2][1] == SHORTEST_CHUNK
    assert sum("streams" in {r[0] for r in batch} for batch in w.batches) == 40, "a stream goes on in every step"


def test_what_drafts_read_takes_nothing_from_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    w = world(budget=64, num_blocks=400, drafts=3, context_cost=1 / 10)
    monkeypatch.setattr(w.random, "randint", lambda low, high: high)  # as many as may be
    for index in range(4):
        w.add(request(f"stream {index}", PROMPT[index:] + PROMPT[:90], max_tokens=100))
    while any(sequence.num_output_tokens < 2 for sequence in [*w.scheduler.running, *w.scheduler.waiting]):
        w.step()
    w.add(request("prompt", PROMPT[::-1][:40], max_tokens=2))
    first = len(w.batches)
    finish(w)
    drafted = [any(r[0].startswith("stream") and r[3] > 1 for r in batch) for batch in w.batches]
    assert any(drafted[first:])
    assert ("prompt", 0, 0, 40) in w.batches[first]


def test_a_prompt_that_many_will_share_is_cut_as_others_are() -> None:
    cost = 1 / 100
    w = world(budget=64, num_blocks=400, seqs=16, rows=16, context_cost=cost)
    for index in range(13):
        w.add(request(str(index), [index, *PROMPT[:3]], max_tokens=60))
    w.step()
    w.add(request("shared", random.Random(8).choices(range(VOCAB), k=300), n=4, max_tokens=2))
    for _ in range(30):
        w.step()
    chunks = [
        (start, count) for batch in w.batches for name, _, start, count in batch if name == "shared" and count > 1
    ]
    assert chunks and all(count * (1 + cost * start) < 64 or count == SHORTEST_CHUNK for start, count in chunks)
    finish(w)


def test_the_next_step_is_scheduled_before_the_last_is_committed() -> None:
    w = world(ahead=1)
    w.add(request("free", PROMPT[:9], max_tokens=20))
    w.add(request("bound", PROMPT[20:29], max_tokens=20, repetition_penalty=1.5))
    finish(w)
    free, bound = (
        [i for i, batch in enumerate(w.batches) if any(r[0] == name for r in batch)] for name in ("free", "bound")
    )
    assert free == list(range(20)), "in every step"
    beside = [index for index in bound if index < 20]
    assert len(beside) > 5
    assert all(after - before > 1 for before, after in pairwise(beside)), "after its commit only"


def test_blocks_of_a_step_in_flight_are_held() -> None:
    w = world(ahead=1, num_blocks=20)
    w.add(request("gone", PROMPT[:40], max_tokens=20))
    w.step()
    assert len(w.in_flight) == 1
    w.abort("gone")
    pool = w.scheduler.tables.pools[0]
    assert pool.num_free == 10, "10 blocks of 4 are still read or written"
    w.check()
    w.step()
    assert pool.num_free == 20
    finish(w)


def test_a_failed_step_ends_its_requests_only() -> None:
    w = world(budget=16)
    w.add(request("in", PROMPT[:40], max_tokens=20, n=2))
    batch = w.scheduler.schedule()
    assert batch is not None
    w.add(request("out", PROMPT[:20], max_tokens=20))
    news = w.scheduler.fail(batch, "why")
    assert [(new.request_id, new.index, new.finish_reason) for new in news] == [("in", 0, "error"), ("in", 1, "error")]
    assert {new.error for new in news} == {"why"}
    w._collect(news)
    finish(w)
    assert w.results["out", 0].reason == "length" and w.results["out", 0].num_cached == 0


def test_outputs_that_do_not_match_the_batch_end_its_requests() -> None:
    w = world()
    w.add(request("r", PROMPT[:9]))
    batch = w.scheduler.schedule()
    assert batch is not None
    (news,) = w.scheduler.commit(batch, [])
    assert news.finish_reason == "error" and news.error is not None and "0 outputs for 1" in news.error
    w._collect([news])
    finish(w)


def test_what_can_never_fit_is_refused_with_numbers() -> None:
    w = world(num_blocks=10)
    with pytest.raises(RequestError, match=r"38 tokens.*max_tokens=5.*40 tokens"):
        w.add(request("r", PROMPT[:38], max_tokens=5))
    w.add(request("fits", PROMPT[:38], max_tokens=3))
    with pytest.raises(RequestError, match="in use"):
        w.add(request("fits", PROMPT[:3]))
    finish(w)


@pytest.mark.parametrize(
    ("config", "groups", "words"),
    [
        ({"max_num_seqs": 0}, [CacheGroup("full", 8, 4)], "max_num_seqs"),
        ({"max_output_rows": 0}, [CacheGroup("full", 8, 4)], "max_output_rows"),
        ({}, [], "block size"),
        ({}, [CacheGroup("full", 8, 4), CacheGroup("full", 8, 8)], "block size"),
        ({}, [CacheGroup("window", 3, 4, 8)], "window of 8"),
    ],
)
def test_configurations_that_cannot_work_are_refused(config: dict, groups: list[CacheGroup], words: str) -> None:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 32, "max_output_rows": 4} | config
    with pytest.raises(ConfigError, match=words):
        Scheduler(SchedulerConfig(**options), groups)


def test_600_requests_leave_nothing() -> None:
    rng = random.Random(3)
    w = world(num_blocks=40, context=60, seqs=6, windows=(0, 12), window_blocks=40, budget=24, ahead=1)
    for index in range(600):
        prompt = PROMPT[: rng.randint(1, 20)] + [rng.randrange(VOCAB) for _ in range(rng.randint(1, 5))]
        w.check_every = 100
        w.add(
            request(f"r{index}", prompt, max_tokens=rng.randint(1, 30), eos=frozenset({1, 2}), n=rng.choice([1, 1, 2]))
        )
        for _ in range(rng.randint(0, 6)):
            w.step()
        if rng.random() < 0.2:
            w.abort(f"r{index - 1}")
    finish(w)
    assert not w.scheduler.requests
    assert all(pool.num_free == pool.num_blocks for pool in w.scheduler.tables.pools)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth() -> tuple[int, int]:
    """The bytes and objects that eight thousand steps add to what two thousand have left."""
    scheduler = Scheduler(SchedulerConfig(8, 64, 128, 16), [CacheGroup("full", 64, 4), CacheGroup("window", 64, 4, 16)])
    rng = random.Random(1)
    sizes = []
    for step in range(10_001):
        while len(scheduler.requests) < 12:
            prompt = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 40))]
            scheduler.add(request(f"r{step}.{len(scheduler.requests)}", prompt, max_tokens=rng.randint(1, 30)))
        if step % 10 == 0:
            scheduler.abort(rng.choice(list(scheduler.requests)))
        batch = scheduler.schedule()
        if batch is not None:
            outputs = [RangeOutput([TokenOutput(rng.randrange(VOCAB)) for _ in r.sample_indices]) for r in batch.ranges]
            scheduler.commit(batch, outputs)
        if step in (2_000, 10_000):
            gc.collect()
            sizes.append((resident_bytes(), len(gc.get_objects())))
    scheduler.check()
    return sizes[1][0] - sizes[0][0], sizes[1][1] - sizes[0][1]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads resident memory from /proc")
def test_memory_is_flat_over_ten_thousand_steps() -> None:
    """In a process of its own, whose heap no test before has left full of holes."""
    with ProcessPoolExecutor(1, get_context("spawn")) as child:
        num_bytes, num_objects = child.submit(growth).result()
    assert num_bytes < 2**18 and num_objects < 2_000
