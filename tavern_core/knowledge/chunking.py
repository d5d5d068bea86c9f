"""Splits a document into passages: one for each heading, long ones in parts. Does no I/O and never raises on content."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tavern_core.errors import Finding, Location
from tavern_core.frozen_dataclass import dataclass
from tavern_core.kernel.text.document import decode
from tavern_core.kernel.text.yaml_reader import read_yaml
from tavern_core.model.safe_printing import seen
from tavern_core.model.skill import split_skill

CODE: Final = "KNOWLEDGE_INVALID"
MOST_PARTS: Final = 5_000
"""Limit for one document; the rest of it is not indexed."""
LONGEST_PART: Final = 1_500
"""Characters: about 400 tokens of English, 1,500 of Chinese."""
_LONGEST_HEADING: Final = 200
_LONGEST_ANCHOR: Final = 80
_HEADING: Final = re.compile(r" {0,3}(#{1,6})(?=[ \t])")
_FENCE: Final = re.compile(r" {0,3}(```|~~~)")
_NOT_IN_ANCHOR: Final = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """A passage within its document."""

    anchor: str
    """Behind the ``#`` of a citation; unique in the document; empty: the beginning of it."""
    heading: str
    text: str


@dataclass(frozen=True, slots=True)
class KnowledgeDocument:
    """The parsed content of a file."""

    parts: tuple[DocumentPart, ...] = ()
    trusted: bool = True
    findings: tuple[Finding, ...] = ()


def read_document(content: bytes, file: str, *, is_markdown: bool) -> KnowledgeDocument:
    """Read one document.

    Args:
        content: of the file.
        file: its name in findings.
        is_markdown: whether it has headings and front matter; else it is plain text.
    """
    if b"\0" in content:
        finding = Finding(
            CODE, "is not text: it holds NUL bytes", "take it out of the folder", Location(file), "warning"
        )
        return KnowledgeDocument(findings=(finding,))
    text = decode(content, file, CODE)
    if isinstance(text, Finding):
        return KnowledgeDocument(findings=(Finding(CODE, text.message, text.hint, text.where, "warning"),))
    findings: list[Finding] = []
    trusted = True
    if is_markdown and (parts := split_skill(text)) is not None:
        trusted, problems = _trust(parts[0], file)
        findings += problems
        text = parts[1]
    pieces: list[DocumentPart] = []
    for part in _parts(text, is_markdown=is_markdown):
        if len(pieces) == MOST_PARTS:
            message = f"has more than {MOST_PARTS:,} passages; the rest is not indexed"
            findings.append(Finding(CODE, message, "split the file", Location(file), "warning"))
            break
        pieces.append(part)
    return KnowledgeDocument(tuple(pieces), trusted, tuple(findings))


def _trust(front: str, file: str) -> tuple[bool, list[Finding]]:
    """Whether front matter leaves a document trusted: unreadable front matter does not."""
    document = read_yaml("\n" + front, file, code=CODE)  # line 1 is the first ---
    if document.findings:
        first = document.findings[0]
        message = f"front matter cannot be read, so the document counts as untrusted: {first.message}"
        return False, [Finding(CODE, message, first.hint, first.where, "warning")]
    data = document.data
    return (data.get("trusted", True) is True if isinstance(data, dict) else True), []


def _parts(text: str, *, is_markdown: bool) -> Iterator[DocumentPart]:
    used: dict[str, int] = {}
    for path, body in _sections(text) if is_markdown else [((), text)]:
        anchor = _anchor(path[-1] if path else "", used)
        for number, piece in enumerate(_pieces(body), 1):
            yield DocumentPart(anchor if number == 1 else f"{anchor}~{number}", " / ".join(filter(None, path)), piece)


def _sections(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(headings, text below the last of them) in order; headings in fenced code are none."""
    path: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.splitlines():
        opened = _FENCE.match(line)
        if opened and fence in ("", opened[1]):
            fence = "" if fence else opened[1]
        elif not fence and (found := _HEADING.match(line)):
            yield tuple(path), "\n".join(lines)
            level = len(found[1])
            path = [*path[: level - 1], *([""] * (level - 1 - len(path)))]
            path.append(_title(line[found.end() :]))
            lines = []
            continue
        lines.append(line)
    yield tuple(path), "\n".join(lines)


def _title(written: str) -> str:
    title = " ".join(seen(written[: _LONGEST_HEADING * 2]).split())
    return title.rstrip("#").rstrip()[:_LONGEST_HEADING]


def _anchor(heading: str, used: dict[str, int]) -> str:
    """The anchor of a heading, as GitHub makes it: ``Late refunds!`` → ``late-refunds``, then ``late-refunds-1``.

    Args:
        used: the anchors so far, each with the last number behind it: thousands of equal headings are numbered in linear time.
    """
    wanted = _NOT_IN_ANCHOR.sub("", heading.casefold()).strip().replace(" ", "-")[:_LONGEST_ANCHOR]
    anchor, number = wanted, used.get(wanted, 0)
    while anchor in used:
        number += 1
        anchor = f"{wanted}-{number}"
    used[wanted] = number
    used.setdefault(anchor, 0)
    return anchor


def _pieces(text: str) -> Iterator[str]:
    """`text` in pieces of at most `LONGEST_PART` characters, cut between paragraphs, else between lines, else anywhere."""
    text = text.strip()
    while len(text) > LONGEST_PART:
        cut = max(text.rfind("\n\n", 0, LONGEST_PART), 0) or max(text.rfind("\n", 0, LONGEST_PART), 0)
        cut = cut or max(text.rfind("。", 0, LONGEST_PART), text.rfind(". ", 0, LONGEST_PART), -1) + 1 or LONGEST_PART
        yield text[:cut].strip()
        text = text[cut:].strip()
    if text:
        yield text
