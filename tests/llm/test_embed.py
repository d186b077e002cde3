"""LLM.embed: vectors of prompts, in vLLM's shape."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from octavo import LLM, EmbeddingRequestOutput, PoolingParams, SamplingParams
from octavo.errors import ConfigError, ModelError, RequestError

PROMPTS = ["one", "another prompt", "a" * 40]


def embed(llm: LLM, prompts: Any, params: PoolingParams | None = None) -> list[EmbeddingRequestOutput]:
    return llm.embed(prompts, params, use_tqdm=False)


def vectors(outputs: list[EmbeddingRequestOutput]) -> np.ndarray:
    return np.array([output.outputs.embedding for output in outputs])


def test_each_prompt_has_a_vector_of_length_1(llm: LLM) -> None:
    outputs = embed(llm, PROMPTS)
    assert [output.prompt_token_ids for output in outputs] == [llm.get_tokenizer().encode(one) for one in PROMPTS]
    assert all(output.finished and output.outputs.hidden_size == 64 for output in outputs)
    np.testing.assert_allclose(np.linalg.norm(vectors(outputs), axis=1), 1, rtol=1e-6)
    ids: list[Any] = [{"prompt_token_ids": output.prompt_token_ids} for output in outputs]
    assert vectors(embed(llm, ids)).tolist() == vectors(outputs).tolist()
    assert embed(llm, []) == []


def test_without_activation_a_vector_keeps_its_length(llm: LLM) -> None:
    raw = vectors(embed(llm, PROMPTS, PoolingParams(use_activation=False)))
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert (np.abs(lengths - 1) > 1e-3).all()
    np.testing.assert_allclose(raw / lengths, vectors(embed(llm, PROMPTS)), atol=1e-6)


def test_mean_and_last_differ_and_a_generation_goes_beside_them(make: Callable[..., LLM]) -> None:
    last, mean = make(), make(pooling_type="MEAN")
    assert not np.allclose(vectors(embed(last, PROMPTS)), vectors(embed(mean, PROMPTS)), atol=0.01)
    alone: Any = {"prompt_token_ids": [65]}  # a mean of one
    assert vectors(embed(last, alone)).tolist() == vectors(embed(mean, alone)).tolist()
    params = SamplingParams(temperature=0, max_tokens=3)
    assert mean.generate("one", params, use_tqdm=False)[0].outputs[0].token_ids


def test_what_is_not_possible_is_refused_before_any_has_run(llm: LLM) -> None:
    for dimensions, text in ((32, "Matryoshka"), (0, "from 1 to 64"), (65, "from 1 to 64"), (True, "whole number")):
        with pytest.raises(RequestError, match=text) as caught:
            embed(llm, PROMPTS, PoolingParams(dimensions=dimensions))
        assert caught.value.param == "dimensions"
    with pytest.raises(RequestError, match="maximum context length"):
        embed(llm, ["a" * 5000])
    with pytest.raises(RequestError):
        embed(llm, [[1, -1]])
    (cut,) = embed(llm, ["a" * 5000], PoolingParams(truncate_prompt_tokens=-1))
    assert len(cut.prompt_token_ids) == 4096
    with pytest.raises(ConfigError, match="pooling_type"):
        LLM(pooling_type="cls")


@pytest.mark.parametrize(
    ("says", "allowed", "refused"),
    [({"is_matryoshka": True}, 5, 65), ({"is_matryoshka": True, "matryoshka_dimensions": [8, 32]}, 32, 16)],
)
def test_a_matryoshka_model_has_vectors_that_can_be_cut(
    says: dict[str, Any], allowed: int, refused: int, tmp_path: Path
) -> None:
    path = tiny.write_checkpoint("llama", tmp_path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | says))
    with LLM(path, threads=1, kv_cache_memory="4MiB") as llm:
        whole = vectors(embed(llm, PROMPTS))
        cut = vectors(embed(llm, PROMPTS, PoolingParams(dimensions=allowed)))
        assert cut.shape == (3, allowed)
        np.testing.assert_allclose(np.linalg.norm(cut, axis=1), 1, rtol=1e-6)
        expected = whole[:, :allowed] / np.linalg.norm(whole[:, :allowed], axis=1, keepdims=True)
        np.testing.assert_allclose(cut, expected, atol=1e-6)
        with pytest.raises(RequestError, match=str(refused)):
            embed(llm, PROMPTS, PoolingParams(dimensions=refused))


def test_a_model_says_how_it_is_pooled(tmp_path: Path) -> None:
    """By sentence-transformers' file; the option says otherwise, and what is not built stops the start."""
    path = tiny.write_checkpoint("llama", tmp_path)
    (path / "1_Pooling").mkdir()

    def first(**options: Any) -> list[float]:
        with LLM(path, threads=1, kv_cache_memory="4MiB", **options) as llm:
            return list(embed(llm, "some text")[0].outputs.embedding)

    last, mean = first(pooling_type="last"), first(pooling_type="mean")
    assert first() == last != mean
    for mode, expected in (("mean_tokens", mean), ("lasttoken", last)):
        modes = {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": False, f"pooling_mode_{mode}": True}
        (path / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 64, **modes}))
        assert first() == expected and first(pooling_type="last") == last
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    with pytest.raises(ModelError, match="pooling_mode_cls_token"):
        first()
    assert first(pooling_type="mean") == mean
