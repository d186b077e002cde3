"""LangChain's class for vLLM's server on a running `octavo serve`: python langchain_vllm.py [BASE_URL]

Needs: pip install langchain-community openai
"""

import asyncio
import sys

import openai
from langchain_community.llms import VLLMOpenAI

url = sys.argv[1] if len(sys.argv) > 1 else "http://localhost:8000/v1"
name = openai.OpenAI(base_url=url, api_key="EMPTY").models.list().data[0].id
complete = VLLMOpenAI(openai_api_base=url, openai_api_key="EMPTY", model_name=name, temperature=0, max_tokens=16)
prompt = "The capital of France is"

print("invoke:", repr(complete.invoke(prompt)))
print("stream:", repr("".join(complete.stream(prompt))))
print("ainvoke:", repr(asyncio.run(complete.ainvoke(prompt))))
print("generate:", [output[0].text for output in complete.generate([prompt, "One, two,"]).generations])
# What OpenAI's API does not have goes into the body as it is.
chosen = complete.bind(extra_body={"structured_outputs": {"choice": [" Paris", " Rome"]}})
print("choice:", repr(chosen.invoke(prompt)))
