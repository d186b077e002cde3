"""A sandbox for Jinja templates of untrusted model files: no side effects, and bounded work, time and size."""

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# A prompt is far below these; they stop a template that would fill the memory or never end.
MAX_CHARS = 32 * 1024 * 1024
MAX_WORK = 1_000_000
MAX_SECONDS = 10.0
MAX_WIDTH = 100_000
WIDE_FORMAT = re.compile(r"\d{6}")


def compile_template(source: str) -> CodeType:
    """Code of a template, for `run_template`; jinja2.TemplateError if `source` is none."""
    sandbox = _Sandbox()
    try:
        tree = _BoundedConcat().visit(sandbox.parse(source))
        return sandbox.compile(tree)
    except RecursionError:
        raise jinja2.TemplateError("it is nested too deeply") from None


def run_template(code: CodeType, variables: Mapping[str, Any]) -> str:
    """The text that a template yields; jinja2.TemplateError, with the template's own text where it raised one."""
    # A fresh environment holds the work counted so far, so that renders in other threads do not meet in it.
    sandbox = _Sandbox()
    pieces, size = [], 0
    try:
        template = jinja2.Template.from_code(sandbox, code, sandbox.make_globals(None))
        for piece in template.generate(variables):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
    except RecursionError:
        raise jinja2.TemplateError("it calls itself without end") from None
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        # What a template does to values that it did not expect surfaces as Python's own errors.
        raise jinja2.TemplateError(str(error)) from error
    return "".join(pieces)


class _BoundedConcat(NodeTransformer):
    """Turns `a ~ b`, which the sandbox cannot intercept, into a `join`, which it can."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(parts, "join", [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - the class attribute that jinja2 reads

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation])
        self._work = 0
        self._deadline = time.monotonic() + MAX_SECONDS
        self.filters.update(
            tojson=_to_json,
            join=_join,
            replace=lambda text, old, new, count=None: _bounded(str(text).replace, str(old), str(new), count or -1),
            center=lambda text, width=80: _bounded(str(text).center, width),
            format=lambda text, *args, **kwargs: self.call_binop(None, "%", str(text), kwargs or args),
        )
        # `indent` and `wordwrap` grow a text by a factor at most, given a bounded width.
        for name in ("indent", "wordwrap"):
            self.filters[name] = _narrow(self.filters[name])
        self.globals.update(range=self._range, raise_exception=_raise_exception, strftime_now=_strftime_now)
        del self.globals["lipsum"]

    def _count(self, work: int) -> None:
        self._work += work
        if self._work > MAX_WORK or time.monotonic() > self._deadline:
            raise SecurityError("it takes too much work")

    def _range(self, *args: int) -> range:
        numbers = range(*args)
        self._count(len(numbers))
        return numbers

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._count(1)
        if isinstance(getattr(obj, "__self__", None), str):
            _check_method(obj, args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        method: Callable[..., str] = wrapped  # the sandbox's own formatter, which looks attributes up with care

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_method(value, args, kwargs)
            return method(*args, **kwargs)

        return bounded

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._count(1)
        if operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_size(len(left) + len(right))
        elif operator == "*" and (hasattr(left, "__len__") or hasattr(right, "__len__")):
            _check_size(_extent(left) * _extent(right))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * abs(right))
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        return super().call_binop(context, operator, left, right)


def _extent(value: Any) -> int:
    """The factor that a value is in the length of a product with a text or list."""
    if isinstance(value, int):
        return abs(value)
    return len(value) if hasattr(value, "__len__") else 1


def _check_size(size: int) -> None:
    if size > MAX_CHARS:
        raise SecurityError(f"it makes a text longer than {MAX_CHARS} characters")


def _check_width(width: Any) -> None:
    if isinstance(width, int) and abs(width) > MAX_WIDTH:
        raise SecurityError(f"it uses a width above {MAX_WIDTH}")


def _check_format(text: str, args: tuple[Any, ...]) -> None:
    """A width stands in the format, or is one of the arguments."""
    if WIDE_FORMAT.search(text):
        raise SecurityError(f"it uses a width above {MAX_WIDTH}")
    if "*" in text or ("{" in text and re.search(r":[^}]*\{", text)):
        for arg in args:
            _check_width(arg)


def _check_method(method: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Bounds what a method of a string can make of it."""
    text, name, values = method.__self__, method.__name__, (*args, *kwargs.values())
    if name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        for value in values:
            _check_width(value)
    elif name in ("format", "format_map"):
        _check_format(text, values)
    elif name == "replace" and len(values) >= 2 and all(isinstance(v, str) for v in values[:2]):
        _check_size(len(text) + text.count(values[0]) * len(values[1]))
    elif name == "join" and args and hasattr(args[0], "__len__"):
        _check_size(len(text) * len(args[0]) + sum(len(v) for v in args[0] if isinstance(v, str)))


def _bounded(method: Callable[..., str], *args: Any) -> str:
    _check_method(method, args, {})
    return method(*args)


def _join(value: Any, d: str = "", attribute: Any = None) -> str:
    """The filter `join`, with its size checked first. Attributes are looked up in mappings only."""
    items = [item[attribute] for item in value] if attribute is not None else value
    texts = [item if isinstance(item, str) else str(item) for item in items]
    return _bounded(str(d).join, texts)


def _narrow(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose numbers are bounded."""
    pass_arg = getattr(function, "jinja_pass_arg", None)

    def narrow(*args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            _check_width(value)
        return function(*args, **kwargs)

    if pass_arg is not None:
        narrow.jinja_pass_arg = pass_arg  # type: ignore[attr-defined]
    return narrow


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, which a model has never seen."""
    if indent is not None and indent > 16:
        raise SecurityError("it indents JSON by more than 16")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
