"""LangChain's own tests of chat and embedding classes, for its OpenAI classes on a server with the default model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

sys.path.append(str(Path(__file__).parents[1] / "server"))

from real_server import RealServer

NAME, OTHER_NAME = "smollm2-135m", "smol"
# Greedily a model of this size repeats itself for ever within a string of JSON; the seed makes chance repeat.
TEMPERATURE, SEED = 0.8, 1
OPTIONS = (
    "--max-model-len", "512", "--threads", "1", "--enable-force-include-usage",
    "--served-model-name", NAME, OTHER_NAME,
)  # fmt: skip
# What this model does not do, and what it raises; a failure of any other kind, and a success, are failures.
WHY: dict[str, tuple[type[Exception], str]] = {
    "test_agent_loop": (AssertionError, "Whether to call a tool is the model's choice: this one answers at once."),
    "test_json_mode": (
        OutputParserException,
        "JSON mode promises JSON; the two keys that are asked for are the model's to write.",
    ),
    "test_serdes": (AssertionError, "It compares with a recording that the repository of the class keeps."),
    "test_structured_output_pydantic_2_v1": (
        AssertionError,
        "The schema leaves a string without a limit, and this model repeats itself in it up to the end of its context: "
        "there is no call.",
    ),
    "test_tool_calling_with_no_arguments": (
        AssertionError,
        "How many calls tool_choice any makes is the model's choice, and this one makes more than the one that is "
        "expected.",
    ),
    "test_unicode_tool_call_integration": (
        AssertionError,
        "What a tool gets is the model's choice, and this one does not repeat the customer's name.",
    ),
}


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    running = RealServer(tmp_path_factory.mktemp("server") / "log", *OPTIONS)
    yield running.url + "/v1"
    assert running.close() == 0


@pytest.fixture(autouse=True)
def what_the_model_cannot(request: pytest.FixtureRequest) -> None:
    if (expected := WHY.get(request.node.originalname)) is not None:
        request.applymarker(pytest.mark.xfail(raises=expected[0], reason=expected[1], strict=True))


class TestUnit(ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": NAME, "base_url": "http://localhost:8000/v1", "api_key": "EMPTY"}


class TestChat(ChatModelIntegrationTests):
    @pytest.fixture(autouse=True)
    def served(self, url: str) -> None:
        self.url = url

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": NAME, "base_url": self.url, "api_key": "EMPTY", "temperature": TEMPERATURE, "seed": SEED}

    @property
    def model_override_value(self) -> str:
        return OTHER_NAME

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestEmbeddings(EmbeddingsIntegrationTests):
    @pytest.fixture(autouse=True)
    def served(self, url: str) -> None:
        self.url = url

    @property
    def embeddings_class(self) -> type[OpenAIEmbeddings]:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        # The class would send ids of OpenAI's tokenizer, which mean nothing to another model.
        return {"model": NAME, "base_url": self.url, "api_key": "EMPTY", "check_embedding_ctx_length": False}
