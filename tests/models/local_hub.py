"""A server that speaks a model hub's protocol: listings, redirects to large files, and refusals."""

import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "1234567890abcdef1234567890abcdef12345678"


class LocalHub:
    """Serves the files of one folder as the repository ``lab/model``, and remembers what was asked.

    Attributes:
        asked: (method, path, range) of every request.
    """

    def __init__(self, folder):
        self.folder, self.asked = folder, []

    @property
    def fetched(self):
        """The names of the large files whose bytes were asked for, with the range."""
        return [
            (path.removeprefix("/cdn/"), wanted)
            for method, path, wanted in self.asked
            if method == "GET" and path.startswith("/cdn/")
        ]

    def files(self):
        return {
            path.relative_to(self.folder).as_posix(): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: LocalHub

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, self.headers.get("Range")))
        if path.startswith("/cdn/"):
            return self.answer(200, self.hub.files()[path.removeprefix("/cdn/")])
        found = re.fullmatch(r"(/api/models)?/lab/model(?:/(revision|tree|resolve)/([^/]+))?(?:/(.+))?", path)
        if found is None:  # without a token a hub does not say whether a repository is missing or private
            return self.answer(401, headers={"X-Error-Code": "RepoNotFound"})
        api, what, revision, file = found.groups()
        if revision not in (None, "main", "v1", COMMIT):
            return self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        if what == "resolve":
            return self.file(file)
        assert api and file is None
        return self.answer(200, json.dumps(self.tree() if what == "tree" else self.info()).encode())

    def info(self):
        files = [{"rfilename": name, "size": len(content)} for name, content in self.hub.files().items()]
        return {"id": "lab/model", "sha": COMMIT, "siblings": files}

    def tree(self):
        return [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            | (
                {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 9}}
                if large(name)
                else {}
            )
            for name, content in self.hub.files().items()
        ]

    def file(self, name):
        content = self.hub.files().get(name)
        if content is None:
            return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
        if not large(name):
            return self.answer(
                200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT}
            )
        linked = {"X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Linked-Size": str(len(content))}
        return self.answer(
            302,
            b"",
            {**linked, "X-Repo-Commit": COMMIT, "Location": f"http://localhost:{self.server.server_port}/cdn/{name}"},
        )

    def answer(self, status, content=b"", headers=None):
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def large(name):
    """Whether a hub keeps a file elsewhere and redirects to it."""
    return name.endswith((".safetensors", ".bin"))


@contextmanager
def serve(folder):
    """The hub and its address while the body runs."""
    hub = LocalHub(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
