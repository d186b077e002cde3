"""Who may call what: keys, origins, header sizes, and what the log does not say."""

from __future__ import annotations

import gc
import logging
import socket
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from server_world import World
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.server import protocol
from octavo.server.app import create_app
from octavo.server.auth import OPEN_PATHS

KEY = "a-secret-Key-123"


def routes_of(world: World) -> list[tuple[str, str]]:
    app = create_app(world.context)
    found = [
        (method, route.path.replace("{name:path}", "small"))
        for route in world.routes(app)
        for method in (route.methods or ())
    ]
    assert len(found) > 10 and ("POST", "/v1/completions") in found
    return [*found, ("GET", "/nope"), ("OPTIONS", "/v1/completions"), ("GET", "/openapi.json"), ("GET", "/docs")]


@pytest.fixture(scope="module")
def locked(make_module_world: Any) -> World:
    world: World = make_module_world(api_key=(KEY, "another"))
    return world


def test_health_needs_no_key_behind_a_prefix_either(make_world: Any) -> None:
    world: World = make_world(api_key=(KEY,), root_path="/prefix")
    codes = [world.anonymous.get(path).status_code for path in ("/health", "/prefix/health", "/v1/models")]
    assert codes == [200, 401, 401]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY[:-1]}",
        f"Bearer {KEY}x",
        f"Bearer {KEY.lower()}",
        f"bearer {KEY}",
        "Bearer",
    ],
)
def test_every_route_but_the_health_checks_needs_the_key(locked: World, header: str | None) -> None:
    headers = {} if header is None else {"authorization": header}
    for method, path in routes_of(locked):
        body = {"prompt": "a"} if method == "POST" else None
        response = locked.anonymous.request(method, path, headers=headers, json=body)
        if path in OPEN_PATHS:
            assert response.status_code == 200
            continue
        assert response.status_code == 401, (method, path)
        if method != "HEAD":
            error = response.json()["error"]
            assert error.get("code", 401) == 401 and KEY not in error["message"]
    assert {"/health", "/ping"} == OPEN_PATHS


