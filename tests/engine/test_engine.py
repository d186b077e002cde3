"""The step: text, stop strings, numbers, and what becomes of errors."""

import dataclasses
import logging
import random
import time

import pytest
from engine_world import VOCAB, FakeRunner, Oracle, request
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine import engine as engine_module
from octavo.engine.drafter import NgramDrafter
from octavo.engine.engine import Engine
from octavo.engine.outputs import RequestOutput
from octavo.engine.request import EVERYONE, Tenant
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.engine.speculation import Speculation
from octavo.sampling_params import SamplingParams

PROMPT = [5, 9, 2, 6, 5, 3, 5, 8, 9]
GROUPS = [CacheGroup("full", 64, 4)]


class Unknown(dict[int, str | None]):
    def __missing__(self, token_id: int) -> str | None:
        return None


class Letters:
    """A detokenizer whose token i is the letter chr(65 + i); holds back text that may begin a stop string."""

    def __init__(self, asked, index: int) -> None:
        self.stops = asked.params.stop_strings
        self.include = asked.params.include_stop_str_in_output
        self.stop_reason: str | None = None
        self.texts = Unknown()
        self.held = ""

    def append(self, token_ids: list[int]) -> str:
        self.held += "".join(self.decode_token(token_id) for token_id in token_ids)
        for stop in self.stops:
            if (at := self.held.find(stop)) >= 0:
                self.stop_reason = stop
                text, self.held = self.held[: at + len(stop) * self.include], ""
                return text
        keep = max((n for s in self.stops for n in range(1, len(s)) if self.held.endswith(s[:n])), default=0)
        text, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return text

    def finish(self) -> str:
        text, self.held = self.held, ""
        return text

    def decode_token(self, token_id: int) -> str:
        return chr(65 + token_id)


class Broken:
    """A runner that fails in the steps whose numbers are given, in launch or in outputs."""

    def __init__(self, *, launch: tuple[int, ...] = (), outputs: tuple[int, ...] = ()) -> None:
        self.inner = FakeRunner(GROUPS)
        self.fails = {"launch": launch, "outputs": outputs}

    def launch(self, batch):
        if batch.step in self.fails["launch"]:
            raise RuntimeError("broken launch")
        pending = self.inner.launch(batch)
        if batch.step in self.fails["outputs"]:
            pending.outputs = self._raise
        return pending

    def _raise(self):
        raise RuntimeError("broken outputs")

    def close(self) -> None:
        self.inner.close()


def engine(runner=None, *, lookahead: int = 0, detokenizer=Letters, **config) -> Engine:
    options = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 128, "max_output_rows": 32} | config
    return Engine(
        Scheduler(SchedulerConfig(**options), GROUPS), runner or FakeRunner(GROUPS), detokenizer, lookahead=lookahead
    )


def run(e: Engine, *requests) -> dict[str, RequestOutput]:
    results = {asked.request_id: RequestOutput.empty(asked) for asked in requests}
    for asked in requests:
        e.add(asked)
    while e.has_work():
        for news in e.step():
            results[news.request_id].apply(news)
        e.scheduler.check()
    return results


def text_of(tokens: list[int]) -> str:
    return "".join(chr(65 + token) for token in tokens)


@pytest.mark.parametrize("lookahead", [0, 1, 2])
def test_text_tokens_and_logprobs_add_up(lookahead: int) -> None:
    asked = request("r", PROMPT, max_tokens=20, n=3, logprobs=0, prompt_logprobs=0)
    output = run(engine(lookahead=lookahead), asked)["r"]
    assert output.finished
    for index, completion in enumerate(output.outputs):
        tokens, reason = Oracle([0]).run(asked, index)
        assert (completion.token_ids, completion.finish_reason) == (tokens, reason)
        assert completion.text == text_of(tokens)
        assert [entry[token].decoded_token for token, entry in zip(tokens, completion.logprobs, strict=True)] == list(
            completion.text
        )
        assert completion.cumulative_logprob == pytest.approx(
            sum(entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True))
        )
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(PROMPT)


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_stop_string_cuts_the_text_and_ends_the_sequence(include: bool, lookahead: int) -> None:
    tokens, _ = Oracle([0]).run(request("r", PROMPT, max_tokens=20), 0)
    stop = text_of(tokens[5:8])
    at = text_of(tokens).index(stop)
    asked = request("r", PROMPT, max_tokens=20)
    asked = request_with_stop(asked, stop, include)
    e = engine(lookahead=lookahead)
    completion = run(e, asked)["r"].outputs[0]
    assert completion.text == text_of(tokens)[: at + 3 * include]
    assert completion.token_ids == tokens[: at + 3]
    assert (completion.finish_reason, completion.stop_reason) == ("stop", stop)
    assert e.snapshot().kv_cache_usage == 0.0


