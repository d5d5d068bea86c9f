"""A small server that answers like Bilibili's API: for demonstrations without a network, and for tests.

python -m tavern_plugin_bilibili_fetcher.fake_endpoint --port 8899

BV1xx411c7mD   two parts; Chinese and English subtitles
BV1No00000SS   no subtitles
BV1Log1nOn1y   subtitles only with a cookie that holds SESSDATA
BV1F0re1gnHs   its subtitles are said to be on a foreign host
BV1B10cked11   HTTP 412
BV1Br0ken000   an answer that is not JSON
BV1Red1rect0   a redirect to another host
anything else  code -404, as the real one
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

TITLE = "字幕君交流场所"
PAGES = [{"cid": 3724723, "page": 1, "part": "第一部分"}, {"cid": 3724724, "page": 2, "part": "第二部分"}]
LINES = {
    "zh-CN": ["大家好", "今天我们来看一个插件", "谢谢观看"],
    "en": ["Hello everyone", "Today we look at a plugin", "Thank you for watching"],
}
VIDEOS = {"BV1xx411c7mD", "BV1No00000SS", "BV1Log1nOn1y", "BV1F0re1gnHs"}


class FakeEndpoint:
    """The server on a free port: ``with FakeEndpoint() as url: ...``. `seen` holds (path, cookie) of each request."""

    def __init__(self, port: int = 0) -> None:
        self.seen: list[tuple[str, str]] = []
        seen = self.seen

        class Handler(_Handler):
            requests = seen

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeEndpoint:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def serve(self) -> None:
        """Answer until interrupted."""
        self._server.serve_forever()


class _Handler(BaseHTTPRequestHandler):
    requests: list[tuple[str, str]]

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        cookie = self.headers.get("Cookie", "")
        self.requests.append((parts.path, cookie))
        video = "BV1xx411c7mD" if query.get("aid") == "170001" else query.get("bvid", "")
        if video == "BV1B10cked11":
            self._answer(b"blocked", 412)
        elif video == "BV1Br0ken000":
            self._answer(b"<html>")
        elif video == "BV1Red1rect0":
            self._answer(b"", 302, "http://192.0.2.1/")
        elif parts.path == "/x/web-interface/view":
            self._json(_view(video))
        elif parts.path == "/x/player/v2":
            self._json(_player(video, query.get("cid", ""), "SESSDATA=" in cookie))
        elif parts.path.startswith("/bfs/subtitle/"):
            self._json(_subtitle(parts.path.rpartition("/")[2].removesuffix(".json")))
        else:
            self._answer(b"", 404)

    def _json(self, value: Any) -> None:
        self._answer(json.dumps(value, ensure_ascii=False).encode())

    def _answer(self, body: bytes, status: int = 200, location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server calls
        """Say nothing."""


def _view(video: str) -> dict[str, Any]:
    if video not in VIDEOS:
        return {"code": -404, "message": "啥都木有", "ttl": 1}
    data = {"bvid": video, "aid": 170001, "cid": PAGES[0]["cid"], "title": TITLE, "pages": PAGES}
    return {"code": 0, "message": "0", "ttl": 1, "data": data}


def _player(video: str, cid: str, has_login: bool) -> dict[str, Any]:
    offered = [
        {"lan": lan, "lan_doc": lan, "subtitle_url": f"/bfs/subtitle/{lan}-{cid}.json"} for lan in LINES
    ]  # the real one answers //aisubtitle.hdslb.com/bfs/…
    if video == "BV1No00000SS" or (video == "BV1Log1nOn1y" and not has_login):
        offered = []
    if video == "BV1F0re1gnHs":
        offered = [{"lan": "zh-CN", "subtitle_url": "http://169.254.169.254/latest/meta-data"}]
    data = {"bvid": video, "need_login_subtitle": video == "BV1Log1nOn1y", "subtitle": {"subtitles": offered}}
    return {"code": 0, "message": "0", "ttl": 1, "data": data}


def _subtitle(name: str) -> dict[str, Any]:
    language, _, cid = name.rpartition("-")
    lines = LINES.get(language, [])
    body = [{"from": n * 2.0, "to": n * 2.0 + 1.5, "location": 2, "content": text} for n, text in enumerate(lines)]
    if cid == str(PAGES[1]["cid"]):
        body = body[:1]
    return {"font_size": 0.4, "background_color": "#9C27B0", "body": body}


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--port", type=int, default=8899)
    server = FakeEndpoint(options.parse_args().port)
    print(server.url, flush=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        print("stopped")
