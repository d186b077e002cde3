"""Several chats at once on a running `octavo serve`, with OpenAI's async client: python openai_async.py [BASE_URL]

Needs: pip install openai
"""

import asyncio
import sys

import openai

URL = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
TOPICS = ["the sea", "a lighthouse", "the wind"]


async def tell(client: openai.AsyncOpenAI, model: str, topic: str) -> str:
    """Streamed: the reply is read as it is made, beside the others."""
    pieces = []
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell me about {topic}."}],
        temperature=0,
        max_tokens=40,
        stream=True,
    )
    async for chunk in stream:
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(pieces)


async def main() -> None:
    async with openai.AsyncOpenAI(base_url=URL, api_key="EMPTY") as client:
        model = (await client.models.list()).data[0].id
        for topic, reply in zip(
            TOPICS, await asyncio.gather(*(tell(client, model, topic) for topic in TOPICS)), strict=True
        ):
            print(f"{topic}: {reply!r}")
        # The same model completes texts and makes vectors of them.
        completion = await client.completions.create(model=model, prompt=TOPICS, max_tokens=8, temperature=0)
        print("completions:", [choice.text for choice in completion.choices])
        vectors = await client.embeddings.create(model=model, input=TOPICS)
        print("embeddings:", [len(entry.embedding) for entry in vectors.data])


asyncio.run(main())
