"""Records the token ids that llama.cpp gives for a fixed list of texts; run by hand when the list changes.

    pip install xllamacpp            # llama.cpp itself, as a wheel
    python tests/text/record_gguf_ids.py SmolLM2-135M-Instruct.Q4_1.gguf smollm2
    python tests/text/record_gguf_ids.py gemma-3-270m-q4_k_m.gguf gemma3

Each run writes tests/text/gguf_ids_NAME.json: a list of [text, ids with control tokens recognised, ids without].
"""

# ruff: noqa: E501, RUF001 - a list of odd texts: one to a line it would fill pages, and look-alikes are its point.

import json
import random
import sys
import urllib.request
from pathlib import Path

HAND_WRITTEN = [
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "don't can't we've I'm she'll he'd it's DON'T WE'VE",
    "0 1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 ½ Ⅷ ² ٣٤٥ 七",
    " leading", "  two", "   three", "trailing ", "trailing  ", " ", "  ", "   ", "\n", "\n\n", "\n\n\n\n", "\t", "\t\t\tx",
    "a  b   c    d     e      f", "a\n b\n  c\n   d", "\r\n\r\n x \r\n", "a \n \n b", "x\u00a0y\u2003z\u3000w",
    "def f(x):\n    return x ** 2 + 3*x - 1  # comment\n\nprint(f(10))\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    '{"key": [1, 2.5e-3, null, true], "s": "\\u00e9\\n"}',
    "<html><body><table><tr><td>x</td></tr></table></body></html>",
    "https://example.com/a/b?c=d&e=%20f#g", "foo@bar.example", "C:\\Users\\x\\y.txt", "$HOME/.cache/*", "``` ```", "***---___===",
    "日本語のテキスト。", "汉字和标点，测试。", "한국어 문장입니다.", "Привет, мир!", "שלום עולם", "مرحبا بالعالم", "नमस्ते दुनिया",
    "สวัสดีชาวโลก", "Ελληνικά", "Zażółć gęślą jaźń", "naïve café e\u0301 n\u0303", "ﬁ ﬂ Ⅸ ™ ℃",
    "🤗", "👩‍👩‍👧‍👦", "🏳️‍🌈 🇩🇪 👍🏽", "emoji🎉in🎉words", "𝔘𝔫𝔦𝔠𝔬𝔡𝔢", "\ue000\uf8ff", "\ufeffbom", "a\u200bb\u200dc", "\x00\x01\x7f", "ÿĀā",
    "▁", "▁▁x", "a▁b", "<0x41>", "<0x0A>", "<unk>", "<s></s>", "Ġ Ċ", "[INST] x [/INST]",
    "<|im_start|>user\nHi<|im_end|>\n", "<|endoftext|>", "x<|im_end|>y", " <|im_end|> ", "<|im_start|", "|im_end|>",
    "<repo_name>", "<file_sep>x", "<bos>Hi<eos>", "<start_of_turn>user\nHi<end_of_turn>\n", " <bos> ", "<unused7>", "<mask>",
    "<pad>", "[multimodal]", "<start_of_image>", "<h1>T</h1>", "</h1 >",
    "antidisestablishmentarianism", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "zzzzzz qqqqq", "AbCdEfGhIjK", "snake_case_name CamelCaseName",
    "1+1=2; 2*3=6; 7/2=3.5; 10%3=1; a^b|c&d~e", "…—–-‐‑", "“quotes” ‘single’ «guillemets»", "!?!?!?", "((([[[{{{}}}]]])))",
]  # fmt: skip
RANGES = [
    (0x20, 0x7E),
    (0xA1, 0x24F),
    (0x370, 0x5FF),
    (0x900, 0x97F),
    (0x3040, 0x30FF),
    (0x4E00, 0x9FA5),
    (0x1F300, 0x1FAFF),
]
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "model",
    "token",
    "http",
    "12",
    "007",
    "x1",
    "don't",
    "I'll",
    "\n",
    "\n\n",
    "\t",
    "",
    "",
    "a0b",
    "",
    "é",
    "ü",
    "ß",
    "中文",
    "かな",
    "🤗",
    "==",
    "->",
    "//",
    "#include",
    "<p>",
    "▁",
]


def texts() -> list[str]:
    rng = random.Random(20)
    mixed = [
        "".join(rng.choice(WORDS) + rng.choice(["", " ", "  "]) for _ in range(rng.randint(2, 14))) for _ in range(70)
    ]
    chars = [
        "".join(chr(rng.randint(*rng.choice(RANGES[: rng.randint(1, len(RANGES))]))) for _ in range(rng.randint(2, 24)))
        for _ in range(70)
    ]
    return [*HAND_WRITTEN, *mixed, *chars]


def main(path: str, name: str) -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx, params.warmup, params.cpuparams.n_threads = 256, False, 1
    server = xllamacpp.Server(params)

    def ids(text: str, parse_special: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": parse_special}).encode()
        request = urllib.request.Request(
            server.listening_address + "/tokenize", body, {"Content-Type": "application/json"}
        )
        return json.load(urllib.request.urlopen(request))["tokens"]

    rows = [[text, ids(text, True), ids(text, False)] for text in texts()]
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    Path(__file__).with_name(f"gguf_ids_{name}.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
