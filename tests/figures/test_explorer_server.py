"""The explorer's server answers its own page on this machine, and nothing else."""

import http.client
import json
import threading

import numpy as np
import pytest
from wandering import wandering_columns, write_wandering

from sinkscope.errors import CallError
from sinkscope.figures.explorer import ExplorerServer, explore, tile_path


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    trace = write_wandering(tmp_path_factory.mktemp("traces") / "one", wandering_columns())

    def maps(trace, step, layer, head):
        if step == 3:
            raise CallError("the model is gone")
        if step == 4:
            raise RuntimeError("out of memory")
        return np.full((4, 5), step + layer / 10 + head / 100)

    found = ExplorerServer(explore([trace]), [trace], maps)
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def ask(server, path, method="GET", **headers):
    port = server.server_address[1]
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request(method, path, headers={"Host": f"127.0.0.1:{port}"} | headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer


def test_the_page_and_every_tile_are_there_on_this_machine_only(server):
    assert server.server_address[0] == "127.0.0.1"
    status, content, _ = ask(server, "/")
    assert status == 200 and b'"served":true' in content and b"connect-src 'self'" in content
    for name, tile in server.explorer.tiles.content.items():
        assert ask(server, f"/{tile_path(name)}")[:2] == (200, tile)


def test_maps_are_float32_with_their_number_of_queries(server):
    status, content, answer = ask(server, "/map?trace=0&step=2&layer=1&head=1")
    assert (status, answer.headers["X-Queries"]) == (200, "4")
    assert (np.frombuffer(content, "<f4") == np.float32(2.11)).all()


def test_maps_that_cannot_be_had_say_why(server):
    for step, message in ((3, "model is gone"), (4, "out of memory"), (99, "step: expected 0 to 18, found 99")):
        status, content, _ = ask(server, f"/map?trace=0&step={step}&layer=0&head=0")
        assert status == 422 and message in json.loads(content)["error"]


def test_only_the_page_itself_may_ask(server):
    for headers in ({"Host": "evil.example"}, {"Host": "127.0.0.1"}, {"Origin": "http://evil.example"}):
        for path in ("/", "/map?trace=0&step=0&layer=0&head=0"):
            assert ask(server, path, **headers)[0] == 403
    port = server.server_address[1]
    assert ask(server, "/", Origin=f"http://127.0.0.1:{port}")[0] == 200
    assert ask(server, "/", Host=f"localhost:{port}")[0] == 200


def test_paths_outside_the_page_are_refused(server):
    assert ask(server, "/data/../manifest.json")[0] == ask(server, "//etc/passwd")[0] == 404
