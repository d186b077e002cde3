"""A model that says given texts, so that what the server makes of them can be staged exactly, token by token."""

from __future__ import annotations

import re
from collections.abc import Sequence as Many

from successor import SuccessorModel, SuccessorRunner

from octavo.engine.batch import TokenOutput
from octavo.engine.request import Sequence
from octavo.text.tokenizer import Tokenizer

ASKED = re.compile(r"say (\d+)")


class ScriptRunner(SuccessorRunner):
    """Answers a prompt that holds "say 3" with the text 3, then EOS. Everything above it is the real thing."""

    def __init__(self, model: SuccessorModel, tokenizer: Tokenizer, texts: Many[str]) -> None:
        super().__init__(model)
        self.tokenizer = tokenizer
        self.scripts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]

    def _sample(self, sequence: Sequence, index: int, before: int, position: int) -> TokenOutput:
        prompt = sequence.request.prompt_token_ids
        asked = ASKED.findall(self.tokenizer.decode(prompt, skip_special_tokens=False))
        if not asked:
            return super()._sample(sequence, index, before, position)
        script = self.scripts[int(asked[-1])]
        at = position - len(prompt)
        return TokenOutput(script[at] if at < len(script) else self.model.eos)
