"""Replies with calls as the models' publishers document them, by format; written out here, not made by our own code."""

from __future__ import annotations

from typing import Any, NamedTuple

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "where": {"type": "object"},
            "exact": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
    "now": {"type": "object", "properties": {}},
}


class Case(NamedTuple):
    format: str
    text: str
    calls: list[tuple[str, dict[str, Any]]]
    content: str = ""


PARIS = ("get_weather", {"city": "Paris", "days": 2})
NESTED = (
    "get_weather",
    {"city": 'São "X" {[<tool_call>]}\n\\', "where": {"a": [{"b": [1, -2.5e3, None]}, {}]}, "exact": True},
)
NESTED_JSON = (
    r'{"city": "São \"X\" {[<tool_call>]}\n\\", "where": {"a": [{"b": [1, -2.5e3, null]}, {}]}, "exact": true}'
)
NOW: tuple[str, dict[str, Any]] = ("now", {})

D_ALL, D_ALL_END = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"
D_CALL, D_SEP, D_END = "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁sep\uff5c>", "<\uff5ctool▁call▁end\uff5c>"

CASES = [
    Case(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>',
        [PARIS],
    ),
    Case(
        "hermes",
        "Let me see.\n\n<tool_call>\n"
        + '{"name": "get_weather", "arguments": '
        + NESTED_JSON
        + '}\n</tool_call>\n<tool_call>\n{"arguments": {}, "name": "now"}\n</tool_call>',
        [NESTED, NOW],
        "Let me see.",
    ),
    Case("hermes", '<tool_call>{"name": "now", "arguments": {}}</tool_call> Done <b>', [NOW], "Done <b>"),
    # Granite 3 and others write a list where Hermes writes objects.
    Case("granite", '<|tool_call|>[{"name": "now", "arguments": {}}]', [NOW]),
    Case(
        "granite",
        '<tool_call>[{"arguments": ' + NESTED_JSON + ', "name": "get_weather"}, {"name": "now", "arguments": {}}]',
        [NESTED, NOW],
    ),
    Case(
        "llama3_json",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris", "days": 2}}',
        [PARIS],
    ),
    Case(
        "llama3_json",
        '\n{"name": "get_weather", "parameters": ' + NESTED_JSON + '}; {"name": "now", "parameters": {}}',
        [NESTED, NOW],
    ),
    Case(
        "mistral",
        'Sure.[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}, '
        '{"name": "now", "arguments": {}}]',
        [PARIS, NOW],
        "Sure.",
    ),
    Case(
        "mistral",
        "[TOOL_CALLS]get_weather[ARGS]" + NESTED_JSON + "[TOOL_CALLS]now[CALL_ID]a1B2c3D4e[ARGS]{}",
        [NESTED, NOW],
    ),
    Case("mistral", '[TOOL_CALLS]get_weather{"city": "Paris", "days": 2}', [PARIS]),
    Case(
        "deepseek_v3",
        f"Hm.{D_ALL}{D_CALL}function{D_SEP}get_weather\n```json\n{NESTED_JSON}\n```{D_END}\n"
        f"{D_CALL}function{D_SEP}now\n```json\n{{}}\n```{D_END}{D_ALL_END}",
        [NESTED, NOW],
        "Hm.",
    ),
    Case(
        "deepseek_v31",
        f'{D_ALL}{D_CALL}get_weather{D_SEP}{{"city": "Paris", "days": 2}}{D_END}'
        f"{D_CALL}now{D_SEP}{{}}{D_END}{D_ALL_END}",
        [PARIS, NOW],
    ),
    Case(
        "qwen3_coder",
        'I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRue "A"\n<b>2</b>\n</parameter>\n'
        '<parameter=where>\n{"a": [1, {"b": null}]}\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n'
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        [
            (
                "get_weather",
                {"city": 'Rue "A"\n<b>2</b>', "where": {"a": [1, {"b": None}]}, "exact": True, "days": 3},
            ),
            NOW,
        ],
        "I look.",
    ),
    # The model is known to forget the outer tag.
    Case("qwen3_xml", "<function=now>\n</function>\n</tool_call>", [NOW]),
    Case(
        "seed_oss",
        "<seed:tool_call>\n<function=get_weather>\n<parameter=city>12</parameter>\n</function>\n</seed:tool_call>",
        [("get_weather", {"city": "12"})],
    ),
    Case(
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris</parameter>\n'
        '<parameter name="days">2</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        [PARIS, NOW],
    ),
    Case(
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>\n<tool_call>now\n</tool_call>",
        [PARIS, NOW],
    ),
    Case("pythonic", '[get_weather(city="Paris", days=2), now()]', [PARIS, NOW]),
    Case(
        "llama4_pythonic",
        "<|python_start|>[get_weather(city='It\\'s \"x\"\\n[]', where={'a': [1, -2.5, None]}, exact=True, tags=['a',])]"
        "<|python_end|>",
        [("get_weather", {"city": 'It\'s "x"\n[]', "where": {"a": [1, -2.5, None]}, "exact": True, "tags": ["a"]})],
    ),
    Case(
        "olmo3",
        'First.\n<function_calls>\nget_weather(city="Paris", days=2)\nnow()\n</function_calls>',
        [PARIS, NOW],
        "First.",
    ),
    Case(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Paris, {x}<escape>,days:2,tags:[<escape>a<escape>,"
        "<escape>b<escape>],where:{a:null}}<end_function_call><start_function_call>call:now{}<end_function_call>",
        [("get_weather", {"city": "Paris, {x}", "days": 2, "tags": ["a", "b"], "where": {"a": None}}), NOW],
    ),
    Case(
        "kimi_k2",
        "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        + NESTED_JSON
        + "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        [NESTED, NOW],
        "Ok.",
    ),
    Case("phi4_mini_json", 'functools[{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}]', [PARIS]),
    Case("phi4_mini_json", '<|tool_call|>[{"name": "now", "arguments": {}}]<|/tool_call|>', [NOW]),
    Case(
        "gemma4",
        'Ok.<|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>',
        [PARIS, NOW],
        "Ok.",
    ),
    Case("gemma4", '<|tool_call>call:get_weather{city:"Paris", days:2}<tool_call|>', [PARIS]),
    Case(
        "lfm2",
        '<|tool_call_start|>[get_weather(city="Paris", days=2)]<|tool_call_end|>On it.',
        [PARIS],
        "On it.",
    ),
    Case("granite-20b-fc", '<function_call> {"name": "now", "arguments": {}}', [NOW]),
    Case("longcat", '<longcat_tool_call>{"name": "now", "arguments": {}}</longcat_tool_call>', [NOW]),
    Case("jamba", '<tool_calls>[\n{"name": "now", "arguments": {}}\n]</tool_calls>', [NOW]),
    Case(
        "generic",
        '[{"name": "get_weather", "arguments": ' + NESTED_JSON + '}, {"name": "now", "arguments": {}}]',
        [
            NESTED,
            NOW,
        ],
    ),
    Case("generic", '{"name": "now", "arguments": {}}', [NOW]),
]
