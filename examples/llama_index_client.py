"""LlamaIndex on a running `octavo serve`: python llama_index_client.py [BASE_URL]

Needs: pip install llama-index-llms-openai-like
"""

import asyncio
import sys
from typing import Literal

import httpx
import pydantic
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
model = httpx.get(f"{url}/models").json()["data"][0]
server = {"model": model["id"], "api_base": url, "api_key": "EMPTY", "context_window": model["max_model_len"]}


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str = pydantic.Field(max_length=20)
    sky: Literal["clear", "cloudy", "rain", "snow"]
    degrees: int = pydantic.Field(ge=-40, le=50)


def temperature(city: Literal["Lima", "Oslo", "Quito"]) -> int:
    """The temperature in a city, in degrees Celsius."""
    return {"Lima": 19, "Oslo": -3, "Quito": 15}[city]


complete = OpenAILike(**server, temperature=0, max_tokens=16)
print("complete:", repr(complete.complete("The capital of France is").text))
print("streamed:", repr("".join(piece.delta for piece in complete.stream_complete("The capital of France is"))))

chat = OpenAILike(**server, is_chat_model=True, is_function_calling_model=True, temperature=0, max_tokens=64)
messages = [ChatMessage(role="user", content="Is it freezing in Oslo?")]
print("chat:", repr(chat.chat(messages).message.content))
print("streamed chat:", repr("".join(piece.delta or "" for piece in chat.stream_chat(messages))))
print("async chat:", repr(asyncio.run(chat.achat(messages)).message.content))

tool = FunctionTool.from_defaults(temperature)
reply = chat.chat_with_tools([tool], chat_history=messages, tool_required=True)
(call, *_) = chat.get_tool_calls_from_response(reply)
print(f"tool: {call.tool_name}({call.tool_kwargs['city']}) = {tool(**call.tool_kwargs).content}")

weather = chat.as_structured_llm(Weather).complete("It rains in Bergen, at 8 degrees.").raw
print(f"structured: {weather!r}")
