"""Lets a model call functions of this program, on a running `octavo serve`: python tool_calls.py [BASE_URL]

Needs: pip install openai
"""

import json
import sys
from typing import Literal

import openai

City = Literal["Lima", "Oslo", "Quito"]


def temperature(city: City) -> int:
    return {"Lima": 19, "Oslo": -3, "Quito": 15}[city]


tools = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "The temperature in a city, in degrees Celsius.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Lima", "Oslo", "Quito"]}},
                "required": ["city"],
            },
        },
    }
]
client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="EMPTY")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Is it freezing in Oslo?"}]

# "required" makes even the smallest model write a call that fits; "auto", the default, leaves the choice to it.
asked = client.chat.completions.create(
    model=model, messages=messages, tools=tools, tool_choice="required", parallel_tool_calls=False, temperature=0
)
message = asked.choices[0].message
messages.append({"role": "assistant", "content": message.content, "tool_calls": message.tool_calls})
for call in message.tool_calls or []:
    result = temperature(**json.loads(call.function.arguments))
    print(f"{call.function.name}({call.function.arguments}) = {result}")
    messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})

stream = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=60, stream=True)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
