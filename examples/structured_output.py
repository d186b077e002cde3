"""Replies of a given shape from a running `octavo serve`, with OpenAI's client: python structured_output.py [BASE_URL]

Needs: pip install openai
"""

import sys
from typing import Literal

import openai
import pydantic


class Weather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=20)
    sky: Literal["clear", "cloudy", "rain", "snow"]
    degrees: int = pydantic.Field(ge=-40, le=50)


client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="EMPTY")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "It rains in Bergen, at 8 degrees. Put that into JSON."}]

# A pydantic model: its JSON schema goes with the request, and the reply comes back as an object.
parsed = client.chat.completions.parse(model=model, messages=messages, response_format=Weather, temperature=0)
print("parsed:", parsed.choices[0].message.parsed)

# The same with a schema of one's own.
schema = {"type": "object", "properties": {"degrees": {"type": "integer", "minimum": 0, "maximum": 9}}}
schema |= {"required": ["degrees"], "additionalProperties": False}
reply = client.chat.completions.create(
    model=model,
    messages=messages,
    response_format={"type": "json_schema", "json_schema": {"name": "weather", "schema": schema, "strict": True}},
)
print("schema:", reply.choices[0].message.content)

# What OpenAI's API does not have: one of several texts, a regular expression, a grammar.
for constraint in (
    {"choice": ["rain", "sun"]},
    {"regex": r"-?\d{1,2} (C|F)"},
    {"grammar": 'start: "It " ("rains" | "snows") " in " /[A-Z][a-z]{1,15}/ "."'},
):
    reply = client.chat.completions.create(
        model=model, messages=messages, extra_body={"structured_outputs": constraint}
    )
    print(f"{next(iter(constraint))}: {reply.choices[0].message.content}")
