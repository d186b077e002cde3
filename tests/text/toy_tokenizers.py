"""Small tokenizers of each kind, for the tests of octavo.text."""

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from octavo.text.gguf_tokenizer import tokenizer_from_gguf
from octavo.text.tokenizer import Tokenizer

HERE = Path(__file__).parent
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "[INST]", "[/INST]"]
TEXT_TOKENS = ["<think>", "</think>"]
TRAINING = [
    "the cat sat on the mat, and the dog sat by the door of the house",
    "système développé 漢字 かな 🤗 👩‍👩‍👧",
    "x = 12 + 345",
]


def byte_level_backend(rstrip: bool = False) -> tokenizers.Tokenizer:
    """Byte-level BPE with control tokens outside and inside of the trained vocabulary, and two added text tokens."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=CONTROL[:2],
        show_progress=False,
    )
    backend.train_from_iterator(TRAINING, trainer)
    backend.add_special_tokens([AddedToken(t, normalized=False, special=True, rstrip=rstrip) for t in CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False) for t in TEXT_TOKENS])
    return backend


def byte_level(template: str | None = CHATML, rstrip: bool = False, **options: Any) -> Tokenizer:
    backend = byte_level_backend(rstrip)
    eos, bos = backend.token_to_id("<|im_end|>"), backend.token_to_id("<s>")
    templates = {} if template is None else {"default": template}
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_ids={eos},
        chat_templates=templates,
        special_tokens={"bos_token": "<s>", "eos_token": "<|im_end|>"},
        **options,
    )


def sentencepiece_metadata() -> dict[str, Any]:
    return json.loads((HERE / "sentencepiece.json").read_text())["metadata"]


def sentencepiece(**changes: Any) -> Tokenizer:
    """A SentencePiece vocabulary as GGUF describes it; it puts a space before every text."""
    return tokenizer_from_gguf(sentencepiece_metadata() | changes)