@pytest.mark.parametrize("key", [KEY, "another"])
def test_each_key_opens(locked: World, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    assert locked.anonymous.post("/v1/completions", json={"prompt": "a"}, headers=headers).status_code == 200


def test_keys_and_prompts_stay_out_of_the_log(locked: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    secret = "my secret diary"
    for headers in ({"authorization": f"Bearer {KEY}"}, {"authorization": f"Bearer {KEY}wrong"}):
        for body in (
            {"prompt": secret},
            {"prompt": secret, "temperature": -1},
            {"prompt": [secret, 5]},
            {"wrong": secret},
        ):
            locked.anonymous.post("/v1/completions", json=body, headers=headers)
    assert KEY not in caplog.text and secret not in caplog.text


def test_an_unknown_field_is_taken_and_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        world.post("/v1/completions", prompt="a", max_tokens=1, frobnication="a private value")
    assert caplog.text.count("frobnication") == 1 and "a private value" not in caplog.text


def preflight(world: World, origin: str) -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization",
    }
    return world.anonymous.options("/v1/completions", headers=headers)


def test_origins_are_closed_unless_named(make_module_world: Any, world: World) -> None:
    assert "access-control-allow-origin" not in preflight(world, "https://good.example").headers
    open_to_one = make_module_world(allowed_origins=("https://good.example",), api_key=(KEY,))
    allowed = preflight(open_to_one, "https://good.example")
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://good.example"
    assert "access-control-allow-origin" not in preflight(open_to_one, "https://evil.example").headers
    refused = open_to_one.anonymous.get("/v1/models", headers={"origin": "https://good.example"})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "https://good.example"


def talk(world: World, *pieces: bytes, seconds: float = 30) -> bytes:
    """What the server says to raw bytes until it closes."""
    answer = b""
    with socket.create_connection(("127.0.0.1", world.port), timeout=seconds) as connection:
        with suppress(ConnectionResetError, BrokenPipeError):
            for piece in pieces:
                connection.sendall(piece)
        with suppress(ConnectionResetError):
            while data := connection.recv(65536):
                answer += data
    return answer


def test_headers_without_bound_are_cut(world: World) -> None:
    head = b"GET /health HTTP/1.1\r\nhost: x\r\n"
    assert b" 431 " in talk(world, head + b"x: " + b"a" * 100_000 + b"\r\n\r\n").partition(b"\r\n")[0]
    assert b" 431 " in talk(world, head, *[b"x%d: y\r\n" % i for i in range(1000)]).partition(b"\r\n")[0]
    answer = talk(world, head + b"x: ", *[b"a" * 65536] * 200)
    assert answer == b"" or b" 431 " in answer
    assert b" 200 " in talk(world, head + b"x: " + b"a" * 30_000 + b"\r\nconnection: close\r\n\r\n")
    world.probe()


def test_headers_that_never_end_are_cut_by_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usual = protocol.HEADER_TIMEOUT
    monkeypatch.setattr(protocol, "HEADER_TIMEOUT", 0.3)
    start = time.monotonic()
    assert b" 408 " in talk(world, b"GET /health HTTP/1.1\r\nhost: x\r\nx: ")
    assert b" 408 " in talk(world)
    assert time.monotonic() - start < usual


def test_several_requests_on_one_connection_are_each_answered(world: World) -> None:
    one = b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert talk(world, one * 3 + last).count(b"HTTP/1.1 200") == 4


def test_a_request_id_is_echoed_only_if_it_is_one(world: World) -> None:
    assert world.client.get("/version", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for odd in ("a b", "x" * 500, "<script>"):
        assert world.client.get("/version", headers={"x-request-id": odd}).headers["x-request-id"] != odd


def test_the_docs_need_nothing_from_the_internet(world: World) -> None:
    page = world.client.get("/docs").text
    assert "http://" not in page and "https://" not in page and "src=" not in page
    document = world.client.get("/openapi.json").json()
    bodies = ("completions", "chat/completions", "responses", "messages", "messages/count_tokens", "embeddings")
    for path in ("/tokenize", *(f"/v1/{body}" for body in bodies)):
        reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
        assert "properties" in schema and "model" in schema["properties"]


def test_every_reference_in_the_openapi_document_leads_somewhere(world: World) -> None:
    document = world.client.get("/openapi.json").json()

    def references(value: Any) -> Any:
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for item in value.values():
                yield from references(item)
        elif isinstance(value, list):
            for item in value:
                yield from references(item)

    for reference in references(document):
        place = document
        for part in reference.removeprefix("#/").split("/"):
            place = place[part]


def test_a_body_that_is_answered_is_not_read_on(locked: World) -> None:
    """The answer comes at once and says that the connection closes; it does, whatever the client goes on sending."""
    lines = [b"host: x", b"content-type: application/json", b"authorization: Bearer " + KEY.encode()]
    endless = [b"transfer-encoding: chunked"]
    cases = [
        (413, [*lines, b"content-length: 100000000000"]),
        (413, [*lines, b"content-length: 100000000000", b"expect: 100-continue"]),
        (413, [*lines, *endless]),  # once there is too much of it
        (401, [*lines[:2], *endless]),
        (400, [lines[0], lines[2], *endless]),  # of no type
    ]
    for status, headers in cases:
        with socket.create_connection(("127.0.0.1", locked.port), timeout=30) as connection:
            connection.sendall(b"\r\n".join([b"POST /v1/completions HTTP/1.1", *headers, b"", b""]))
            piece = b"10000\r\n" + b"a" * 0x10000 + b"\r\n"
            if status == 413 and headers[-1] == endless[0]:
                connection.sendall(piece * 17)
            started = time.monotonic()
            answer = connection.recv(65536)
            head = answer.lower().partition(b"\r\n\r\n")[0]
            assert f" {status} ".encode() in head.split(b"\r\n")[0] and b"connection: close" in head, answer
            assert b'"message":' in answer + connection.recv(65536)
            # It goes on, and is cut off soon; what it sent has gone nowhere.
            num_sent = 0
            with pytest.raises((ConnectionResetError, BrokenPipeError)):
                while time.monotonic() - started < 20:
                    num_sent += connection.send(piece)
                    time.sleep(0.02)
    locked.probe()


def test_requests_and_connections_that_are_over_wait_for_no_collection(world: World) -> None:
    """What they hold, such as a body, is freed with them: the server collects rarely."""

    def alive() -> int:
        return sum(isinstance(thing, HttpToolsProtocol | RequestResponseCycle) for thing in gc.get_objects())

    with httpx.Client(base_url=str(world.client.base_url)) as client:
        for _ in range(20):
            client.get("/health").raise_for_status()
    gc.collect()
    gc.disable()
    try:
        before = alive()
        for _ in range(20):
            with httpx.Client(base_url=str(world.client.base_url)) as client:
                for _ in range(5):
                    client.post("/tokenize", json={"prompt": "a"}).raise_for_status()
        time.sleep(0.2)
        assert alive() < before + 20
    finally:
        gc.enable()


def test_the_answer_reaches_who_sends_as_fast_as_it_can(locked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads only when it cannot send: nothing of the answer is lost to a reset."""
    monkeypatch.setattr(protocol, "LINGER", 20.0)  # for any machine to send it all
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + KEY.encode()
    head += b"\r\ncontent-type: application/json\r\ncontent-length: 8000000\r\n\r\n"
    for _ in range(5):
        answer = talk(locked, head, *[b"a" * 1_000_000] * 8)
        assert b" 413 " in answer and answer.endswith(b"}")
