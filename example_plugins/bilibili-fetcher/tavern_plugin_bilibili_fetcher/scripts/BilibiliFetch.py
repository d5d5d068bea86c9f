"""The subtitles of a Bilibili video.

    {"url": "...", "config": {...}} on stdin  →  {"bvid", "title", "page", "language", "text", "lines"} on stdout

    URL or BV number → /x/web-interface/view (title, pages) → /x/player/v2 (which subtitles) → the subtitle file

What cannot be done is said as {"error": {"message", "code", "hint"}}; standard library only.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

SECONDS = 10
LARGEST = 5_000_000
BV = re.compile(r"BV[0-9A-Za-z]{10}")
AV = re.compile(r"av(\d{1,19})", re.IGNORECASE)
MEANINGS = {
    -101: ("需要登录 a login is needed", "set the tool's bilibiliCookie"),
    -352: ("请求被风控 the request was taken for a robot's", "set the tool's bilibiliCookie, or try again later"),
    -400: ("请求错误 the request was wrong", "check the BV number"),
    -404: ("视频不存在 there is no such video", "check the BV number"),
    -412: ("请求被拦截 the request was blocked", "try again later"),
    62002: ("稿件不可见 the video is not visible", ""),
    62012: ("仅自己可见 the video is private", ""),
}


class Failed(Exception):
    """What is said to the caller."""

    def __init__(self, message: str, code: str, hint: str = "", retryable: bool = False) -> None:
        super().__init__(message)
        self.said = {"message": message, "code": code, "hint": hint, "retryable": retryable}


@dataclass(frozen=True)
class Video:
    """Which video, and which part of it."""

    key: str
    """``bvid`` or ``aid``."""
    id: str
    page: int


def which_video(url: str) -> Video:
    """The video that a URL, a BV number or an av number names."""
    text = url.strip()
    page = 1
    if "/" in text or "." in text:
        parts = urlsplit(text if "://" in text else f"https://{text}")
        host = (parts.hostname or "").lower()
        if host == "b23.tv":
            raise Failed("短链接 a short link does not name the video", "BAD_URL", "open it and pass the full URL")
        if host != "bilibili.com" and not host.endswith(".bilibili.com"):
            raise Failed(f"{host or text[:80]!r} is not Bilibili", "BAD_URL", "pass a bilibili.com URL or a BV number")
        number = parse_qs(parts.query).get("p", ["1"])[0]
        page = int(number) if re.fullmatch(r"[1-9][0-9]{0,4}", number) else 1
        segments = [s for s in parts.path.split("/") if s]
        text = next((s for s in segments if BV.fullmatch(s) or AV.fullmatch(s)), "")
    if BV.fullmatch(text):
        return Video("bvid", text, page)
    if found := AV.fullmatch(text):
        return Video("aid", found[1], page)
    raise Failed(f"{url[:80]!r} names no video", "BAD_URL", "a BV number is BV and ten letters or digits: BV1xx411c7mD")


class Api:
    """The API at `endpoint`; the cookie goes there and nowhere else."""

    def __init__(self, endpoint: str, cookie: str) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise Failed(
                f"the setting endpoint is not a URL: {endpoint[:80]!r}", "BAD_SETTING", "https://api.bilibili.com"
            )
        if not cookie.isascii() or any(c < " " for c in cookie):
            raise Failed(
                "the setting bilibiliCookie is not a cookie", "BAD_SETTING", "copy the value of the Cookie header"
            )
        self.endpoint = endpoint.rstrip("/")
        self.home = parts
        self.cookie = cookie
        self.opener = urllib.request.build_opener(NoRedirect)

    def ask(self, path: str, **query: str) -> dict[str, Any]:
        """The `data` of one answer of the API."""
        answer = self.load(f"{self.endpoint}{path}?{urlencode(query)}", self.cookie)
        code = answer.get("code")
        if code != 0:
            meaning, hint = MEANINGS.get(code, (str(answer.get("message") or "unknown"), ""))  # type: ignore[arg-type]
            raise Failed(f"Bilibili: {meaning} (code {code})", str(code), hint, retryable=code in (-352, -412))
        data = answer.get("data")
        if not isinstance(data, dict):
            raise Failed("Bilibili answered without data", "BAD_ANSWER")
        return data

    def subtitle(self, url: str) -> dict[str, Any]:
        """A subtitle file. Its address comes from outside: only Bilibili's own hosts are asked."""
        full = urljoin(self.endpoint, url)
        parts = urlsplit(full)
        host = (parts.hostname or "").lower()
        is_home = (parts.scheme, parts.netloc) == (self.home.scheme, self.home.netloc)
        if not is_home and not (parts.scheme == "https" and host.endswith((".hdslb.com", ".bilibili.com"))):
            raise Failed(f"the subtitles are on a foreign host: {host[:80]!r}", "BAD_ANSWER")
        return self.load(full, "")

    def load(self, url: str, cookie: str) -> dict[str, Any]:
        headers = {"User-Agent": "Mozilla/5.0", "Referer": "https://www.bilibili.com/", "Accept": "application/json"}
        request = urllib.request.Request(url, headers=headers | ({"Cookie": cookie} if cookie else {}))
        try:
            with self.opener.open(request, timeout=SECONDS) as answer:
                body = answer.read(LARGEST + 1)
        except urllib.error.HTTPError as error:
            error.close()
            busy = error.code in (412, 429) or error.code >= 500
            raise Failed(f"Bilibili answered HTTP {error.code}", f"HTTP_{error.code}", retryable=busy) from None
        except (OSError, ValueError) as error:  # URLError is an OSError; http.client raises ValueError for odd URLs
            reason = getattr(error, "reason", error)
            raise Failed(f"Bilibili cannot be reached: {reason}", "UNREACHABLE", retryable=True) from None
        if len(body) > LARGEST:
            raise Failed(f"the answer is larger than {LARGEST:,} bytes", "BAD_ANSWER")
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            raise Failed("Bilibili answered something that is not JSON", "BAD_ANSWER", retryable=True) from None
        if not isinstance(parsed, dict):
            raise Failed("Bilibili answered something unexpected", "BAD_ANSWER")
        return parsed


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the cookie to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def get_subtitle(url: str, language: str, api: Api) -> dict[str, Any]:
    """The subtitles of the video that `url` names, in `language` or in the first there is."""
    video = which_video(url)
    view = api.ask("/x/web-interface/view", **{video.key: video.id})
    pages = [page for page in view.get("pages") or [] if isinstance(page, dict)]
    cid = next((page.get("cid") for page in pages if page.get("page") == video.page), None)
    if cid is None and video.page == 1:
        cid = view.get("cid")
    if cid is None:
        raise Failed(f"the video has {len(pages)} part(s), no part {video.page}", "NO_PAGE")
    bvid = str(view.get("bvid") or video.id)
    player = api.ask("/x/player/v2", bvid=bvid, cid=str(cid))
    offered = [s for s in (player.get("subtitle") or {}).get("subtitles") or [] if isinstance(s, dict)]
    chosen = choose(offered, language, bool(player.get("need_login_subtitle")))
    lines = [
        {"from": line.get("from"), "to": line.get("to"), "content": str(line.get("content", ""))}
        for line in api.subtitle(str(chosen["subtitle_url"])).get("body") or []
        if isinstance(line, dict)
    ]
    return {
        "bvid": bvid,
        "title": str(view.get("title", "")),
        "page": video.page,
        "language": str(chosen.get("lan", "")),
        "text": "\n".join(str(line["content"]) for line in lines),
        "lines": lines,
    }


def choose(offered: list[dict[str, Any]], language: str, needs_login: bool) -> dict[str, Any]:
    """One of the subtitles that are offered."""
    usable = [s for s in offered if s.get("subtitle_url")]
    if not usable:
        hint = "they need a login: set the tool's bilibiliCookie" if needs_login or offered else ""
        raise Failed("该视频没有字幕 the video has no subtitles", "NO_SUBTITLE", hint)
    found = next((s for s in usable if not language or s.get("lan") == language), None)
    if found is None:
        there = ", ".join(str(s.get("lan")) for s in usable)
        raise Failed(f"there are no subtitles in {language!r}", "NO_LANGUAGE", f"there are: {there}")
    return found


def main() -> dict[str, Any]:
    try:
        asked = json.load(sys.stdin)
        config = asked.get("config") or {}
        api = Api(config.get("endpoint") or "https://api.bilibili.com", config.get("bilibiliCookie") or "")
        return get_subtitle(asked["url"], asked.get("language") or "", api)
    except Failed as failed:
        return {"error": failed.said}


if __name__ == "__main__":
    print(json.dumps(main(), ensure_ascii=False))
