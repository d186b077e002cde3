"""litellm on a running `octavo serve`: python litellm_client.py [BASE_URL]

Needs: pip install litellm
"""

import asyncio
import json
import sys

import httpx
import litellm

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
name = httpx.get(f"{url}/models").json()["data"][0]["id"]
# The prefix says which API the server speaks: any server with OpenAI's, or vLLM's with its own fields.
server = {"model": f"hosted_vllm/{name}", "api_base": url, "api_key": "EMPTY"}
messages = [{"role": "user", "content": "Is it freezing in Oslo?"}]
asked = {"messages": messages, "temperature": 0, "max_tokens": 32, **server}

reply = litellm.completion(**asked)
print("completion:", repr(reply.choices[0].message.content))
print("usage:", reply.usage.prompt_tokens, reply.usage.completion_tokens)
chunks = litellm.completion(**asked, stream=True)
print("stream:", repr("".join(chunk.choices[0].delta.content or "" for chunk in chunks)))


async def main() -> None:
    reply = await litellm.acompletion(**asked)
    print("acompletion:", repr(reply.choices[0].message.content))
    chunks = await litellm.acompletion(**asked, stream=True)
    print("astream:", repr("".join([chunk.choices[0].delta.content or "" async for chunk in chunks])))
    reply = await litellm.acompletion(**asked | {"model": f"openai/{name}"})
    print("as openai/:", repr(reply.choices[0].message.content))


asyncio.run(main())

city = {"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo", "Quito"]}}, "required": ["city"]}
function = {"name": "temperature", "description": "The temperature in a city.", "parameters": city}
tools = [{"type": "function", "function": function}]
reply = litellm.completion(**server, messages=messages, temperature=0, tools=tools, tool_choice="required")
(call, *_) = reply.choices[0].message.tool_calls
print(f"tool: {call.function.name}({json.loads(call.function.arguments)['city']})")

texts = litellm.text_completion(**server, prompt="The capital of France is", temperature=0, max_tokens=8)
print("text completion:", repr(texts.choices[0].text))
vectors = litellm.embedding(**server, input=["It is freezing.", "It is warm."])
print("embeddings:", [len(entry["embedding"]) for entry in vectors.data])
