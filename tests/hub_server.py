"""A small HTTP server that speaks the part of the Hub's protocol that downloads use.

As on the Hub, requests for large files are redirected to another address, which serves ranges;
all others are answered directly. Errors carry `X-Error-Code`. Every request is recorded.
"""

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import unquote, urlsplit


@dataclass
class Repo:
    """A repository: its commits (hash -> path -> content), branches and access restrictions."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    gated: bool = False
    token: str | None = None

    def commit(self, revision: str) -> str | None:
        """Return the commit hash of a branch or commit; None if there is none."""
        commit = self.branches.get(revision, revision)
        return commit if commit in self.commits else None


@dataclass
class HubServer:
    """Context manager that serves `repos` on a free port of this machine.

    Attributes:
        repos: the repositories by id.
        break_off: path -> numbers of bytes after which to hang up; each request uses one entry.
        requests: the requests received, e.g. `GET org/model/resolve/<commit>/unet/config.json`.
    """

    repos: dict[str, Repo]
    break_off: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Return the value for `HF_ENDPOINT`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def cdn_url(self) -> str:
        """Return the base URL of large files; the client treats another host name differently."""
        return f"http://localhost:{self._server.server_address[1]}/cdn"

    def downloaded(self) -> set[str]:
        """Return the paths whose content was sent."""
        sent = [line.split("/resolve/", 1) for line in self.requests if line.startswith("GET")]
        return {rest[0].split("/", 1)[1] for _, *rest in sent if rest}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        if path.startswith("cdn/"):
            path = path.removeprefix("cdn/")
            self.hub.requests.append(f"{self.command} {path}")
            repo_id, _, commit, file = self._split_file(path)
            self._send_file(path, file, self.hub.repos[repo_id].commits[commit][file])
            return
        if path.startswith("api/models/"):
            self.hub.requests.append(f"{self.command} {path}")
            self._api(path.removeprefix("api/models/"))
        elif "/resolve/" in path:
            self.hub.requests.append(f"{self.command} {path}")
            self._resolve(path)
        else:  # the client also asks for things that a mirror need not have
            self._send_error(404, "NotFound")

    def _api(self, path: str) -> None:
        organisation, name, *rest = path.split("/")
        repo_id = f"{organisation}/{name}"
        what, revision = rest if rest else ("revision", "main")
        commit = self._commit(repo_id, revision)
        if commit is None:
            return
        files = self.hub.repos[repo_id].commits[commit]
        if what == "tree":
            self._send_json([_tree_entry(name, content) for name, content in files.items()])
        else:
            siblings = [{"rfilename": name} for name in files]
            self._send_json({"id": repo_id, "sha": commit, "siblings": siblings})

    def _resolve(self, path: str) -> None:
        repo_id, _, revision, file = self._split_file(path)
        commit = self._commit(repo_id, revision)
        if commit is None:
            return
        content = self.hub.repos[repo_id].commits[commit].get(file)
        if content is None:
            self._send_error(404, "EntryNotFound")
        elif _is_large(file):
            self.send_response(302)
            self.send_header("Location", f"{self.hub.cdn_url}/{repo_id}/resolve/{commit}/{file}")
            self.send_header("X-Repo-Commit", commit)
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Linked-ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self._send_file(path, file, content, {"X-Repo-Commit": commit})

    def _split_file(self, path: str) -> tuple[str, str, str, str]:
        organisation, name, resolve, revision, file = path.split("/", 4)
        return f"{organisation}/{name}", resolve, revision, file

    def _commit(self, repo_id: str, revision: str) -> str | None:
        """Return the requested commit; None if an error has been sent instead."""
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo.token and self.headers["Authorization"] != f"Bearer {repo.token}"):
            self._send_error(401, "RepoNotFound")
        elif repo.gated:
            self._send_error(403, "GatedRepo")
        elif repo.commit(revision) is None:
            self._send_error(404, "RevisionNotFound")
        else:
            return repo.commit(revision)
        return None

    def _send_error(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _send_file(
        self, path: str, file: str, content: bytes, headers: dict[str, str] | None = None
    ) -> None:
        start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").split("-")[0])
        if start:
            self.hub.requests.append(f"RANGE {path} from {start}")
        self.send_response(206 if start else 200)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("ETag", f'"{_blob_id(content)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(content) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.hub.break_off.get(file):
            self.wfile.write(content[start : self.hub.break_off[file].pop(0)])
            self.close_connection = True
        else:
            self.wfile.write(content[start:])


def _is_large(file: str) -> bool:
    return file.endswith((".safetensors", ".bin", ".msgpack", ".onnx"))


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _tree_entry(name: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {
        "type": "file",
        "path": name,
        "size": len(content),
        "oid": _blob_id(content),
    }
    if _is_large(name):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
    return entry
