"""LangChain's own tests of chat and embedding classes, for its OpenAI classes on a server with the default model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

sys.path.append(str(Path(__file__).parents[1] / "server"))

from real_server import RealServer

NAME = "smollm2-135m"
# Greedily a model of this size repeats itself for ever within a string of JSON; the server's seed makes chance repeat.
OPTIONS = ("--max-model-len", "512", "--seed", "1", "--enable-force-include-usage", "--served-model-name", NAME)
TEMPERATURE = 0.8
WHY = {
    "test_tool_calling_with_no_arguments": "How many calls tool_choice any makes is the model's choice: this one makes "
    "more than the one that is expected.",
    "test_unicode_tool_call_integration": "Which arguments a tool gets is the model's choice: this one does not repeat "
    "the customer's name.",
}


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Any:
    running = RealServer(tmp_path_factory.mktemp("server") / "log", *OPTIONS)
    yield running.url + "/v1"
    assert running.close() == 0


@pytest.fixture(autouse=True)
def what_the_model_cannot(request: pytest.FixtureRequest) -> None:
    """Strict: what it can after all is to be told."""
    if (why := WHY.get(request.node.originalname)) is not None:
        request.applymarker(pytest.mark.xfail(reason=why, strict=True))


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
        return {"model": NAME, "base_url": self.url, "api_key": "EMPTY", "temperature": TEMPERATURE}

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
