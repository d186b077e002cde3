"""From a wire form to admitted requests: render, tokenise, check. Runs off the event loop, for every route."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from octavo.engine.request import Request
from octavo.errors import RequestError
from octavo.sampling_params import BeamSearchParams, OutputKind, SamplingParams
from octavo.server.context import Call
from octavo.server.errors import bad_request
from octavo.server.service import Service
from octavo.server.structured import asked_by, constraint, named_after
from octavo.server.tools import (
    PROMPT_END_TOKENS,
    Dialect,
    check_tools,
    chosen_tools,
    constraint_of_calls,
    held_format,
    is_forced,
    kept_tokens,
    may_call_instead,
    preamble,
    reply_format,
)
from octavo.server.wire import CallerFields, ChatFields, ChatRequest, CompletionRequest, SamplingFields
from octavo.structured_outputs import CallGrammar
from octavo.text.reasoning import Preamble
from octavo.text.splitter import ReplyFormat

SAMPLING_FIELDS = tuple(
    {entry.name for entry in fields(SamplingParams)} & SamplingFields.model_fields.keys() - {"structured_outputs"}
)
BEAM_FIELDS = tuple({entry.name for entry in fields(BeamSearchParams)} & SamplingFields.model_fields.keys())


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt; text is None where the client sent token ids."""

    text: str | None
    token_ids: list[int]


def completion_requests(service: Service, body: CompletionRequest, call: Call, max_n: int) -> list[Request]:
    """One request for each prompt, all admitted or none: nothing reaches the engine before the last is checked."""
    entries = split_prompts(body.prompt)
    params = sampling_params(service, body, logprobs=body.logprobs)
    if body.echo and body.logprobs is not None:
        wanted = max(body.logprobs, body.prompt_logprobs or 0)
        params = sampling_params(service, body, logprobs=body.logprobs, prompt_logprobs=wanted)
    name, count = num_sequences(body, params)
    if len(entries) * count > max_n:
        raise bad_request(
            f"{len(entries)} prompts times {name}={count} exceed the limit of {max_n} sequences a request (--max-n).",
            name if count > 1 else "prompt",
        )
    add_special = body.add_special_tokens is not False
    truncated = params.truncate_prompt_tokens is not None
    prompts = [encode_prompt(service, entry, add_special, truncated) for entry in entries]
    return [_admit(service, call, i, prompt, params, body) for i, prompt in enumerate(prompts)]


def chat_request(
    service: Service, dialect: Dialect, body: ChatRequest, call: Call, max_n: int
) -> tuple[Request, ReplyFormat]:
    """The request, and what its replies are made of."""
    max_tokens = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if max_tokens is None:
        # Chat runs to the end of the context unless told otherwise, by the model's generation config too.
        max_tokens = service.sampling_defaults.get("max_tokens")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = sampling_params(service, body, logprobs=logprobs, max_tokens=max_tokens)
    name, count = num_sequences(body, params)
    if count > max_n:
        raise bad_request(f"{name}={count} exceeds the limit of {max_n} sequences for one request (--max-n).", name)
    tools = chosen_tools(body.tool_choice, check_tools(wire_tools(body) or []), dialect)
    forced = is_forced(body.tool_choice)
    if forced and params.structured_outputs is not None:
        raise bad_request(
            "tool_choice asks for a call, so that the reply cannot be what response_format or structured_outputs asks "
            'for. Leave one of them out, or use tool_choice "auto".',
            "tool_choice",
        )
    asked = params.structured_outputs
    or_answer = asked is not None and may_call_instead(asked, dialect.calls)
    if asked is not None and asked.kind != "structural_tag" and not or_answer:
        tools = {}  # all of the content is what is asked for, also where it looks like a call
    prompt = Prompt(None, render_chat(service, body, bool(body.add_special_tokens)))
    prompt_end = service.tokenizer.decode(prompt.token_ids[-PROMPT_END_TOKENS:], skip_special_tokens=False)
    continued = last_text(body.messages) if body.continue_final_message else ""
    format = reply_format(
        dialect,
        tools,
        forced=forced,
        # A reply that has to be something else makes no calls.
        strict=strict_tools(body) if asked is None or or_answer else (),
        or_answer=or_answer,
        # A named function is called once, as OpenAI has it: clients that name one read one call.
        parallel=body.parallel_tool_calls is not False and not isinstance(body.tool_choice, dict),
        include_reasoning=body.include_reasoning is not False,
        prompt_end=prompt_end,
        continued=continued,
    )
    if kept := kept_tokens(service.tokenizer, format):
        params = replace(params, kept_special_token_ids=kept)
    calls = constraint_of_calls(format, service.tokenizer.control_texts)
    if calls is not None and asked is None:
        return _admit(service, call, 0, prompt, replace(params, structured_outputs=calls), body), format
    before = preamble(format, prompt_end, continued)
    request = _admit(service, call, 0, prompt, params, body, before, calls)
    return request, held_format(format, asked, request.grammar, before)


def sampling_params(service: Service, body: SamplingFields, **overrides: Any) -> SamplingParams:
    """What the client sent, over the model's defaults, over those of SamplingParams.

    For a beam search only what it has in common with sampling: its width and temperature are in `beam_params`, and how
    the model's publisher would sample does not concern it.
    """
    values = {name: value for name in SAMPLING_FIELDS if (value := getattr(body, name)) is not None}
    defaults = dict(service.sampling_defaults)
    if body.use_beam_search:
        defaults = {name: value for name, value in defaults.items() if name == "max_tokens"}
        values |= {"best_of": None, "temperature": 0}
    if (found := constraint(body)) is not None:
        values["structured_outputs"] = found[1]
    kind = OutputKind.DELTA if body.stream else OutputKind.FINAL_ONLY
    return SamplingParams(**{**defaults, **values, **overrides}, output_kind=kind)


