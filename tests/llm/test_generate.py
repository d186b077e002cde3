"""LLM.generate and LLM.chat: what goes in, in every form, and the shape of what comes out."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo import LLM, CompletionOutput, RequestOutput, SamplingParams
from octavo.engine.engine import Engine
from octavo.errors import ConfigError, EngineDeadError, GenerationError, ModelError, RequestError
from octavo.loaded_model import bad_word_ids

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
USER = {"role": "user", "content": "hi"}


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def run(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def test_all_forms_of_a_prompt_are_the_same_prompt(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("abc")
    forms: list[Any] = [
        "abc",
        ["abc"],
        ids,
        tuple(ids),
        [ids],
        np.array(ids),
        {"prompt": "abc"},
        [{"prompt_token_ids": ids}],
        {"prompt_token_ids": ids, "prompt": "abc"},
    ]
    outputs = [run(llm, form) for form in forms]
    assert all(len(one) == 1 for one in outputs)
    assert all(one[0].prompt_token_ids == ids for one in outputs)
    assert len({tuple(one[0].outputs[0].token_ids) for one in outputs}) == 1
    assert [one[0].prompt for one in outputs] == ["abc"] * 2 + [None] * 4 + ["abc", None, "abc"]


def test_a_list_keeps_its_order_and_each_gets_its_own_parameters(llm: LLM) -> None:
    prompts = ["a" * n for n in (30, 1, 12)]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in (2, 9, 4)]
    outputs = run(llm, prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(ids) for ids in ids_of(outputs)] == [2, 9, 4]
    assert ids_of(outputs) == [run(llm, p, s)[0].outputs[0].token_ids for p, s in zip(prompts, params, strict=True)]


def test_nothing_in_is_nothing_out(llm: LLM) -> None:
    assert run(llm, []) == []
    assert run(llm, [], []) == []


@pytest.mark.parametrize(
    ("prompts", "params", "says"),
    [
        (["a", "b"], [GREEDY], "2 prompts and 1 sampling_params"),
        (["a"], [GREEDY, GREEDY], "1 prompts and 2 sampling_params"),
        (["a", []], GREEDY, "no tokens"),
        (["a", [1, 400]], GREEDY, "400"),
        (["a", [1, -1]], GREEDY, "-1"),
        (["a", [1.5]], GREEDY, "1.5"),
        (["a", None], GREEDY, "None"),
        (None, GREEDY, "None"),
        ({"text": "a"}, GREEDY, "prompt_token_ids"),
        ({"prompt": None}, GREEDY, "None"),
        ("a" * 5000, GREEDY, "This model's maximum context length is 4096 tokens. However, you requested 5001 tokens"),
        ("a", SamplingParams(logprobs=20, allowed_token_ids=[5000]), "5000"),
    ],
)
def test_what_cannot_be_is_a_value_error_and_nothing_runs(llm: LLM, prompts: Any, params: Any, says: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        run(llm, prompts, params)
    assert isinstance(caught.value, RequestError) and says in str(caught.value)
    assert not llm._loaded().engine.has_work()
    assert ids_of(run(llm, "abc"))


def test_the_shape_of_an_output(llm: LLM) -> None:
    (output,) = run(llm, "abc", SamplingParams(n=2, seed=1, max_tokens=4, ignore_eos=True, logprobs=2))
    assert output.request_id and output.prompt == "abc" and output.prompt_logprobs is None
    assert output.finished and output.num_cached_tokens == 0
    assert [type(one) for one in output.outputs] == [CompletionOutput] * 2
    for index, one in enumerate(output.outputs):
        assert one.index == index and one.finished()
        assert (one.finish_reason, one.stop_reason, len(one.token_ids)) == ("length", None, 4)
        assert one.logprobs is not None and len(one.logprobs) == 4
        chosen = [entry[token] for entry, token in zip(one.logprobs, one.token_ids, strict=True)]
        assert one.cumulative_logprob == pytest.approx(sum(entry.logprob for entry in chosen))
        for entry, logprob in zip(one.logprobs, chosen, strict=True):
            assert 2 <= len(entry) <= 3 and logprob.rank is not None and logprob.rank >= 1
            assert logprob.logprob <= 0 and isinstance(logprob.decoded_token, str)
            assert sum(math.exp(other.logprob) for other in entry.values()) <= 1 + 1e-6
    without = run(llm, "abc")[0].outputs[0]
    assert without.logprobs is None and without.cumulative_logprob is None


def test_seeds_repeat_and_the_sequences_of_a_request_differ(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=7, temperature=1.5, max_tokens=12, ignore_eos=True)
    first, again = run(llm, "abc", params)[0], run(llm, ["x", "abc"], params)[1]
    assert [one.token_ids for one in first.outputs] == [one.token_ids for one in again.outputs]
    assert len({tuple(one.token_ids) for one in first.outputs}) == 3
    other = SamplingParams(n=3, seed=8, temperature=1.5, max_tokens=12, ignore_eos=True)
    assert run(llm, "abc", other)[0].outputs[0].token_ids != first.outputs[0].token_ids
    fresh = SamplingParams(temperature=1.5, max_tokens=12, ignore_eos=True)
    assert len({tuple(ids) for ids in ids_of(run(llm, ["abc"] * 3, fresh))}) == 3


def test_a_stop_string_and_a_stop_id_end_the_text(llm: LLM) -> None:
    whole = run(llm, "abc", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))[0].outputs[0]
    mark = whole.text[3:5]
    stopped = run(llm, "abc", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=mark))[0].outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", mark)
    assert stopped.text == whole.text[: whole.text.index(mark)]
    token = whole.token_ids[5]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=[token])
    by_id = run(llm, "abc", params)[0].outputs[0]
    assert (by_id.finish_reason, by_id.stop_reason) == ("stop", token)
    assert by_id.token_ids == whole.token_ids[: whole.token_ids.index(token) + 1]


def test_chat_is_the_template_and_then_generate(llm: LLM) -> None:
    conversations = [[USER], [{"role": "system", "content": "be kind"}, USER]]
    ids = [llm.get_tokenizer().apply_chat_template(messages) for messages in conversations]
    expected = ids_of(run(llm, ids))
    assert ids_of(llm.chat(conversations, GREEDY, use_tqdm=False)) == expected
    (one,) = llm.chat(conversations[1], GREEDY, use_tqdm=False)
    assert one.outputs[0].token_ids == expected[1] and one.prompt_token_ids == ids[1]
    begun = [USER, {"role": "assistant", "content": "Hel"}]
    (going_on,) = llm.chat(begun, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert llm.get_tokenizer().decode(going_on.prompt_token_ids, False).endswith("Hel")
    for wrong in ([], [[]], [{"role": "user"}], [{"role": "nobody", "content": "x"}]):
        with pytest.raises(RequestError):
            llm.chat(wrong, GREEDY, use_tqdm=False)


def test_a_chat_template_of_ones_own(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for message in messages %}[{{ message['content'] }}]{% endfor %}")
    llm = make(chat_template=path)
    (output,) = llm.chat([USER], GREEDY, use_tqdm=False)
    assert llm.get_tokenizer().decode(output.prompt_token_ids) == "[hi]"
    path.write_text("{% for message in messages %}")
    with pytest.raises(ConfigError, match="chat_template"):
        make(chat_template=path)
    with pytest.raises(ConfigError, match="no-such-file"):
        make(chat_template=tmp_path / "no-such-file")


def test_defaults_come_from_the_models_generation_config(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in folder.iterdir():
        os.link(file, copy / file.name)
    (copy / "generation_config.json").unlink()
    (copy / "generation_config.json").write_text('{"eos_token_id": 257, "top_k": 1, "max_new_tokens": 5}')
    with LLM(copy, threads=1, kv_cache_memory="4MiB") as llm:
        params = llm.get_default_sampling_params()
        assert (params.top_k, params.max_tokens) == (1, 5)
        (output,) = llm.generate("abc", use_tqdm=False)
        assert len(output.outputs[0].token_ids) == 5
    with LLM(copy, threads=1, kv_cache_memory="4MiB", generation_config="vllm") as llm:
        assert llm.get_default_sampling_params() == SamplingParams()


def test_priorities_need_their_policy(llm: LLM, make: Any) -> None:
    with pytest.raises(RequestError, match="scheduling_policy"):
        llm.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[1, 0])
    by_priority = make(scheduling_policy="priority", max_num_seqs=1)
    with pytest.raises(RequestError, match="2 prompts and 1 priorities"):
        by_priority.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[1])
    outputs = by_priority.generate(["a", "b"], GREEDY, use_tqdm=False, priority=[5, -5])
    assert ids_of(outputs) == ids_of(run(llm, ["a", "b"]))


# A ban of every token passes the gate: what min_tokens bans beside it is known in the step only.
BANNED = SamplingParams(n=2, allowed_token_ids=[65], stop_token_ids=[65], min_tokens=2, max_tokens=6)


def test_a_request_that_fails_is_named_and_the_others_are_whole(llm: LLM) -> None:
    prompts = ["abc", "bad", "x", "worse"]
    with pytest.raises(GenerationError, match=r"prompt 2 of 4.*ban all of them.*1 more") as caught:
        run(llm, prompts, [GREEDY, BANNED, GREEDY, BANNED])
    error = caught.value
    assert error.failed == [1, 3] and [output.prompt for output in error.outputs] == prompts
    assert error.outputs[1].request_id in str(error)
    assert [one.finish_reason for one in error.outputs[1].outputs] == ["error"] * 2
    whole = [error.outputs[0], error.outputs[2]]
    assert all(output.finished for output in error.outputs) and all(output.error is None for output in whole)
    assert ids_of(whole) == ids_of(run(llm, ["abc", "x"]))
    assert not llm._loaded().engine.has_work()


def test_past_its_timeout_a_request_is_cut_short_and_says_so(llm: LLM, slow_down: Callable[[Engine], None]) -> None:
    slow_down(llm._loaded().engine)
    long = SamplingParams(temperature=0, max_tokens=3000, ignore_eos=True)
    with pytest.raises(GenerationError, match=r"prompt 1 of 2.*timeout of 0\.3 seconds while it ran\.$") as caught:
        llm.generate(["abc", "x"], [long, GREEDY], use_tqdm=False, timeout=0.3)
    cut, whole = caught.value.outputs
    assert caught.value.failed == [0] and cut.finished and cut.outputs[0].finish_reason == "timeout"
    assert ids_of([whole]) == ids_of(run(llm, "x"))
    got = cut.outputs[0].token_ids
    assert 0 < len(got) < 3000 and got[:6] == ids_of(run(llm, "abc"))[0]
    assert not llm._loaded().engine.has_work()
    with pytest.raises(GenerationError):
        llm.chat([USER], long, use_tqdm=False, timeout=0.1)
    assert len(run(llm, "abc", GREEDY)) == len(llm.generate("abc", GREEDY, use_tqdm=False, timeout=60.0))
    with pytest.raises(RequestError, match="timeout"):
        llm.generate("abc", GREEDY, use_tqdm=False, timeout=-1.0)


def test_progress_goes_to_stderr_and_only_where_asked(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate(["a", "b"], GREEDY)
    shown = capsys.readouterr()
    assert shown.out == "" and "2/2" in shown.err
    llm.generate(["a", "b"], GREEDY, use_tqdm=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("where", ["before", "launch", "outputs"])
def test_an_interrupt_leaves_nothing_behind(
    make: Any, monkeypatch: pytest.MonkeyPatch, where: str, ahead: bool
) -> None:
    llm = make(async_scheduling=ahead)
    engine = llm._loaded().engine
    calls = 0

    def interrupting(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    def launch(batch: Any) -> Any:
        pending = engine.runner.__class__.launch(engine.runner, batch)
        return SimpleNamespace(outputs=interrupting(pending.outputs))

    if where == "before":
        monkeypatch.setattr(engine, "step", interrupting(engine.step))
    else:
        monkeypatch.setattr(
            engine.runner, "launch", launch if where == "outputs" else interrupting(engine.runner.launch)
        )
    with pytest.raises(KeyboardInterrupt):
        run(llm, ["a", "b"], SamplingParams(max_tokens=500, ignore_eos=True))
    assert calls >= 3 and not engine.has_work()
    engine.scheduler.check()
    monkeypatch.undo()
    assert len(ids_of(run(llm, "abc"))[0]) == 6


@pytest.mark.parametrize("how", ["close", "del"])
def test_made_anew_five_times_nothing_is_kept(folder: Path, how: str) -> None:
    """Each pool is large enough to be seen if it stayed."""
    resident: list[int] = []
    threads: list[int] = []
    answers = set()
    for _ in range(5):
        llm = LLM(folder, threads=2, kv_cache_memory="64MiB", max_model_len=2048)
        prompts = [[i] * 2000 for i in range(12)]  # touches most of the pool
        answers.add(str(ids_of(run(llm, prompts, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)))))
        if how == "close":
            llm.close()
            with pytest.raises(EngineDeadError, match="closed"):
                run(llm, "a")
            llm.close()  # twice is no error
        del llm
        gc.collect()
        resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
        threads.append(len(os.listdir("/proc/self/task")))
    assert len(answers) == 1
    assert resident[4] <= resident[1] * 1.1
    assert threads[4] <= threads[1]


def test_closing_frees_at_once(folder: Path) -> None:
    """Without waiting for the collector of cycles."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    gc.collect()
    gc.disable()
    try:
        llm = LLM(folder, threads=1, kv_cache_memory="64MiB", max_model_len=2048)
        run(llm, [[i] * 2000 for i in range(24)], SamplingParams(temperature=0, max_tokens=1))
        before = resident()
        llm.close()
        assert resident() < before - (32 << 20)
    finally:
        gc.enable()


def test_closing_frees_the_arrays_of_a_step_too(folder: Path) -> None:
    """The block table alone is 32 MiB here; of smaller arrays the C library may keep the pages. The engine lives on."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    llm = LLM(folder, threads=1, kv_cache_memory="8MiB", max_model_len=2048, max_num_seqs=65536)
    engine = llm._loaded().engine
    before = resident()
    llm.close()
    assert resident() < before - (30 << 20)
    engine.close()  # twice is no error


def test_bad_words_of_white_space_ban_it(llm: LLM) -> None:
    newline, space = (llm.get_tokenizer().encode(text, add_special_tokens=False) for text in ("\n", " "))
    assert newline != space
    found = bad_word_ids(llm.get_tokenizer(), ["\n"])
    assert found == (tuple(newline),)


def test_a_format_that_the_model_is_not_in_is_refused(folder: Path) -> None:
    for option in ({"load_format": "gguf"}, {"quantization": "gguf"}):
        with pytest.raises(ConfigError, match=f"{next(iter(option))} = gguf, but .* holds safetensors"):
            LLM(folder, **option)


def test_what_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    for model in ("./no/such/folder", tmp_path):
        with pytest.raises(ModelError):
            LLM(model)
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        LLM("x", max_modellen=5)
