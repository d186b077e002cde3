"""Trains a small SentencePiece BPE model and records its ids; run by hand, with the package sentencepiece installed.

    python tests/text/record_sentencepiece.py

Writes tests/text/sentencepiece.json: the vocabulary as a GGUF file would hold it, and a list of [text, ids].
"""

import io
import json
import random
from pathlib import Path

import sentencepiece as spm
from record_gguf_ids import texts

CORPUS = """The old library stood at the corner of the market square. Every morning the librarian opened its doors.
She counted the books, 12 on the first shelf, 348 on the second. People came in from the rain and asked for stories.
Some asked for maps of the north; others wanted recipes, letters or songs. "Where is the sea?" a child asked.
The librarian smiled and pointed at the window. There is a river that leads to it, she said, and there are boats.
Das alte Haus am Fluss hat drei Türen und viele Fenster. Le café est fermé le dimanche, mais le marché est ouvert.
def count(items): return sum(1 for item in items if item is not None)   # counts the items
In the evening she closed the doors, and the market square was quiet again, as it had been a hundred years before.
"""


def main() -> None:
    lines = [line for line in CORPUS.splitlines() for _ in range(20)]
    random.Random(0).shuffle(lines)
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
    )
    sp = spm.SentencePieceProcessor(model_proto=model.getvalue())
    ids = range(sp.vocab_size())
    kinds = [2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1 for i in ids]
    rng = random.Random(1)
    words = CORPUS.split()
    own = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(60)]
    # SentencePiece treats its own mark as a space, as it does in the vocabulary, so texts without it suffice.
    rows = [[text, sp.encode(text)] for text in [*own, *texts()] if text and "\x00" not in text]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [sp.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [sp.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": sp.bos_id(),
        "tokenizer.ggml.eos_token_id": sp.eos_id(),
        "tokenizer.ggml.unknown_token_id": sp.unk_id(),
    }
    file = Path(__file__).with_name("sentencepiece.json")
    file.write_text(json.dumps({"metadata": metadata, "rows": rows}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
