"""The tokenizer that a GGUF file describes in its metadata, built as a `tokenizers` object."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo import _native
from octavo.errors import ModelError
from octavo.text.tokenizer import Tokenizer

# Token types of GGUF.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Control tokens that end an assistant's turn, whatever single id the file names as EOS.
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>")

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + LLAMA3_TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + LLAMA3_TAIL
QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}" + CASED_TAIL
GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTIONS}?|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}" + CASED_TAIL
)
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")
FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")

# Patterns that cut a text into words, by the name in `tokenizer.ggml.pre`; each isolates its matches in what is left.
WORD_PATTERNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat", "mellum", "trillion"), (GPT2,)),
    **dict.fromkeys(("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "granite-docling"), (GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", GPT2)),
    **dict.fromkeys(("minerva-7b",), (r"\p{N}", GPT2)),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2"), (LLAMA3,)),
    **dict.fromkeys(("midm-2.0", "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez", "hunyuan", "grok-2"), (QWEN2,)),
    "qwen35": (QWEN35,),
    "tekken": (TEKKEN,),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), (GPT4O,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), DEEPSEEK3),
    "falcon": FALCON,
    "default": DEFAULT,
}
# A word that is a token is that token, whatever the merges say; the same vocabularies begin with BOS by default.
WHOLE_WORDS = frozenset(
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
)


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file, from its metadata as Python values. ModelError names the key at fault.

    `tokenizer.ggml.model` may be "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE with byte fallback).
    """
    model = metadata.get("tokenizer.ggml.model")
    tokens = _tokens(metadata)
    types = _column(metadata, "tokenizer.ggml.token_type", len(tokens), NORMAL)
    if model == "gpt2":
        pre = metadata.get("tokenizer.ggml.pre", "default")
        backend, add_bos = _byte_level(metadata, tokens, pre), pre in WHOLE_WORDS
    elif model == "llama":
        backend, add_bos = _sentencepiece(metadata, tokens, types), True
    else:
        raise ModelError(
            f"tokenizer.ggml.model is {model!r}; octavo reads gpt2 (byte-level BPE) and llama (SentencePiece)"
        )
    ids = {name: _token_id(metadata, name, len(tokens)) for name in ("bos", "eos", "eot", "eom", "unknown", "padding")}
    special = np.isin(types, (CONTROL, UNKNOWN))
    special[[i for i in ids.values() if i is not None]] = True
    backend.add_special_tokens([_added(tokens[i], special=True) for i in np.flatnonzero(special)])
    backend.add_tokens([_added(tokens[i], special=False) for i in np.flatnonzero((types == USER_DEFINED) & ~special)])
    eos = {i for name in ("eos", "eot", "eom") if (i := ids[name]) is not None}
    eos.update(i for text in END_OF_TURN if (i := backend.token_to_id(text)) is not None and special[i])
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    return Tokenizer(
        backend,
        bos_token_id=ids["bos"],
        eos_token_ids=eos,
        add_bos=bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos)),
        add_eos=bool(metadata.get("tokenizer.ggml.add_eos_token", False)),
        chat_templates=_templates(metadata),
        special_tokens={names[name]: tokens[i] for name, i in ids.items() if name in names and i is not None},
    )


def _added(text: str, special: bool) -> AddedToken:
    return AddedToken(text, normalized=False, special=special)


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str], pre: str) -> Backend:
    patterns = WORD_PATTERNS.get(pre)
    if patterns is None:
        raise ModelError(
            f"tokenizer.ggml.pre is {pre!r}, which octavo does not know; known are {', '.join(sorted(WORD_PATTERNS))}"
        )
    merges = [merge.partition(" ")[::2] for merge in _strings(metadata, "tokenizer.ggml.merges")]
    backend = Backend(_bpe(tokens, merges, ignore_merges=pre in WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(metadata: Mapping[str, Any], tokens: Sequence[str], types: np.ndarray) -> Backend:
    scores = _column(metadata, "tokenizer.ggml.scores", len(tokens), None)
    unknown = _token_id(metadata, "unknown", len(tokens))
    best_first = np.argsort(-scores, kind="stable")
    words = [tokens[i] for i in best_first[types[best_first] == NORMAL].tolist()]
    backend = Backend(
        _bpe(
            tokens,
            _native.sentencepiece_merges(words),
            byte_fallback=True,
            fuse_unk=True,
            unk_token=None if unknown is None else tokens[unknown],
        )
    )
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    parts: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        marks.insert(0, normalizers.Prepend("▁"))
        parts.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(marks)
    backend.decoder = decoders.Sequence(parts)
    return backend


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **options: Any) -> models.BPE:
    vocab = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(vocab) != len(tokens):
        raise ModelError(
            f"tokenizer.ggml.tokens holds {len(tokens)} tokens, but {len(tokens) - len(vocab)} of them are repeated"
        )
    try:
        return models.BPE(vocab=vocab, merges=merges, **options)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}") from error


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    named = {k.removeprefix(prefix + "."): v for k, v in metadata.items() if k.startswith(prefix + ".")}
    templates = named | ({"default": metadata[prefix]} if prefix in metadata else {})
    return {name: source for name, source in templates.items() if isinstance(source, str)}


def _tokens(metadata: Mapping[str, Any]) -> list[str]:
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelError("tokenizer.ggml.tokens is empty")
    return [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)] if "" in tokens else tokens


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not set(map(type, value)) <= {str}:
        raise ModelError(f"{key} {'is missing' if value is None else 'is not a list of strings'}")
    return value


def _column(metadata: Mapping[str, Any], key: str, length: int, default: int | None) -> np.ndarray:
    """A number for each token."""
    value = metadata.get(key)
    if value is None:
        if default is None:
            raise ModelError(f"{key} is missing")
        return np.full(length, default)
    column = np.asarray(value)
    if column.shape != (length,) or column.dtype.kind not in "iuf":
        raise ModelError(f"{key} must hold {length} numbers, one for each token")
    return column


def _token_id(metadata: Mapping[str, Any], name: str, length: int) -> int | None:
    key = f"tokenizer.ggml.{name}_token_id"
    value = metadata.get(key)
    if value is None:
        return None
    if not 0 <= int(value) < length:
        raise ModelError(f"{key} is {value}, but there are {length} tokens")
    return int(value)
