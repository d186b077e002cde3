"""The offline API: prompts in, finished requests out."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from tqdm import tqdm

from octavo.build import build
from octavo.config import EngineConfig
from octavo.embedding import EmbeddingRequestOutput, PoolingParams
from octavo.engine.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from octavo.errors import EngineDeadError, GenerationError, RequestError
from octavo.loaded_model import LoadedModel
from octavo.prompts import Prompt, cache_salt_of, list_of_prompts, tokenize_prompt
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.text.tokenizer import Tokenizer


class LLM:
    """A model in this process. Every field of EngineConfig is a keyword: `LLM("path", max_model_len=4096)`.

    Not for use from several threads at once; AsyncLLM is.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        config = EngineConfig.from_options(model=model, **options)
        self._model: LoadedModel | None = build(config)
        self._ids = itertools.count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[RequestOutput]:
        """One RequestOutput per prompt, in their order.

        prompts: a text, token ids, `{"prompt": text}` or `{"prompt_token_ids": ids}`, or a list of these; a dict may
        have a "cache_salt", and prompts share computed blocks only with those of the same salt.
        sampling_params: one for all, or one for each. priority: one for each, lower goes first; needs
        scheduling_policy="priority". timeout: seconds after which what has not ended is cut short.
        Raises RequestError (a ValueError) if any of them is not possible; then none has run. Raises GenerationError if
        one fails while it runs or is cut short by its timeout (finish_reason "timeout"); the others run to their ends,
        and it holds them.
        """
        many = list_of_prompts(prompts)
        params = self._params_for(sampling_params, len(many))
        tokenizer = self.get_tokenizer()
        salts = [cache_salt_of(prompt) for prompt in many]
        tokens = [tokenize_prompt(tokenizer, prompt) for prompt in many]
        return self._run(tokens, params, use_tqdm, priority, timeout, salts)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        timeout: float | None = None,
        **template_options: Any,
    ) -> list[RequestOutput]:
        """Like generate, for one conversation or a list of them, through the model's chat template."""
        one = not messages or isinstance(messages[0], Mapping)
        conversations: Sequence[Any] = [messages] if one else messages
        params = self._params_for(sampling_params, len(conversations))
        tokenizer = self.get_tokenizer()
        token_ids = [
            tokenizer.apply_chat_template(
                conversation,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                **template_options,
            )
            for conversation in conversations
        ]
        return self._run([(None, ids) for ids in token_ids], params, use_tqdm, None, timeout)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | None = None,
        use_tqdm: bool = True,
        priority: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of each prompt, of length 1, pooled as `pooling_type` says. Raises as generate does."""
        model, asked = self._loaded(), pooling_params or PoolingParams()
        model.embedding.check(asked.dimensions)
        many = list_of_prompts(prompts)
        salts = [cache_salt_of(prompt) for prompt in many]
        tokenized = [tokenize_prompt(model.tokenizer, prompt) for prompt in many]
        params = [asked.for_prompt()] * len(many)
        wholes = self._run(tokenized, params, use_tqdm, priority, timeout, salts, pooling=model.embedding.pooling)
        return [EmbeddingRequestOutput.of(whole, asked) for whole in wholes]

    def beam_search(
        self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The `beam_width` best hypotheses of each prompt, the best first; prompts and errors are as for generate."""
        many = list_of_prompts(prompts)
        tokenizer = self.get_tokenizer()
        sampling = SamplingParams(
            n=params.beam_width,
            temperature=0,
            max_tokens=params.max_tokens,
            ignore_eos=params.ignore_eos,
            include_stop_str_in_output=params.include_stop_str_in_output,
            logprobs=0,
        )
        tokenized = [tokenize_prompt(tokenizer, prompt) for prompt in many]
        salts = [cache_salt_of(prompt) for prompt in many]
        results = self._run(tokenized, [sampling] * len(many), use_tqdm, None, None, salts, params)
        return [beam_search_output(tokenizer, result) for result in results]

    def reset_prefix_cache(self) -> bool:
        """Lets no later request find what has been computed so far. True: it always succeeds."""
        self._loaded().engine.reset_prefix_cache()
        return True

    def get_tokenizer(self) -> Tokenizer:
        return self._loaded().tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What generate uses where none are given: the defaults, with the model's generation config on top."""
        return SamplingParams(**self._loaded().sampling_defaults)

    def close(self) -> None:
        """Frees weights and cache; the object is of no use afterwards."""
        if self._model is not None:
            self._model.close()
            self._model = None

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _loaded(self) -> LoadedModel:
        if self._model is None:
            raise EngineDeadError("This LLM is closed; make a new one.")
        return self._model

    def _params_for(self, params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
        if params is None:
            return [self.get_default_sampling_params()] * count
        if isinstance(params, SamplingParams):
            return [params] * count
        if len(params) != count:
            raise RequestError(
                f"There are {count} prompts and {len(params)} sampling_params; give one for all, or one for each."
            )
        return list(params)

    def _priorities_for(self, priority: Sequence[int] | None, count: int) -> Sequence[int]:
        if priority is None:
            return [0] * count
        if len(priority) != count:
            raise RequestError(
                f"There are {count} prompts and {len(priority)} priorities; give one for each.", "priority"
            )
        return priority

    def _run(
        self,
        prompts: list[tuple[str | None, Sequence[int]]],
        params: list[SamplingParams],
        use_tqdm: bool,
        priority: Sequence[int] | None,
        timeout: float | None,
        salts: Sequence[str | None] | None = None,
        beams: BeamSearchParams | None = None,
        pooling: str | None = None,
    ) -> list[RequestOutput]:
        model = self._loaded()
        priorities = self._priorities_for(priority, len(prompts))
        requests = [
            model.admit(
                f"llm-{next(self._ids)}",
                ids,
                param,
                prompt=text,
                priority=order,
                cache_salt=salt,
                timeout=timeout,
                beams=beams,
                pooling=pooling,
            )
            for (text, ids), param, order, salt in zip(
                prompts, params, priorities, salts or [None] * len(prompts), strict=True
            )
        ]
        results = {request.request_id: RequestOutput.empty(request) for request in requests}
        bar = tqdm(total=len(requests), desc="Prompts", disable=not use_tqdm, file=sys.stderr)
        try:
            for request in requests:
                model.engine.add(request)
            while model.engine.has_work():
                for news in model.engine.step():
                    result = results.get(news.request_id)
                    if result is not None:
                        result.apply(news)
                        bar.update(result.finished)
        except BaseException:
            # Interrupted: what was asked for must not run on in the next call.
            for request in requests:
                model.engine.abort(request.request_id)
            while model.engine.has_work():
                model.engine.step()
            raise
        finally:
            bar.close()
        outputs = [results[request.request_id] for request in requests]
        if any(output.error is not None for output in outputs):
            raise GenerationError(outputs)
        return outputs


def beam_search_output(tokenizer: Tokenizer, whole: RequestOutput) -> BeamSearchOutput:
    """The outputs of a request in the form of a beam search's: each with its prompt."""
    prompt = whole.prompt if whole.prompt is not None else tokenizer.decode(whole.prompt_token_ids)
    return BeamSearchOutput(
        [
            BeamSearchSequence(
                [*whole.prompt_token_ids, *one.token_ids],
                one.logprobs or [],
                one.cumulative_logprob or 0.0,
                prompt + one.text,
                one.finish_reason,
                one.stop_reason,
            )
            for one in whole.outputs
        ]
    )
