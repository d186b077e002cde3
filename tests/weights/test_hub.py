"""Models of a hub on this machine, each fetched by a process of its own: huggingface_hub reads HF_* on import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hub_server import Hub, serve
from weight_files import write_folder, write_gguf

CARD = b"---\nlicense: mit\ntags: []\n---\n# A model\n"
PROGRAM = """
import json, sys
from octavo.errors import ModelError
from octavo.weights.sources import resolve
try:
    source = resolve(**json.loads(sys.argv[1]))
except ModelError as error:
    print(json.dumps({"error": str(error)}))
else:
    fields = {name: str(getattr(source, name)) for name in ("kind", "path", "name", "origin", "licence", "digest")}
    print(json.dumps(fields))
"""
DEAD = "http://127.0.0.1:9"


@dataclass
class Answer:
    facts: dict[str, str]
    told: str


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("model")
    write_folder(folder)
    model = {path.name: path.read_bytes() for path in folder.iterdir()}
    model |= {"README.md": CARD, "tokenizer.json": b"{}", "generation_config.json": b"{}", "chat_template.jinja": b"x"}
    junk = {
        "pytorch_model.bin": b"pickle",
        "modeling_evil.py": b"raise SystemExit",
        "consolidated.safetensors": b"copy",
        "onnx/model.safetensors": b"other",
        "tf_model.h5": b"other",
    }
    other = model | {"config.json": b'{"architectures": ["Other"]}'}
    gguf = folder.parent / "m.gguf"
    write_gguf(gguf, ("F32",))
    pickled = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    files = {"a-Q4_0.gguf": gguf.read_bytes(), "a-Q8_0.gguf": gguf.read_bytes(), "README.md": CARD}
    repos = {
        "org/model": {"main": model | junk, "v2": other},
        "org/private": {"main": model},
        "org/gated": {"main": model},
        "org/pickled": {"main": pickled},
        "org/model-GGUF": {"main": files},
    }
    with serve(Hub(repos, {"org/private": "sesame", "org/gated": "sesame"})) as hub:
        yield hub


def resolve(home: Path, hub_url: str, model: str, **more: str) -> Answer:
    """resolve(model) in a process with HF_HOME `home`; upper-case keywords are environment variables."""
    keywords = {"model": model} | {name: value for name, value in more.items() if not name.isupper()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {"HF_HOME": str(home), "HF_ENDPOINT": hub_url, "HF_HUB_DISABLE_XET": "1"}
    environment |= {name: value for name, value in more.items() if name.isupper()}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(keywords)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return Answer(json.loads(done.stdout), done.stderr)


def test_fetched_once_and_then_offline(hub: Hub, tmp_path: Path) -> None:
    first = resolve(tmp_path, hub.url, "org/model")
    assert first.facts["kind"] == "folder" and first.facts["licence"] == "mit"
    assert first.facts["origin"] == f"{hub.url}/org/model"
    folder = Path(first.facts["path"])
    assert tmp_path in folder.parents
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "chat_template.jinja",
        "README.md",
        "model.safetensors.index.json",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    }
    assert "octavo: fetching org/model" in first.told and "licence: mit" in first.told

    hub.requests.clear()
    again = resolve(tmp_path, hub.url, "org/model")
    assert again.facts == first.facts and "octavo:" not in again.told
    assert not [request for request in hub.requests if request.endswith(".safetensors")]

    hub.requests.clear()
    offline = resolve(tmp_path, hub.url, "org/model", HF_HUB_OFFLINE="1")
    assert offline.facts == first.facts and not hub.requests
    unreachable = resolve(tmp_path, DEAD, "org/model")
    assert unreachable.facts | {"origin": ""} == first.facts | {"origin": ""}


def test_a_revision(hub: Hub, tmp_path: Path) -> None:
    facts = resolve(tmp_path, hub.url, "org/model", revision="v2").facts
    assert "Other" in (Path(facts["path"]) / "config.json").read_text()
    commit = hub.commit("org/model", "v2")
    assert commit and resolve(tmp_path, hub.url, "org/model", revision=commit).facts == facts
    error = resolve(tmp_path, hub.url, "org/model", revision="v3").facts["error"]
    assert error == f"org/model has no revision v3 at {hub.url}."


def test_another_folder_for_downloads(hub: Hub, tmp_path: Path) -> None:
    facts = resolve(tmp_path / "home", hub.url, "org/model", download_dir=str(tmp_path / "there")).facts
    assert tmp_path / "there" in Path(facts["path"]).parents


def test_a_token(hub: Hub, tmp_path: Path) -> None:
    assert "HF_TOKEN" in resolve(tmp_path, hub.url, "org/private").facts["error"]
    gated = resolve(tmp_path, hub.url, "org/gated").facts["error"]
    assert "org/gated is gated" in gated and "HF_TOKEN" in gated
    assert resolve(tmp_path, hub.url, "org/private", HF_TOKEN="sesame").facts["kind"] == "folder"


def test_a_gguf_file_of_a_model(hub: Hub, tmp_path: Path) -> None:
    facts = resolve(tmp_path, hub.url, "org/model-GGUF/a-Q4_0.gguf").facts
    assert facts["kind"] == "gguf" and facts["path"].endswith("a-Q4_0.gguf") and facts["licence"] == "mit"
    assert not (Path(facts["path"]).parent / "a-Q8_0.gguf").exists()
    for model in ("org/model-GGUF", "org/model-GGUF/b.gguf"):
        error = resolve(tmp_path, hub.url, model).facts["error"]
        assert "org/model-GGUF/a-Q4_0.gguf, org/model-GGUF/a-Q8_0.gguf" in error


def test_pickle_is_not_even_fetched(hub: Hub, tmp_path: Path) -> None:
    error = resolve(tmp_path, hub.url, "org/pickled").facts["error"]
    assert "only as pickle (pytorch_model.bin)" in error
    assert not list(tmp_path.rglob("*.bin"))


def test_no_such_model(hub: Hub, tmp_path: Path) -> None:
    error = resolve(tmp_path, hub.url, "org/nothing").facts["error"]
    assert f"{Path.cwd() / 'org/nothing'} does not exist" in error and hub.url in error and "\n" not in error


def test_no_network(tmp_path: Path) -> None:
    error = resolve(tmp_path, DEAD, "org/model").facts["error"]
    assert f"{DEAD} does not answer" in error and str(Path.cwd() / "org/model") in error and "\n" not in error
    error = resolve(tmp_path, DEAD, "org/model", HF_HUB_OFFLINE="1").facts["error"]
    assert "not in the cache" in error and "HF_HUB_OFFLINE" in error
