"""What grammars of replies share, in llguidance's Lark: control tokens, free text up to a marker, and reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from octavo.text.reasoning import Preamble

TEXT = r"TEXT: /(.|\n)*/"
# White space that may part reasoning from what comes after it, and the most of it.
PARTING = r"/[ \n]{0,4}/"
WIDEST = "\n" * 4


def literal(text: str, control_texts: Mapping[str, int]) -> str:
    """A text as a grammar has to spell it, which names control tokens by their ids."""
    known = sorted((c for c in control_texts if c in text), key=len, reverse=True)
    parts = re.split("(" + "|".join(map(re.escape, known)) + ")", text) if known else [text]
    written = [f"<[{control_texts[p]}]>" if p in control_texts else json.dumps(p) for p in parts if p]
    return " ".join(written) or '""'


def until(rule: str, end: str, control_texts: Mapping[str, int]) -> str:
    """A rule for free text up to `end`, which a text cannot go past. It needs `TEXT`."""
    lazy = "" if end in control_texts else "[lazy]"
    return f"{rule}{lazy}: TEXT {literal(end, control_texts)}"


def reasoning_first(preamble: Preamble, control_texts: Mapping[str, int], then: str = "") -> tuple[list[str], str]:
    """Rules of the reasoning before a reply, and how the reply begins with it and `then`. They need `TEXT`."""
    begin, end = preamble.format.begin, preamble.format.end
    # Lazy, or a reply that begins so would be taken for free text to its end.
    lazy = "" if begin in control_texts else "[lazy]"
    rules = [until("thinking", end, control_texts), f"think{lazy}: {literal(begin, control_texts)}"]
    return rules, f"thinking {then}" if preamble.inside else f"(think thinking {then})?"
