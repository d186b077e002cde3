"""Pydantic objects from a running `octavo serve`, with instructor: python instructor_client.py [BASE_URL]

Needs: pip install instructor
"""

import sys
from typing import Literal

import instructor
import openai
import pydantic


class Weather(pydantic.BaseModel):
    """The weather in a city."""

    model_config = pydantic.ConfigDict(extra="forbid")  # else the model may go on with properties of its own
    city: str = pydantic.Field(max_length=20)
    sky: Literal["clear", "cloudy", "rain", "snow"]
    degrees: int = pydantic.Field(ge=-40, le=50)


client = openai.OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1", api_key="EMPTY")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "It rains in Bergen, at 8 degrees."}]

# The ways to ask that a grammar enforces, so that no reply has to be asked for again.
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    weather = instructor.from_openai(client, mode=mode).create(
        model=model, messages=messages, response_model=Weather, temperature=0, max_retries=0
    )
    print(f"{mode.name}: {weather!r}")

# The object while it grows: what has not come yet is None.
patched = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
*_, last = patched.create_partial(model=model, messages=messages, response_model=Weather, temperature=0)
print(f"partial: {last!r}")
