"""LangChain's OpenAI classes on a running `octavo serve`: python langchain_client.py [BASE_URL]

Needs: pip install langchain-openai
"""

import asyncio
import sys
from typing import Literal

import openai
import pydantic
from langchain_core.messages import AIMessageChunk
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
server = {"base_url": url, "api_key": "EMPTY"}
name = openai.OpenAI(**server).models.list().data[0].id


@tool
def temperature(city: Literal["Lima", "Oslo", "Quito"]) -> int:
    """The temperature in a city, in degrees Celsius."""
    return {"Lima": 19, "Oslo": -3, "Quito": 15}[city]


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    city: str = pydantic.Field(max_length=20)
    sky: Literal["clear", "cloudy", "rain", "snow"]
    degrees: int = pydantic.Field(ge=-40, le=50)


# Without stream_usage this client asks for the usage of a stream where it talks to OpenAI only.
chat = ChatOpenAI(model=name, temperature=0, max_tokens=32, stream_usage=True, **server)
question = "Is it freezing in Oslo?"

whole = chat.invoke(question)
print("invoke:", repr(whole.text))
print("usage:", whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"])
streamed = AIMessageChunk("")
for chunk in chat.stream(question):
    streamed += chunk
print("stream:", repr(streamed.text))
print("streamed usage:", streamed.usage_metadata["input_tokens"], streamed.usage_metadata["output_tokens"])


async def main() -> None:
    print("ainvoke:", repr((await chat.ainvoke(question)).text))
    print("astream:", repr("".join([chunk.text async for chunk in chat.astream(question)])))


asyncio.run(main())
chain = ChatPromptTemplate.from_messages([("system", "Answer in one word."), ("user", "{question}")]) | chat
print("batch:", [message.text for message in chain.batch([{"question": question}, {"question": "And in Lima?"}])])

# tool_choice="any" makes even the smallest model call a tool; the default leaves the choice to it.
caller = ChatOpenAI(model=name, temperature=0, **server)
asked = caller.bind_tools([temperature], tool_choice="any", parallel_tool_calls=False).invoke(question)
results = [temperature.invoke(call) for call in asked.tool_calls]
for call, result in zip(asked.tool_calls, results, strict=True):
    print(f"tool: {call['name']}({call['args']['city']}) = {result.content}")
print("answer:", repr(chat.invoke([("user", question), asked, *results]).text))

for method in ("json_schema", "function_calling"):
    weather = caller.with_structured_output(Weather, method=method).invoke("It rains in Bergen, at 8 degrees.")
    print(f"{method}: {weather!r}")

complete = OpenAI(model=name, temperature=0, max_tokens=16, **server)
print("completion:", repr(complete.invoke("The capital of France is")))
print("streamed completion:", repr("".join(complete.stream("The capital of France is"))))

# Lengths are the server's concern: this client would count OpenAI's tokens, with a tokenizer that it fetches.
embeddings = OpenAIEmbeddings(model=name, check_embedding_ctx_length=False, **server)
vectors = embeddings.embed_documents(["It is freezing.", "It is warm."])
print("embeddings:", [len(vector) for vector in vectors], vectors[0] == embeddings.embed_query("It is freezing."))