def request_with_stop(asked, stop: str, include: bool):
    params = SamplingParams(max_tokens=asked.max_tokens, stop=stop, include_stop_str_in_output=include)
    return dataclasses.replace(asked, params=params)


def test_the_token_of_a_stop_id_is_no_text() -> None:
    tokens, _ = Oracle([0]).run(request("r", PROMPT, max_tokens=20), 0)
    asked = request("r", PROMPT, max_tokens=20, stop=frozenset({tokens[6]}))
    completion = run(engine(), asked)["r"].outputs[0]
    end = tokens.index(tokens[6])
    assert completion.text == text_of(tokens[:end]) and completion.token_ids == tokens[: end + 1]
    assert completion.stop_reason == tokens[6]


def test_held_text_comes_out_at_the_end() -> None:
    tokens, _ = Oracle([0]).run(request("r", PROMPT, max_tokens=6), 0)
    asked = request_with_stop(request("r", PROMPT, max_tokens=6), text_of(tokens[-2:]) + "~~", False)
    assert run(engine(), asked)["r"].outputs[0].text == text_of(tokens)


@pytest.mark.parametrize("where", ["launch", "outputs"])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_a_failing_step_ends_its_requests_with_an_error(where: str, lookahead: int, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    e = engine(Broken(**{where: (3,)}), lookahead=lookahead)
    first = run(e, request("a", PROMPT, max_tokens=20, n=2), request("b", PROMPT[::-1], max_tokens=20))
    assert {c.finish_reason for output in first.values() for c in output.outputs} == {"error"}
    asked = request("c", PROMPT, max_tokens=20)
    tokens, _ = Oracle([0]).run(asked, 0)
    assert run(e, asked)["c"].outputs[0].token_ids == tokens
    assert e.snapshot().totals.request_success == {"stop": 0, "length": 1, "abort": 0, "error": 3, "timeout": 0}


class Spoiling(FakeRunner):
    """A runner whose outputs for the request "bad" are spoilt from the one on for which `after` tokens stand."""

    def __init__(self, spoil, after: int) -> None:
        super().__init__(GROUPS)
        self.spoil, self.after = spoil, after

    def launch(self, batch):
        pending = super().launch(batch)
        for scheduled, output in zip(batch.ranges, pending.results, strict=True):
            known = scheduled.start + scheduled.num_tokens - len(PROMPT)
            if scheduled.sequence.request.request_id == "bad" and known >= self.after:
                self.spoil(output)
        return pending


def spoil_logprob(output) -> None:
    output.samples[-1].logprob = None  # found out when the token stands, the sequence is finished and n - 1 have forked


def spoil_count(output) -> None:
    del output.samples[-1]


def spoil_error(output) -> None:
    output.error = "no token"


@pytest.mark.parametrize("spoil", [spoil_logprob, spoil_count, spoil_error])
@pytest.mark.parametrize(("n", "max_tokens", "after"), [(1, 1, 0), (1, 9, 8), (3, 1, 0), (3, 9, 0), (3, 9, 8)])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_outputs_that_cannot_be_committed_end_their_request_only(
    spoil, n: int, max_tokens: int, after: int, lookahead: int, caplog
) -> None:
    caplog.set_level(logging.CRITICAL)
    e = engine(Spoiling(spoil, after), lookahead=lookahead)
    good = request("good", PROMPT[::-1], max_tokens=20)
    outputs = run(e, request("bad", PROMPT, max_tokens=max_tokens, n=n, logprobs=0), good)
    assert [c.finish_reason for c in outputs["bad"].outputs] == ["error"] * n
    assert outputs["good"].outputs[0].token_ids == Oracle([0]).run(good, 0)[0]
    assert (e.snapshot().kv_cache_usage, e._live) == (0.0, {})
    again = request("bad", PROMPT[:-1], max_tokens=1)  # its id is free; with a shorter prompt it is not spoilt
    assert run(e, again)["bad"].outputs[0].token_ids == Oracle([0]).run(again, 0)[0]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_sequence_ends_once_where_its_text_and_a_fault_end_it_in_one_step(n: int, monkeypatch, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    failed = False

    class Stops(Letters):
        def __init__(self, asked, index: int) -> None:
            super().__init__(asked, index)
            self.stops_now = (asked.request_id, index) == ("bad", 0)

        def append(self, token_ids: list[int]) -> str:
            text = super().append(token_ids)
            if failed and self.stops_now:
                self.stop_reason = "now"
            return text

    e = engine(detokenizer=Stops)
    publish = e.scheduler.queues.publish

    def fail(sequence, end: int) -> None:
        nonlocal failed
        plain = sequence.decode is not None
        if plain and sequence.request.request_id == "bad" and sequence.index == n - 1:
            failed = True
            raise RuntimeError("broken block")
        publish(sequence, end)

    monkeypatch.setattr(e.scheduler.queues, "publish", fail)
    good = request("good", PROMPT[::-1], max_tokens=20)
    outputs = run(e, request("bad", PROMPT, max_tokens=20, n=n), good)
    assert failed and outputs["bad"].outputs[0].finish_reason == "stop"
    assert [one.finish_reason for one in outputs["bad"].outputs[1:]] == ["error"] * (n - 1)
    assert outputs["good"].outputs[0].token_ids == Oracle([0]).run(good, 0)[0]
    assert (e.snapshot().kv_cache_usage, e._live) == (0.0, {})


def test_a_failing_detokenizer_ends_its_sequence_only(caplog) -> None:
    class Fails(Letters):
        def __init__(self, asked, index: int) -> None:
            super().__init__(asked, index)
            self.fails = asked.request_id == "bad"

        def append(self, token_ids: list[int]) -> str:
            if self.fails:
                raise RuntimeError("broken text")
            return super().append(token_ids)

    caplog.set_level(logging.CRITICAL)
    outputs = run(engine(detokenizer=Fails), request("bad", PROMPT), request("good", PROMPT))
    assert outputs["bad"].outputs[0].finish_reason == "error"
    assert outputs["good"].outputs[0].finish_reason == "length"


class Known(Letters):
    """Has a table of texts, which holds until something has been held back."""

    def __init__(self, asked, index: int) -> None:
        super().__init__(asked, index)
        self.look_ahead()

    def append(self, token_ids: list[int]) -> str:
        text = super().append(token_ids)
        self.look_ahead()
        return text

    def look_ahead(self) -> None:
        begins = {stop[0] for stop in self.stops}
        table = Unknown({i: letter for i in range(200) if (letter := self.decode_token(i)) not in begins})
        self.texts = Unknown() if self.held else table


@given(st.lists(st.text("ABCD", min_size=1, max_size=2), max_size=3), st.booleans(), st.integers(0, 99))
def test_known_texts_are_what_the_detokenizers_would_have_said(stop: list[str], detokenize: bool, seed: int) -> None:
    def outputs(detokenizer: type[Letters]) -> list[tuple]:
        asked = []
        for number in range(4):
            stops = stop if number != 1 else []
            params = SamplingParams(max_tokens=20, n=1 + number % 2, stop=stops, detokenize=detokenize or bool(stops))
            plain = request(f"r{number}", [number, *PROMPT], max_tokens=20, seed=seed)
            asked.append(dataclasses.replace(plain, params=params))
        found = run(engine(detokenizer=detokenizer), *asked)
        return [(one.text, one.token_ids, one.finish_reason, one.stop_reason)
                for name in sorted(found) for one in found[name].outputs]  # fmt: skip

    assert outputs(Known) == outputs(Letters)


def test_a_table_of_texts_that_fails_ends_its_sequence_only(caplog) -> None:
    class NoTable(dict[int, str | None]):
        def __missing__(self, token_id: int) -> str | None:
            raise RuntimeError("broken table")

    class Fails(Known):
        def __init__(self, asked, index: int) -> None:
            super().__init__(asked, index)
            if asked.request_id == "bad":
                self.texts = NoTable()

        def append(self, token_ids: list[int]) -> str:
            if isinstance(self.texts, NoTable):
                return self.texts[token_ids[0]] or ""
            return super().append(token_ids)

    caplog.set_level(logging.CRITICAL)
    good = request("good", PROMPT)
    outputs = run(engine(detokenizer=Fails), request("bad", PROMPT), good)
    assert outputs["bad"].outputs[0].finish_reason == "error" and "broken table" in (outputs["bad"].error or "")
    alone = run(engine(detokenizer=Letters), good)["good"].outputs[0]
    assert (outputs["good"].outputs[0].finish_reason, outputs["good"].outputs[0].text) == ("length", alone.text)


@pytest.mark.parametrize("num_steps", [0, 1, 3])
@pytest.mark.parametrize("lookahead", [0, 1])
def test_abort_at_any_time(num_steps: int, lookahead: int) -> None:
    e = engine(lookahead=lookahead)
    e.add(request("gone", PROMPT, max_tokens=50, n=2))
    for _ in range(num_steps):
        e.step()
    news = e.abort("gone") + e.abort("gone") + e.abort("never was")
    assert [(n.index, n.finish_reason) for n in news] == [(0, "abort"), (1, "abort")]
    while e.has_work():
        assert e.step() == []
    e.scheduler.check()


@pytest.mark.parametrize("lookahead", [0, 1])
def test_nothing_computed_before_a_reset_is_found_after_it(lookahead: int) -> None:
    """Also not what a step in flight has computed, and is committed later."""
    e = engine(lookahead=lookahead)
    e.add(request("before", PROMPT, max_tokens=9))
    e.step()
    assert len(e._in_flight) == lookahead
    e.reset_prefix_cache()
    while e.has_work():
        e.step()
    assert run(e, request("after", PROMPT, max_tokens=2))["after"].num_cached_tokens == 0
    assert run(e, request("again", PROMPT, max_tokens=2))["again"].num_cached_tokens == 8


def test_whoever_waits_for_its_tokens_is_in_every_step() -> None:
    """Beside others that do not need theirs, it is not at half their pace."""
    e = engine(lookahead=1)
    e.add(request("free", PROMPT, max_tokens=20))
    e.add(request("bound", PROMPT[::-1], max_tokens=20, presence_penalty=1.0))
    seen: dict[str, list[int]] = {"free": [], "bound": []}
    steps = 0
    while e.has_work():
        for news in e.step():
            seen[news.request_id].append(steps)
        steps += 1
    assert steps <= 23 and max(seen["bound"]) <= 22


def test_counts_are_exact() -> None:
    e = engine()
    tokens, _ = Oracle([0]).run(request("r", PROMPT, max_tokens=20), 0)
    stop = frozenset({tokens[3]})
    outputs = run(
        e,
        *(request(f"stop{i}", PROMPT, max_tokens=20, stop=stop) for i in range(4)),
        *(request(f"length{i}", PROMPT, max_tokens=3) for i in range(3)),
        request("three", PROMPT, max_tokens=5, n=3),
    )
    for name in ("gone", "gone too"):
        e.add(request(name, PROMPT))
        e.step()
        e.abort(name)
    snapshot = e.snapshot()
    totals = snapshot.totals
    generated = sum(len(c.token_ids) for output in outputs.values() for c in output.outputs) + 2
    assert totals.request_success == {"stop": 4, "length": 6, "abort": 2, "error": 0, "timeout": 0}
    assert totals.generation_tokens == generated
    assert totals.prompt_tokens == 10 * len(PROMPT)
    assert totals.prompt_tokens_cached == snapshot.prefix_hits
    assert snapshot.prefix_queries == 10 * len(PROMPT)
    assert sum(totals.time_to_first_token.counts) == 10
    assert sum(totals.inter_token_latency.counts) == generated - 12
    for histogram in (
        totals.e2e_latency,
        totals.queue_time,
        totals.prefill_time,
        totals.decode_time,
        totals.inference_time,
    ):
        assert sum(histogram.counts) == 10
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.kv_cache_usage) == (0, 0, 0.0)


class Clock:
    """Time that goes on by itself only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("waits", [True, False])
def test_a_request_whose_time_is_over_ends_whatever_it_is_doing(
    waits: bool, lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(engine_module, "time", clock)
    e = engine(lookahead=lookahead, max_num_seqs=1)
    other, late = request("other", PROMPT, max_tokens=60), request("late", PROMPT[::-1], max_tokens=60, n=2)
    late = dataclasses.replace(late, arrival_time=clock.now, timeout=0.5)
    results = {asked.request_id: RequestOutput.empty(asked) for asked in (other, late)}

    def step() -> list:
        news = e.step()
        for output in news:
            results[output.request_id].apply(output)
        e.scheduler.check()
        return news

    for asked in (other, late) if waits else (late, other):
        e.add(asked)
    for _ in range(4):
        step()
    clock.now += 0.5
    ended = [output for output in step() if output.request_id == "late" and output.finish_reason is not None]
    assert [(output.index, output.finish_reason) for output in ended] == [(0, "timeout"), (1, "timeout")]
    assert "timeout of 0.5 seconds" in results["late"].error
    assert ("waited" in results["late"].error) == waits
    while e.has_work():
        step()
    got = results["late"].outputs[0].token_ids
    assert bool(got) != waits and got == Oracle([0]).run(late, 0)[0][: len(got)]
    assert results["other"].outputs[0].token_ids == Oracle([0]).run(other, 0)[0]
    assert {reason: n for reason, n in e.snapshot().totals.request_success.items() if n} == {"timeout": 2, "length": 1}
    assert (e._live, e._deadlines, e.snapshot().kv_cache_usage) == ({}, [], 0.0)


def test_one_that_is_in_time_leaves_no_deadline() -> None:
    e = engine()
    asked = [
        dataclasses.replace(request(f"r{i}", PROMPT, max_tokens=5), arrival_time=time.monotonic(), timeout=1000.0 + i)
        for i in range(20)
    ]
    results = run(e, *asked)
    assert all(result.outputs[0].finish_reason == "length" for result in results.values())
    assert e._deadlines == []


@pytest.mark.parametrize("seed", range(4))
def test_walk(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenants, users, priorities, timeouts, aborts, forks, drafts, salts and preemptions at once: laws L1 and L2."""
    rng, clock = random.Random(seed), Clock()
    monkeypatch.setattr(engine_module, "time", clock)
    tenants = [EVERYONE, Tenant("light", 0.5), Tenant("heavy", 4.0)]
    config = SchedulerConfig(rng.choice([4, 6]), rng.choice([8, 32]), 48, 32)
    groups = [CacheGroup("full", rng.choice([12, 16]), 4)]
    scheduler = Scheduler(config, groups, Speculation(NgramDrafter(3, 1), 3))
    e = Engine(scheduler, FakeRunner(groups), Letters, lookahead=rng.choice([0, 1]))
    asked, results, late = {}, {}, set()

    def take(news: list) -> None:
        for output in news:
            results[output.request_id].apply(output)
            if output.finish_reason == "timeout":
                late.add(output.request_id)
                assert asked[output.request_id].arrival_time + asked[output.request_id].timeout <= clock.now
        e.scheduler.check()

    def step() -> None:
        take(e.step())
        live = [asked[request_id] for request_id, whole in results.items() if not whole.finished]
        assert all(one.timeout is None or one.arrival_time + one.timeout > clock.now for one in live)

    for number in range(400):
        clock.now += 0.5
        chance = rng.random()
        live = [request_id for request_id, whole in results.items() if not whole.finished]
        if chance < 0.35 and len(live) < 20:
            prompt = [rng.randrange(3)] * rng.randint(1, 20) + [rng.randrange(VOCAB)]  # drafts have something to find
            one = request(
                f"r{number}",
                prompt,
                max_tokens=rng.randint(1, 48 - len(prompt)),
                seed=rng.randrange(3),
                priority=rng.choice([0, 0, 1, -1]),
                n=rng.choice([1, 1, 1, 3]),
                salt=rng.choice([None, None, "salt"]),
                tenant=rng.choice(tenants),
                user=rng.choice([b"", b"one", b"two"]),
                arrival_time=clock.now,
                timeout=rng.choice([None, None, 0.2, 3.0, 20.0, 80.0]),
                presence_penalty=rng.choice([0.0, 0.0, 1.0]),
            )
            asked[one.request_id], results[one.request_id] = one, RequestOutput.empty(one)
            e.add(one)
        elif chance < 0.4 and live:
            take(e.abort(rng.choice(live)))
        else:
            step()
    while e.has_work():
        step()
    for request_id, whole in results.items():
        for output in whole.outputs:
            tokens, reason = Oracle([0]).run(asked[request_id], output.index)
            cut = output.finish_reason in ("abort", "timeout")
            assert output.token_ids == (tokens[: len(output.token_ids)] if cut else tokens)
            assert cut or output.finish_reason == reason
    assert late and e.scheduler.num_preemptions and e.scheduler.speculation.num_drafts, (
        "or this test would prove nothing"
    )
    assert (e._live, e._deadlines, e.snapshot().kv_cache_usage, len(e.scheduler.waiting)) == ({}, [], 0.0, 0)
