"""What an output must be: vLLM's names for it, checked when the object is made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import RequestError

# Bounds on what is compiled, so that no request can keep the compiler busy for long.
MAX_SCHEMA_BYTES = 2**20
MAX_SCHEMA_DEPTH = 100
MAX_SCHEMA_REFERENCES = 400
MAX_OPTIONAL_PROPERTIES = 400  # of one object: each may be the next one, and the parser looks at all of them
MAX_GRAMMAR_BYTES = 2**16
MAX_GRAMMAR_RULES = 400
MAX_CHOICES = 20_000

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """One constraint on an output: a JSON schema, a regular expression, one of several texts, a grammar, any JSON
    object, or free text with constrained parts after certain triggers. RequestError where it is not exactly one.

    `grammar` is in llguidance's dialect of Lark, or in GBNF (`root ::= ...`). A reply ends where nothing may follow.
    Between the parts of JSON may stand a space, or a line break and up to 32 spaces or tabs; `whitespace_pattern` is
    a regular expression for what may stand there instead, `disable_any_whitespace` forbids any. With
    `disable_additional_properties` an object has no properties but those that the schema names.

    After construction `json` and `structural_tag` hold JSON text, and `choice` a tuple.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        if len(given := self._given) != 1:
            raise _error(
                f"structured_outputs takes exactly one of {', '.join(KINDS)}; got {' and '.join(given) or 'none'}."
            )
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            if not isinstance(getattr(self, name), bool):
                raise _error(f"structured_outputs.{name} must be true or false.")
        if not isinstance(self.json_object, bool | None):
            raise _error("structured_outputs.json_object must be true or false.")
        for name in ("regex", "grammar", "whitespace_pattern"):
            _check_text(name, getattr(self, name))
        if self.whitespace_pattern is not None and self.disable_any_whitespace:
            raise _error("structured_outputs takes whitespace_pattern or disable_any_whitespace, not both.")
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("json", "structural_tag"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, _json_text(name, value))

    @property
    def kind(self) -> str:
        """Which of the constraints it is."""
        (kind,) = self._given
        return kind

    @property
    def field(self) -> str:
        """What errors call it."""
        return f"structured_outputs.{self.kind}"

    @property
    def _given(self) -> list[str]:
        """An empty text is given too: as a regular expression it matches nothing but itself."""
        return [kind for kind in KINDS if getattr(self, kind) is not None and getattr(self, kind) is not False]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGrammar(StructuredOutputsParams):
    """The grammar of calls that is made of a request's tools: the bounds of grammars that clients write, rules of which
    may lead to one another, are not for its rule for each tool.
    """

    def __post_init__(self) -> None:
        """Nothing of it is a client's own."""

    @property
    def field(self) -> str:
        return "tools"


def check_schema(schema: Any, field: str) -> None:
    """Refuses a schema that would keep the compiler busy for too long, or that it takes for less than it says."""
    references = 0
    level: list[Any] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
                references += "$ref" in value
                _check_bounds(value, field)
                properties, required = value.get("properties"), value.get("required")
                least, sure = value.get("minProperties"), len(required) if isinstance(required, list) else 0
                if isinstance(least, int) and least > max(1, sure):
                    raise _error(
                        f"{field} asks for minProperties = {least}, which cannot be enforced: a name could come twice. "
                        "List them in `required`."
                    )
                if isinstance(properties, dict):
                    optional = len(properties) - sure
                    if optional > MAX_OPTIONAL_PROPERTIES:
                        raise _error(
                            f"{field} has an object with {optional} properties that are not required; at most "
                            f"{MAX_OPTIONAL_PROPERTIES} are possible. List more of them in `required`."
                        )
            elif isinstance(value, list):
                below += value
        level = below
        if not level:
            break
    else:
        raise _error(f"{field} is nested more than {MAX_SCHEMA_DEPTH} levels deep.")
    if references > MAX_SCHEMA_REFERENCES:
        raise _error(f"{field} has {references} $ref; at most {MAX_SCHEMA_REFERENCES} are possible.")


def _check_bounds(schema: dict[str, Any], field: str) -> None:
    """Between an excluded whole number and a bound less than 1 away the compiler would let the number itself pass."""
    excluded = [schema.get(name) for name in ("exclusiveMinimum", "exclusiveMaximum")]
    low = [bound for name in ("minimum", "exclusiveMinimum") if isinstance(bound := schema.get(name), int | float)]
    high = [bound for name in ("maximum", "exclusiveMaximum") if isinstance(bound := schema.get(name), int | float)]
    if low and high and 0 < min(high) - max(low) < 1 and schema.get("type") != "integer":
        for bound in excluded:
            if isinstance(bound, int | float) and bound == round(bound):
                raise _error(
                    f"{field} excludes {bound} from numbers between {max(low)} and {min(high)}, which cannot be "
                    "enforced. Use a bound that is no whole number, such as 0.001 for 0."
                )


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise _error(f"structured_outputs.{name} must be a text.")
    if len(value.encode("utf-8", "replace")) > MAX_GRAMMAR_BYTES:
        raise _error(f"structured_outputs.{name} has more than {MAX_GRAMMAR_BYTES} bytes.")
    _check_unicode(name, value)


def _check_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _error(f"structured_outputs.{name} holds an unpaired surrogate, which is no character.") from None


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not value or not all(isinstance(entry, str) for entry in value):
        raise _error("structured_outputs.choice must be a list of at least one text.")
    if len(value) > MAX_CHOICES or sum(map(len, value)) > MAX_SCHEMA_BYTES:
        raise _error(
            f"structured_outputs.choice may hold {MAX_CHOICES} texts of {MAX_SCHEMA_BYTES} characters together."
        )
    _check_unicode("choice", "".join(value))
    return tuple(value)


def _json_text(name: str, value: object) -> str:
    """The JSON text of a schema that is given as such or as what it says; the order of its keys is kept."""
    field = f"structured_outputs.{name}"
    try:
        if isinstance(value, str):
            value = json.loads(value)
        if value is True:
            value = {}
        if not isinstance(value, Mapping):
            raise _error(f"{field} must be a JSON object.")
        text = json.dumps(value, allow_nan=False)
    except RecursionError:
        raise _error(f"{field} is nested more than {MAX_SCHEMA_DEPTH} levels deep.") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise _error(f"{field} is no JSON: {error}.") from None
    if len(text) > MAX_SCHEMA_BYTES:
        raise _error(f"{field} has {len(text)} bytes; at most {MAX_SCHEMA_BYTES} are possible.")
    return text


def _error(message: str) -> RequestError:
    return RequestError(message, "structured_outputs")
