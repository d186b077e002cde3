"""Incremental detokenisation: one object per sequence turns its output ids into text, in linear time."""

import codecs
from collections.abc import Iterable, Mapping, Sequence

from octavo.text.stop import StopMatcher
from octavo.text.tokenizer import Tokenizer


class _Unknown(dict[int, str | None]):
    """Of no token is it known what it adds."""

    def __missing__(self, token_id: int) -> None:
        return None


UNKNOWN = _Unknown()


class Detokenizer:
    """Text of one output, in pieces that join to `Tokenizer.decode` of all of it, up to a stop string.

    Bytes wait until their character is whole; U+FFFD stands only for bytes that can never become one. Where a
    vocabulary's texts begin with a space that decoding drops, it is dropped only if the prompt has no text of its
    own: the output continues the prompt, and its first space is then the one between two words.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        kept_special_token_ids: Iterable[int] = (),
        min_tokens: int = 0,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        """A stop string counts only if a token after the first `min_tokens` completes it."""
        self.num_tokens = 0
        """Tokens that `append` has consumed, with the one that completed a stop string; those after it are ignored."""
        self.stop_reason: str | None = None
        """The stop string that ended the output, once there is one."""
        self.texts: Mapping[int, str | None]
        """What the next token adds, by its id, wherever its own text is all there is to say; else None, and `append`
        has to be asked. Who takes a text from here need not append the token."""
        self._tokenizer = tokenizer
        self._stops = bool(stop)
        self._stop = StopMatcher(stop, include_stop_str_in_output)
        self._skip = tokenizer.control_ids.difference(kept_special_token_ids) if skip_special_tokens else frozenset()
        self._min_tokens = min_tokens
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = tokenizer.strips_leading_space and not any(
            tokenizer.token_bytes(i) for i in reversed(prompt_token_ids) if i not in self._skip
        )
        self._look_ahead()

    def append(self, token_ids: Sequence[int]) -> str:
        """New text from further output tokens, without text that may yet turn out to be a stop string."""
        if len(token_ids) == 1 and (text := self.texts[token_ids[0]]) is not None:
            self.num_tokens += 1
            return text
        pieces = []
        for token_id in token_ids:
            if self._stop.matched is not None:
                break
            self.num_tokens += 1
            if token_id in self._skip:
                continue
            data = self._tokenizer.token_bytes(token_id)
            if self._drop_space and data:
                self._drop_space = False
                data = data.removeprefix(b" ")
            if text := self._utf8.decode(data):
                pieces.append(self._stop.feed(text, may_match=self.num_tokens > self._min_tokens))
        self.stop_reason = self._stop.matched
        self._look_ahead()
        return "".join(pieces)

    def _look_ahead(self) -> None:
        is_plain = not self._stops and not self._drop_space and not self._utf8.getstate()[0]
        self.texts = self._tokenizer.whole_texts if is_plain else UNKNOWN

    def finish(self) -> str:
        """The text still held: an unfinished stop string, and U+FFFD for bytes that were left incomplete."""
        if self._stop.matched is not None:
            return ""
        # A replacement character is no text of the model's, so it completes no stop string.
        return self._stop.feed(self._utf8.decode(b"", final=True), may_match=False) + self._stop.flush()

    def decode_token(self, token_id: int) -> str:
        """The text of one token by itself, as log-probabilities show it."""
        return self._tokenizer.token_bytes(token_id).decode("utf-8", "replace")
