"""Options: one form however they are written, and sentences for those that cannot be."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config import EngineConfig, ServerConfig
from octavo.errors import ConfigError


@given(st.integers(1, 10_000))
def test_sizes_by_lower_case_count_in_thousands_by_upper_case_in_1024(number: int) -> None:
    assert EngineConfig.from_options(max_model_len=f"{number}k").max_model_len == 1000 * number
    assert EngineConfig.from_options(max_model_len=f"{number}K").max_model_len == 1024 * number
    assert EngineConfig.from_options(max_model_len=str(number)).max_model_len == number


def test_sizes_with_a_fraction_count_if_they_come_out_whole() -> None:
    assert EngineConfig.from_options(max_model_len="25.6k").max_model_len == 25600
    with pytest.raises(ConfigError, match="max_model_len"):
        EngineConfig.from_options(max_model_len="0.0001k")


@pytest.mark.parametrize("value", ["auto", -1, "-1"])
def test_auto_context_is_minus_one(value: object) -> None:
    assert EngineConfig.from_options(max_model_len=value).max_model_len == -1


@given(st.integers(1, 4096), st.sampled_from(["KiB", "MiB", "GiB", "K", "M", "G"]))
def test_memory_counts_in_1024_unless_it_says_mb(number: int, unit: str) -> None:
    scale = 1024 ** ("KMG".index(unit[0]) + 1)
    assert EngineConfig.from_options(kv_cache_memory=f"{number}{unit}").kv_cache_memory == number * scale
    decimal = EngineConfig.from_options(kv_cache_memory=f"{number}{unit[0]}B").kv_cache_memory
    assert decimal == number * 1000 ** ("KMG".index(unit[0]) + 1)


def test_the_names_that_vllm_has_for_an_option_count() -> None:
    assert EngineConfig.from_options(gpu_memory_utilization=0.5).memory_utilization == 0.5
    with pytest.raises(ConfigError, match="twice"):
        EngineConfig.from_options(gpu_memory_utilization=0.5, memory_utilization=0.5)


def test_a_mistyped_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean max_model_len"):
        EngineConfig.from_options(max_modle_len=5)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("block_size", 17, "multiple of 16"),
        ("block_size", 144, "128"),
        ("memory_utilization", 0, "above 0"),
        ("memory_utilization", math.nan, "number"),
        ("memory_utilization", True, "number"),
        ("max_num_seqs", 0, "from 1"),
        ("max_num_seqs", 1.5, "whole number"),
        ("max_num_seqs", True, "whole number"),
        ("kv_cache_memory", "4 potatoes", "4GiB"),
        ("quantization", "awq", "not implemented yet"),
        ("quantization", "nonsense", "int8, int4 or gguf"),
        ("quantization_group_size", 48, "32, 64 or 128"),
        ("quantization_group_size", "16", "32, 64 or 128"),
        ("tensor_parallel_size", 4, "not implemented yet"),
        ("pipeline_parallel_size", 2, "not implemented yet"),
        ("device", "cuda", "not implemented yet"),
        ("dtype", "int4", "bfloat16"),
        ("model", "", "not empty"),
        ("threads", 0, "from 1"),
        ("enable_prefix_caching", "perhaps", "true or false"),
    ],
)
def test_what_cannot_be_is_named_with_its_value_and_its_limits(name: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig.from_options(**{name: value})
    message = str(caught.value)
    assert name in message and repr(value) in message and says in message
    with pytest.raises(ConfigError):
        EngineConfig(**{name: value})


def test_parsing_is_idempotent() -> None:
    config = EngineConfig.from_options(max_model_len="auto", kv_cache_memory="1GiB", served_model_name="a")
    assert dataclasses.replace(config) == config


def test_configs_are_frozen_and_keys_stay_out_of_messages() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineConfig().dtype = "half"  # type: ignore[misc]
    with pytest.raises(ConfigError) as caught:
        ServerConfig.from_options(api_key={"secret": 1})
    assert "secret" not in str(caught.value)


def test_credentials_need_origins_with_a_name() -> None:
    with pytest.raises(ConfigError, match="allowed_origins"):
        ServerConfig(allow_credentials=True, allowed_origins=("*",))
