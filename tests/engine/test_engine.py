"""The step: text, stop strings, numbers, and what becomes of errors."""

import dataclasses
import logging

import pytest
from engine_world import FakeRunner, Oracle, request

from octavo.engine.engine import Engine
from octavo.engine.outputs import RequestOutput
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.sampling_params import SamplingParams

PROMPT = [5, 9, 2, 6, 5, 3, 5, 8, 9]
GROUPS = [CacheGroup("full", 64, 4)]


class Letters:
    """A detokenizer whose token i is the letter chr(65 + i); holds back text that may begin a stop string."""

    def __init__(self, asked, index: int) -> None:
        self.stops = asked.params.stop_strings
        self.include = asked.params.include_stop_str_in_output
        self.stop_reason: str | None = None
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
    assert e.snapshot().totals.request_success == {"stop": 0, "length": 1, "abort": 0, "error": 3}


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
    assert totals.request_success == {"stop": 4, "length": 6, "abort": 2, "error": 0}
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