def beam_params(service: Service, body: SamplingFields, params: SamplingParams) -> BeamSearchParams | None:
    """The beam search that is asked for, if one is; best_of, or else n, is its width, as in vLLM."""
    if not body.use_beam_search:
        return None
    asked = {name: value for name in BEAM_FIELDS if (value := getattr(body, name)) is not None}
    width = params.n if body.best_of is None else body.best_of
    most = service.max_model_len if params.max_tokens is None else params.max_tokens
    return BeamSearchParams(**{**asked, "beam_width": width, "max_tokens": most})


def num_sequences(body: SamplingFields, params: SamplingParams) -> tuple[str, int]:
    """How many sequences are generated, and the field that says so."""
    return ("n", params.n) if body.best_of is None else ("best_of", body.best_of)


def split_prompts(value: Any) -> list[str | list[int]]:
    """A text, a list of texts, a list of ids, or a list of lists of ids, as prompts. Stops at the first fault."""
    if value is None:
        raise bad_request("prompt is missing: send a text, a list of texts, or token ids.", "prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise bad_request("prompt must be a text, a list of texts, or token ids.", "prompt")
    if not value:
        raise bad_request("prompt is an empty list.", "prompt")
    if isinstance(value[0], str):
        for position, entry in enumerate(value):
            if not isinstance(entry, str):
                raise bad_request(f"prompt[{position}] must be a text like prompt[0].", "prompt")
        return list(value)
    if isinstance(value[0], list):
        for position, entry in enumerate(value):
            if not isinstance(entry, list):
                raise bad_request(f"prompt[{position}] must be a list of token ids like prompt[0].", "prompt")
            check_ids(entry, f"prompt[{position}]")
        return list(value)
    check_ids(value, "prompt")
    return [value]


def check_ids(ids: list[Any], where: str) -> None:
    """Raises a 400 at the first entry that is no whole number; whether the model has such a token, the gate knows."""
    for position, token_id in enumerate(ids):
        if type(token_id) is not int:  # not bool
            raise bad_request(f"{where}[{position}] must be a token id, a whole number.", where.partition("[")[0])


def encode_prompt(service: Service, entry: str | list[int], add_special: bool, truncated: bool = False) -> Prompt:
    if isinstance(entry, list):
        return Prompt(None, entry)
    if not truncated:
        check_length(service, entry, "prompt")
    return Prompt(entry, service.tokenizer.encode(entry, add_special_tokens=add_special))


def check_length(service: Service, text: str, param: str) -> None:
    """Refuses text that cannot fit however it is cut into tokens, without tokenising it."""
    # A character has one byte or more, so that most texts need not be encoded to be counted.
    limit = service.max_model_len * service.max_token_bytes
    if len(text) * 4 > limit and (size := len(text.encode("utf-8", "replace"))) > limit:
        least = -(-size // service.max_token_bytes)
        raise bad_request(
            f"This model's maximum context length is {service.max_model_len} tokens. However, you requested {least} "
            f"tokens or more in the {param}, which has {size} bytes. Shorten the {param}.",
            param,
        )


def render_chat(service: Service, body: ChatFields, add_special: bool) -> list[int]:
    """Prompt token ids of the messages; the same for chat and for tokenize."""
    check_length(service, "".join(texts_in(body.messages)), "messages")
    continued = bool(body.continue_final_message)
    ids = service.tokenizer.apply_chat_template(
        body.messages,
        add_generation_prompt=not continued if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continued,
        tools=wire_tools(body),
        chat_template_kwargs=body.template_kwargs,
    )
    if add_special:
        prefix = list(service.tokenizer.prefix_ids)
        ids = ids if ids[: len(prefix)] == prefix else prefix + ids
    return ids


def wire_tools(body: ChatFields) -> list[dict[str, Any]] | None:
    """The tools as the client sent them."""
    return [tool.model_dump(exclude_unset=True, exclude_none=True) for tool in body.tools] if body.tools else None


def strict_tools(body: ChatFields) -> list[str]:
    return [tool.function.name for tool in body.tools or () if tool.function.strict]


def texts_in(messages: list[Any]) -> Iterator[str]:
    """The texts of the messages, as far as they are well formed; the template's own check finds the rest."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text


def standing(call: Call, body: CallerFields) -> dict[str, Any]:
    """What the gate is told of who asks, and how the request stands beside others."""
    return {
        "priority": body.priority,
        "cache_salt": body.cache_salt,
        "tenant": call.tenant,
        "user": body.user,
        "timeout": call.timeout if body.timeout is None else body.timeout,
        "given_up": call.given_up,
    }


def _admit(
    service: Service,
    call: Call,
    position: int,
    prompt: Prompt,
    params: SamplingParams,
    body: SamplingFields,
    reasoning: Preamble | None = None,
    calls: CallGrammar | None = None,
) -> Request:
    field = next(iter(asked_by(body)), "tools")
    try:
        request = service.admit(
            f"{call.id}-{position}",
            prompt.token_ids,
            params,
            prompt=prompt.text,
            **standing(call, body),
            beams=beam_params(service, body, params),
            reasoning=reasoning,
            calls=calls,
        )
    except RequestError as error:
        if error.param == "beam_width":  # as the client calls it
            error.param = num_sequences(body, params)[0]
        raise named_after(error, field) from None
    return request if request.grammar is None else replace(request, constraint=field)


def last_text(messages: list[dict[str, Any]]) -> str:
    """The text of the last message, which chat's echo puts before the reply."""
    return "\n".join(texts_in(messages[-1:]))
