"""Tavern Action Manifest: tool calls in text. Text in, calls and problems out; knows nothing of hosts or plugins."""

from __future__ import annotations

from tavern_core.model.text_call import TamCall
from tavern_core.model.text_call import TextProblem as Problem
from tavern_core.tam.binder import bind, named_tools
from tavern_core.tam.block_parsing import DEFAULT_MAX_BLOCK
from tavern_core.tam.bound_call_plan import Plan, Reference, resolve_references
from tavern_core.tam.callable_tool_lookup import pointed
from tavern_core.tam.document import Block, BlockStart, Comment, Document, Event, Field, Text
from tavern_core.tam.machine import parse
from tavern_core.tam.neutralise import neutralise, neutralise_json
from tavern_core.tam.problems import PROBLEM_CODES, ProblemCode
from tavern_core.tam.streaming_parser import Scanner
from tavern_core.tam.wording import WORDS
from tavern_core.tam.writer import render

__all__ = [
    "DEFAULT_MAX_BLOCK",
    "PROBLEM_CODES",
    "WORDS",
    "Block",
    "BlockStart",
    "Comment",
    "Document",
    "Event",
    "Field",
    "Plan",
    "Problem",
    "ProblemCode",
    "Reference",
    "Scanner",
    "TamCall",
    "Text",
    "bind",
    "named_tools",
    "neutralise",
    "neutralise_json",
    "parse",
    "pointed",
    "render",
    "resolve_references",
]
