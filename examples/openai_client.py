"""Streams a chat from a running `octavo serve`, with OpenAI's client: python openai_client.py [BASE_URL]

Needs: pip install openai
"""

import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="EMPTY")
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[
        {"role": "system", "content": "You are a helpful assistant."},
        {"role": "user", "content": "Tell me about the sea."},
    ],
    temperature=0.7,
    max_tokens=100,
    stream=True,
    stream_options={"include_usage": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
    if chunk.usage is not None:
        print(f"\n({chunk.usage.prompt_tokens} prompt tokens, {chunk.usage.completion_tokens} generated)")
