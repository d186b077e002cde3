"""The tokenizer: text to token ids, token ids to bytes, and the one place where BOS and EOS are decided."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from octavo.errors import ModelError, RequestError
from octavo.json_file import read_if_there
from octavo.text.messages import check_text

if TYPE_CHECKING:
    from octavo.text.chat_template import ChatTemplate, Spans

logger = logging.getLogger(__name__)

# Unicode noncharacters that stand for a control token while the text around it is encoded, see `Tokenizer.encode_chat`.
ANCHOR = "\ufdd0\U0010fffe\ufdd0"
SLOW_TOKENIZER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "tekken.json", "qwen.tiktoken")
CONTROL_SHAPE = re.compile("<[|\uff5c].+[|\uff5c]>", re.DOTALL)
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")

Spelling = Callable[[str], bytes]


class Tokenizer:
    """Encodes and decodes for one model; safe to share between threads, as nothing in it depends on the call order.

    `control_ids` are the added tokens that steer the model: those marked special, those of the shape `<|...|>` (some
    files forget the mark), BOS and EOS. `encode` recognises their text, `encode_plain` and the messages of a chat
    never do. Other added tokens (`<think>`, runs of spaces) are text by their publisher's own word, found everywhere.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Iterable[int] = (),
        add_bos: bool | None = None,
        add_eos: bool | None = None,
        chat_templates: Mapping[str, str] | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        """`add_bos`/`add_eos` None: `backend`'s post-processor decides. `special_tokens` are names for templates."""
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = frozenset(eos_token_ids)
        self.prefix_ids, self.suffix_ids = _affixes(backend, bos_token_id, self.eos_token_ids, add_bos, add_eos)
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self._compiled: dict[str, ChatTemplate] = {}
        self._added = backend.get_added_tokens_decoder()
        self.control_ids = frozenset(
            i
            for i, token in self._added.items()
            if token.special
            or CONTROL_SHAPE.fullmatch(token.content)
            or i in self.eos_token_ids
            or i == self.bos_token_id
        )
        self.control_texts = {self._added[i].content: i for i in self.control_ids}
        self.vocab_size = max(backend.get_vocab_size(with_added_tokens=True), max(self._added, default=-1) + 1)
        self._spelling, self.strips_leading_space = _spelling(backend.decoder)
        self._bytes: dict[int, bytes] = {}
        self.whole_texts = _WholeTexts(self.token_bytes, self.control_ids)
        self._plain = _PlainTwin(backend, self._added, self.control_ids)
        self._anchored = _PlainTwin(backend, self._added, self.control_ids, ANCHOR)
        self._warned = False

    @property
    def chat_template(self) -> str | None:
        """The default chat template's source, if the model has one."""
        return self.chat_templates.get("default")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, in which the text of a control token is that token.

        With `add_special_tokens` the model's own BOS/EOS rule applies; a text that begins with BOS gets no second
        one (and is warned of once). An unpaired surrogate is a RequestError.
        """
        check_text(text)
        ids = _encode(self.backend, text)
        if not add_special_tokens:
            return ids
        prefix = self.prefix_ids
        if prefix and prefix[-1] == self.bos_token_id and ids[:1] == [self.bos_token_id]:
            prefix = prefix[:-1]
            if not self._warned:
                self._warned = True
                logger.warning("a prompt begins with the text of BOS already; no second BOS is put in front of it")
        return [*prefix, *ids, *self.suffix_ids]

    def encode_plain(self, text: str) -> list[int]:
        """Token ids of `text` in which the text of a control token is ordinary text. No BOS or EOS."""
        check_text(text)
        return self._plain.encode(text)

    def encode_chat(self, text: str, hidden: Mapping[str, str]) -> list[int]:
        """Token ids of a rendered chat in which control tokens count only where the template wrote them.

        `hidden` maps each stand-in character of `text` to the character that it replaced (see `ChatTemplate.render`),
        so that a user's copy of a control token cannot be found. What is found is cut out, the rest gets its
        characters back, and is encoded by the twin without control tokens.
        """
        if not hidden:
            return self.encode(text, add_special_tokens=False)
        if ANCHOR in text:
            raise RequestError("a message holds a sequence of Unicode noncharacters that is reserved for internal use")
        (encoding,) = self.backend.encode_batch([text], add_special_tokens=False)
        controls = [(span, i) for i, span in zip(encoding.ids, encoding.offsets, strict=True) if i in self.control_ids]
        pieces: list[str] = []
        end = 0
        for (start, stop), _ in controls:
            pieces.append(text[end:start])
            end = stop
        plain = ANCHOR.join([*pieces, text[end:]]).translate({ord(stand_in): char for stand_in, char in hidden.items()})
        written = iter(i for _, i in controls)
        return [next(written) if i == -1 else i for i in self._anchored.encode(plain)]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Prompt token ids of a conversation; BOS is there if, and only if, the template writes it.

        `add_generation_prompt` None: yes, unless the last message is to be continued. `chat_template` is a source of
        the operator's own. `chat_template_kwargs` and further keywords become variables
        of the template; they cannot replace the ones octavo sets. RequestError where a message or the template objects.
        """
        variables = {**kwargs, **(chat_template_kwargs or {})}
        generate = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        text, hidden = self._template(chat_template, bool(tools)).render(
            messages,
            add_generation_prompt=generate,
            continue_final_message=continue_final_message,
            tools=tools,
            variables=variables,
            special_tokens=self.special_tokens,
            spans=self._control_spans,
        )
        return self.encode_chat(text, hidden)

    @cached_property
    def _control_spans(self) -> Spans:
        from octavo.text.chat_template import control_spans

        return control_spans(self.control_texts)

    def _template(self, source: str | None, with_tools: bool) -> ChatTemplate:
        if source is None and with_tools:
            source = self.chat_templates.get("tool_use")
        source = source or self.chat_template
        if source is None:
            raise RequestError(
                "this model has no chat template: give one with --chat-template, or use the completions API", "messages"
            )
        # Jinja takes 40 ms to import, a twelfth of the way to the first token of a prompt that is no chat.
        from octavo.text.chat_template import ChatTemplate

        if source not in self._compiled:
            self._compiled[source] = ChatTemplate(source)
        return self._compiled[source]

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids` taken as a whole output; bytes that form no character become U+FFFD."""
        skip = self.control_ids if skip_special_tokens else frozenset()
        data = b"".join(self.token_bytes(i) for i in token_ids if i not in skip)
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that `token_id` adds to an output; b"" for ids that the vocabulary does not have."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._token_bytes(token_id)
        return data

    def _token_bytes(self, token_id: int) -> bytes:
        text = self.backend.id_to_token(token_id) if token_id >= 0 else None
        if text is None:
            return b""
        if token_id in self._added:
            # A run of spaces is spelled with marks in SentencePiece files; all else is verbatim.
            return text.replace("▁", " ").encode() if self._spelling is spell_sentencepiece else text.encode()
        return self._spelling(text)

    def difference(self, other: Tokenizer) -> str | None:
        """In what two vocabularies differ, or None where each id is the same token in both."""
        if self.vocab_size != other.vocab_size:
            return f"{other.vocab_size} tokens instead of {self.vocab_size}"
        if self.control_ids != other.control_ids or self.eos_token_ids != other.eos_token_ids:
            ids = self.control_ids ^ other.control_ids or self.eos_token_ids ^ other.eos_token_ids
            return f"token {min(ids)} is special in one of them only"
        for token_id in range(self.vocab_size):
            ours, theirs = self.token_bytes(token_id), other.token_bytes(token_id)
            if ours != theirs:
                return f"token {token_id} is {theirs!r} instead of {ours!r}"
        return None

    def is_special(self, token_id: int) -> bool:
        """Whether `token_id` is a control token, which `skip_special_tokens` leaves out of a text."""
        return token_id in self.control_ids


class _WholeTexts(dict[int, str | None]):
    """The text of each token that is whole characters; None for the others, and for control tokens, which an output
    may leave out. Filled at first sight: all of a vocabulary takes 0.1 s and more, which no start has to spare.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], control_ids: frozenset[int]) -> None:
        super().__init__(dict.fromkeys(control_ids))
        self._token_bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        text: str | None
        try:
            text = self._token_bytes(token_id).decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


def _encode(backend: tokenizers.Tokenizer, text: str) -> list[int]:
    """Ids alone. A batch of one, as the library keeps the interpreter's lock for a single text: 4 s for 1 MB, measured
    on a busy machine, in which no other thread ran; without offsets it also takes half of the time."""
    (encoding,) = backend.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


def _affixes(
    backend: tokenizers.Tokenizer,
    bos_token_id: int | None,
    eos_token_ids: frozenset[int],
    add_bos: bool | None,
    add_eos: bool | None,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids put before and after every text: what the post-processor adds, unless the model's config says otherwise."""
    bare = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    extra = len(full) - len(bare)
    at = next((k for k in range(extra + 1) if full[k : k + len(bare)] == bare), 0) if extra > 0 else 0
    prefix, suffix = tuple(full[:at]), tuple(full[at + len(bare) :])
    if add_bos is not None:
        prefix = (bos_token_id,) if add_bos and bos_token_id is not None else ()
    if add_eos is not None:
        suffix = (min(eos_token_ids),) if add_eos and eos_token_ids else ()
    return prefix, suffix


class _PlainTwin:
    """A tokenizer that shares another's vocabulary but knows none of its control tokens; with an anchor, it has id -1.

    A twin is used because the switch that the library has (`encode_special_tokens`) is state that all threads
    share, and ignores added tokens without the special mark.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        added: Mapping[int, tokenizers.AddedToken],
        control_ids: frozenset[int],
        anchor: str | None = None,
    ) -> None:
        self._twin = tokenizers.Tokenizer(backend.model)
        if backend.normalizer is not None:
            self._twin.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._twin.pre_tokenizer = backend.pre_tokenizer
        self._twin.add_tokens([token for i, token in added.items() if i not in control_ids])
        if anchor is not None:
            self._twin.add_special_tokens([tokenizers.AddedToken(anchor, normalized=False, special=True)])
        # Tokens outside of the vocabulary get ids in the order they are added.
        ours = {token.content: i for i, token in added.items()}
        twins = self._twin.get_added_tokens_decoder()
        self._ids = {i: our for i, token in twins.items() if (our := ours.get(token.content, -1)) != i}

    def encode(self, text: str) -> list[int]:
        return [self._ids.get(i, i) for i in _encode(self._twin, text)]


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's alphabet: a printable character for each byte; the others follow from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(0x100 + k): b for k, b in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
CHAR_OF_BYTE = {b: c for c, b in BYTE_OF_CHAR.items()}


def spell_byte_level(text: str) -> bytes:
    """Bytes of a byte-level BPE token; a token outside the alphabet stands for its own text."""
    try:
        return bytes([BYTE_OF_CHAR[c] for c in text])
    except KeyError:
        return text.encode()


def spell_sentencepiece(text: str) -> bytes:
    """Bytes of a SentencePiece token: the mark U+2581 is a space, `<0xNN>` is one byte."""
    if byte := BYTE_TOKEN.fullmatch(text):
        return bytes([int(byte[1], 16)])
    return text.replace("▁", " ").encode()


def _spell_word_piece(text: str) -> bytes:
    return text[2:].encode() if text.startswith("##") else b" " + text.encode()


def _spelling(decoder: Any) -> tuple[Spelling, bool]:
    """How the tokens of a vocabulary are spelled, and whether a whole text loses its first space."""
    if decoder is None:
        return str.encode, False
    state = json.loads(decoder.__getstate__())
    parts = {part["type"]: part for part in state.get("decoders", [state])}
    unknown = parts.keys() - {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "WordPiece"}
    if unknown:
        raise ModelError(f"tokenizer.json has a decoder that octavo does not know: {', '.join(sorted(unknown))}")
    if "ByteLevel" in parts:
        return spell_byte_level, False
    if "WordPiece" in parts:
        return _spell_word_piece, True
    if "Metaspace" in parts:
        return spell_sentencepiece, parts["Metaspace"].get("prepend_scheme") != "never"
    return spell_sentencepiece, "Strip" in parts


def tokenizer_from_folder(path: str | Path) -> Tokenizer:
    """The tokenizer of a model folder: tokenizer.json and the configs beside it. ModelError names the file at fault.

    EOS is the union of what generation_config.json, config.json and tokenizer_config.json say; BOS is added if
    tokenizer_config.json has `add_bos_token`, else as the post-processor of tokenizer.json does.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    if not file.is_file():
        slow = [name for name in SLOW_TOKENIZER_FILES if (folder / name).is_file()]
        if slow:
            raise ModelError(
                f"{folder / slow[0]} is a tokenizer file that octavo does not read: convert it to tokenizer.json, "
                "for example by loading and saving the tokenizer with transformers"
            )
        raise ModelError(f"{folder} has no tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file} is broken: {error}") from error
    backend.no_padding()
    backend.no_truncation()
    config = read_if_there(folder / "tokenizer_config.json")
    special = {name: text for name, value in config.items() if name.endswith("_token") and (text := _token_text(value))}
    more = config.get("additional_special_tokens") or []
    declared = [*special.values(), *(text for value in more if (text := _token_text(value)))]
    # A vocabulary may hold a special token as if it were a word; tokens that it lacks are not added to it.
    backend.add_special_tokens([_special(text) for text in declared if backend.token_to_id(text) is not None])
    model_config = read_if_there(folder / "config.json")
    eos: set[int] = set()
    generation_config = read_if_there(folder / "generation_config.json")
    for source in (generation_config, model_config, model_config.get("text_config") or {}):
        value = source.get("eos_token_id")
        eos.update(i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int))
    if (i := backend.token_to_id(special.get("eos_token", ""))) is not None:
        eos.add(i)
    bos = backend.token_to_id(special["bos_token"]) if "bos_token" in special else None
    if bos is None and isinstance(model_config.get("bos_token_id"), int):
        bos = model_config["bos_token_id"]
    return Tokenizer(
        backend,
        bos_token_id=bos,
        eos_token_ids=eos,
        add_bos=config.get("add_bos_token"),
        add_eos=config.get("add_eos_token"),
        chat_templates=_folder_templates(folder, config),
        special_tokens=special,
    )


def _folder_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name; a file of its own goes before tokenizer_config.json."""
    if (file := folder / "chat_template.jinja").is_file():
        return {"default": file.read_text(encoding="utf-8")}
    value = read_if_there(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    return {entry["name"]: entry["template"] for entry in value or [] if {"name", "template"} <= entry.keys()}


def _special(text: str) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(text, normalized=False, special=True)


def _token_text(value: Any) -> str | None:
    """A special token is written as its text or as an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
