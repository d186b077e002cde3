"""The sandbox: templates of hostile model files have no effect and come to an end."""

import time
import tracemalloc
from pathlib import Path

import jinja2
import pytest

from octavo.text.sandbox import compile_template, run_template


def render(source: str, **variables: object) -> str:
    return run_template(compile_template(source), variables)


WALKS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ cycler.__init__.__globals__.os.system('touch FILE') }}",
    "{{ self.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__['__builtins__']['open']('FILE', 'w') }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ range.__self__ }}",
    "{{ range.__func__.__globals__ }}",
    "{{ strftime_now.__globals__.datetime }}",
    "{{ (messages|attr('__class__')) }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ ''['__class__']['__mro__'] }}",
    "{{ lipsum.__globals__ }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ dict.fromkeys.__self__.__subclasses__() }}",
]


@pytest.mark.parametrize("source", WALKS)
def test_walking_attributes_has_no_effect(source: str, tmp_path: Path) -> None:
    file = tmp_path / "made"
    try:
        text = render(source.replace("FILE", str(file)), messages=[{"role": "user"}])
    except jinja2.TemplateError:
        text = ""
    assert not file.exists()
    assert not any(word in text for word in ("class", "module", "function", "object at"))


@pytest.mark.parametrize(
    "source", ["{% set _ = messages.append(1) %}", "{% set _ = m.update({'a': 1}) %}", "{% set _ = messages.clear() %}"]
)
def test_values_cannot_be_changed(source: str) -> None:
    messages: list[int] = [1]
    m: dict[str, int] = {}
    with pytest.raises(jinja2.TemplateError):
        render(source, messages=messages, m=m)
    assert (messages, m) == ([1], {})


BOMBS = [
    "{{ 'a' * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ [1] * 10**9 }}",
    "{{ 10 ** (10 ** 10) }}",
    "{{ 'x'.center(10**9) }}",
    "{{ 'x'.ljust(10**9) }}",
    "{{ 'x'.zfill(width=10**9) }}",
    "{{ 'x' | center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ 'x\ny' | indent(10**9) }}",
    "{{ ('a' * 100000) | replace('a', 'a' * 100000) }}",
    "{{ ('a' * 100000).replace('a', 'a' * 100000) }}",
    "{{ range(100000) | join('x' * 100000) }}",
    "{{ ('x' * 100000).join(['a'] * 100000) }}",
    "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(999) %}{% for j in range(999) %}{% for k in range(999) %}{% endfor %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% for i in range(90000) %}{{ 'x' * 1000 }}{% endfor %}",
]


@pytest.mark.parametrize("source", BOMBS)
def test_bombs_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.text.sandbox.MAX_SECONDS", 2.0)
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(jinja2.TemplateError):
            render(source)
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - start < 60


def test_what_templates_do_every_day_works() -> None:
    assert render("{{ 'a' ~ 1 ~ x }}", x="<b>") == "a1<b>"
    assert render("{{ 'a' + x }}", x="b") == "ab"
    assert render("{{ x | tojson }}", x={"a": "<é>", "b": [1, None]}) == '{"a": "<é>", "b": [1, null]}'
    assert render("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'
    assert (
        render("{{ x | join(', ') }}|{{ y | join('-', attribute='k') }}", x=["a", 2], y=[{"k": 1}, {"k": 2}])
        == "a, 2|1-2"
    )
    assert render("{{ x | replace('a', 'b') | upper }} {{ x | replace('a', 'c', 1) }}", x="aa") == "BB ca"
    assert render("{{ '%s: %d' % ('a', 3) }} {{ '%s' | format('b') }} {{ '{} {x}'.format(1, x=2) }}") == "a: 3 b 1 2"
    assert (
        render("{{ 'x\ny' | indent(2) }} {{ 'a' * 3 }} {{ 2 ** 5 }} {{ 7 % 4 }} {{ [1] + [2] }}")
        == "x\n  y aaa 32 3 [1, 2]"
    )
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10


def test_large_texts_of_users_pass() -> None:
    text = "x" * 5_000_000
    assert render("{{ '<' + x.strip() + '>' }}", x=text) == f"<{text}>"
    assert render("{{ x.replace('{', '') }}", x="{0:1000000000}") == "0:1000000000}"


def test_a_user_s_text_is_no_template() -> None:
    assert render("{{ x }}", x="{{ 1 + 1 }}{% raw %}") == "{{ 1 + 1 }}{% raw %}"
