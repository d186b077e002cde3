"""Several requests at once, each printed as it grows: python async_streaming.py [MODEL]"""

import asyncio
import sys

from octavo import AsyncLLM, SamplingParams
from octavo.sampling_params import OutputKind


async def stream(llm: AsyncLLM, name: str, prompt: str) -> None:
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=24, output_kind=OutputKind.DELTA)
    # A loop that is left early, or cancelled, ends its request.
    async for output in llm.generate(prompt, params, request_id=name):
        for piece in output.outputs:
            print(f"{name}: {piece.text!r}")
            if piece.finish_reason is not None:
                print(f"{name}: finished by {piece.finish_reason}")


async def main() -> None:
    llm = AsyncLLM(model=sys.argv[1] if len(sys.argv) > 1 else None)
    try:
        prompts = {"first": "Once upon a time", "second": "The capital of France is"}
        await asyncio.gather(*(stream(llm, name, prompt) for name, prompt in prompts.items()))
    finally:
        llm.close()


asyncio.run(main())
