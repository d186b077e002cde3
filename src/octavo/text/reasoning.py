"""Reasoning that a model writes before its answer, between two markers."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.text.events import Content, Event, Reasoning
from octavo.text.markers import SPACE, MarkerSearch, Spaced


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class Preamble:
    """Reasoning in front of a reply that something is asked of; `inside`: the prompt has begun it, so that it comes.
    Otherwise the reply may begin it, or go without."""

    format: ReasoningFormat
    inside: bool


THINK = ReasoningFormat("<think>", "</think>")
MISTRAL = ReasoningFormat("[THINK]", "[/THINK]")
SEED = ReasoningFormat("<seed:think>", "</seed:think>")
COHERE = ReasoningFormat("<|START_THINKING|>", "<|END_THINKING|>")

# By vLLM's names.
FORMATS: dict[str, ReasoningFormat] = {
    "cohere_command3": COHERE,
    "deepseek_r1": THINK,
    "deepseek_v3": THINK,
    "ernie45": THINK,
    "glm45": THINK,
    "holo2": THINK,
    "kimi_k2": THINK,
    "minimax_m2": THINK,
    "mistral": MISTRAL,
    "nemotron_v3": THINK,
    "olmo3": THINK,
    "qwen3": THINK,
    "seed_oss": SEED,
    "step3": THINK,
}


def recognise(template: str) -> ReasoningFormat | None:
    """The format whose end a chat template speaks of: it cuts reasoning out of earlier turns, or opens it."""
    for known in (SEED, MISTRAL, COHERE, THINK):
        if known.begin in template or known.end in template:
            return known
    return None


def is_open(prompt_end: str, format: ReasoningFormat) -> bool:
    """Whether a prompt ends within reasoning: the template has written its beginning, so that the reply lacks it."""
    return prompt_end.rfind(format.begin) > prompt_end.rfind(format.end)


class ReasoningSplitter:
    """Turns pieces of text into reasoning and content. Reasoning stands once, before everything else, or nowhere."""

    def __init__(self, format: ReasoningFormat, inside: bool, keeps_space: bool = False) -> None:
        """`inside`: the text begins within reasoning. `keeps_space`: white space beside it is content."""
        self._keeps_space = keeps_space
        self._reasoning, self._content = Spaced(), Spaced()
        self._end = MarkerSearch([format.end])
        self._begin: MarkerSearch | None = None if inside else MarkerSearch([format.begin])
        self._inside = inside
        if inside:
            self._reasoning.marker()

    def feed(self, text: str) -> list[Event]:
        """In this order: what is reasoning, what is content."""
        told: list[Event] = []
        if self._begin is not None:
            passed, marker, at = self._begin.feed(text)
            if passed if self._keeps_space else passed.strip(SPACE):
                # The reply has begun with something else.
                text, self._begin = passed + (marker or self._begin.flush()) + text[at:], None
            elif marker:
                text, self._begin, self._inside = text[at:], None, True
                self._reasoning.marker()
            else:
                # White space at the beginning is content, unless reasoning follows.
                return self._say_content(passed)
            if self._inside:
                self._content.marker()
        if self._inside:
            passed, marker, at = self._end.feed(text)
            if reasoning := self._reasoning.feed(passed):
                told.append(Reasoning(reasoning))
            if marker is None:
                return told
            self._inside, text = False, text[at:]
            self._content.marker()
        return told + self._say_content(text)

    def finish(self) -> list[Event]:
        if self._begin is not None:
            return self._say_content(self._begin.flush(), last=True)
        if self._inside:
            rest = self._reasoning.feed(self._end.flush()) + self._reasoning.flush()
            return [Reasoning(rest)] if rest else []
        return self._say_content("", last=True)

    def _say_content(self, text: str, last: bool = False) -> list[Event]:
        told = text if self._keeps_space else self._content.feed(text) + (self._content.flush() if last else "")
        return [Content(told)] if told else []
