"""A hub of one's own on 127.0.0.1: the routes by which huggingface_hub lists and downloads a model's files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """repos: id -> branch or tag -> file -> bytes. private: id -> the token it needs. requests: all that came."""

    repos: dict[str, dict[str, dict[str, bytes]]]
    private: dict[str, str] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def commit(self, repo: str, revision: str) -> str | None:
        """The commit of a revision: a hash of the files, so that branches with equal files share it."""
        for name, files in self.repos[repo].items():
            commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
            if revision in (name, commit):
                return commit
        return None

    def files(self, repo: str, commit: str) -> dict[str, bytes]:
        return next(files for name, files in self.repos[repo].items() if self.commit(repo, name) == commit)


def oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, status: int, code: str) -> None:
            self.reply(status, b'{"error": "refused"}', {"X-Error-Code": code, "Content-Type": "application/json"})

        def reply_json(self, value: Any) -> None:
            self.reply(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            api = path.startswith("/api/models/")
            parts = path.removeprefix("/api/models" if api else "").strip("/").split("/")
            repo, rest = "/".join(parts[:2]), parts[2:]
            if repo not in hub.repos:
                return self.refuse(404, "RepoNotFound")
            if repo in hub.private and self.headers.get("Authorization") != f"Bearer {hub.private[repo]}":
                return self.refuse(401, "GatedRepo" if "gated" in repo else "RepoNotFound")
            verb, revision = (rest[0], rest[1]) if rest else ("revision", "main")
            commit = hub.commit(repo, revision)
            if commit is None:
                return self.refuse(404, "RevisionNotFound")
            files = hub.files(repo, commit)
            if api and verb == "revision":
                siblings = [{"rfilename": name} for name in files]
                return self.reply_json({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": []})
            if api and verb == "tree":
                return self.reply_json(
                    [{"type": "file", "path": n, "size": len(d), "oid": oid(d)} for n, d in files.items()]
                )
            name = "/".join(rest[2:])
            if verb != "resolve" or name not in files:
                return self.refuse(404, "EntryNotFound")
            headers = {"ETag": f'"{oid(files[name])}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
            return self.reply(200, files[name], headers)

        do_HEAD = do_GET

    return Handler


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(hub))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
