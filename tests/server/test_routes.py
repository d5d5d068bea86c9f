"""Every route of the table: who may use it, what it answers, and how it is described."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from tavern_core.errors import ERROR_CODES
from tavern_core.model.job import Job
from tavern_core.model.result import ToolError, ToolResult
from tavern_core.model.text_call import TextOutcome
from tavern_core.server.api.openapi import document
from tavern_core.server.api.problem import STATUSES
from tavern_core.server.api.route import ANY_TOKEN, Route
from tavern_core.server.api.routes import ROUTES
from tavern_core.server.request_access import ROLES
from tests.rows import each_row
from tests.server.desk import Served

Check = Callable[[httpx2.Response], bool]
EXAMPLES: dict[tuple[str, str], tuple[str, Any, int, Check]] = {
    ("GET", "/healthz"): ("/healthz", None, 200, lambda answer: answer.text == "ok\n"),
    ("GET", "/readyz"): ("/readyz", None, 200, lambda answer: answer.text == "ready\n"),
    ("GET", "/api/openapi.json"): ("/api/openapi.json", None, 200, lambda answer: answer.json() == document(ROUTES)),
    ("GET", "/api/nodes"): ("/api/nodes?query=upper", None, 200, lambda answer: answer.json()[0]["id"] == "core:Case"),
    ("GET", "/api/nodes/{type}"): ("/api/nodes/core:Case", None, 200, lambda answer: "form" in answer.json()["inputs"]),
    ("GET", "/api/tools"): ("/api/tools", None, 200, lambda answer: "desk:echo" in [tool["id"] for tool in answer.json()]),
    ("GET", "/api/tools/{id}"): ("/api/tools/desk:echo", None, 200, lambda answer: answer.json()["plugin"] == "desk"),
    ("POST", "/api/tools/{id}/invoke"): (
        "/api/tools/desk:echo/invoke", {"arguments": {"text": "hi"}}, 200, lambda answer: answer.json()["value"] == "hi",
    ),
    ("POST", "/api/tam"): (
        "/api/tam", {"text": "no block"}, 200, lambda answer: answer.json()["text"] == "no block" and answer.json()["ok"],
    ),
    ("GET", "/api/jobs"): ("/api/jobs?limit=5&status=running", None, 200, lambda answer: answer.json() == []),
    ("GET", "/api/jobs/{id}"): ("/api/jobs/job-0", None, 404, lambda answer: answer.json()["code"] == "JOB_NOT_FOUND"),
    ("POST", "/api/jobs/{id}/cancel"): ("/api/jobs/job-0/cancel", {}, 404, lambda answer: answer.json()["code"] == "JOB_NOT_FOUND"),
    ("POST", "/api/jobs/{id}/answer"): (
        "/api/jobs/job-0/answer", {"value": 1}, 404, lambda answer: answer.json()["code"] == "JOB_NOT_FOUND",
    ),
}  # fmt: skip
"""Route → an address, a body, the status and a look at the answer."""
PLAIN = [route for route in ROUTES if (route.method, route.path) in EXAMPLES]
STREAMS = [route for route in ROUTES if route not in PLAIN]


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.fixture(scope="module")
def tokens(desk: Served) -> dict[str, str]:
    """Role → a token with it alone; ``none``: one that names none, ``guest``: one with a role that means nothing here."""
    made = {role: desk.token(f"user:{role}", roles=[role]) for role in ROLES}
    return {**made, "none": desk.token("user:none"), "guest": desk.token("user:guest", roles=["guest"])}


def test_the_rest_of_the_table_is_streams_and_mcp() -> None:
    assert [name_of(route) for route in STREAMS] == ["GET /api/events", "WEBSOCKET /ws", "ANY /mcp"]


@pytest.mark.slow
@pytest.mark.parametrize("route", PLAIN, ids=name_of)
def test_a_route_answers_those_who_may_use_it_and_nobody_else(
    desk: Served, tokens: dict[str, str], route: Route
) -> None:
    path, body, status, look = EXAMPLES[route.method, route.path]
    without = desk.send(route.method, path, None, body)
    assert without.status_code == (status if route.is_public else 401)
    for role, token in tokens.items():
        answer = desk.send(route.method, path, token, body)
        is_caller = role in ("none", "guest") and "caller" in route.roles
        may = route.is_public or ANY_TOKEN in route.roles or role == "operator" or role in route.roles or is_caller
        assert answer.status_code == (status if may else 403), role
        assert look(answer) if may else answer.json()["fix"].startswith("tavern tokens create"), role


@pytest.mark.slow
@each_row("route", [route for route in PLAIN if not route.is_public])
def test_a_token_that_is_not_valid_is_none(desk: Served, route: Route) -> None:
    path, body, _, _ = EXAMPLES[route.method, route.path]
    revoked, text = desk.tavern.tokens.create("agent:x", roles=["operator"])
    desk.tavern.tokens.revoke(revoked.id)
    for token in (text, desk.token(days=1e-9), desk.token(audience="another"), "nonsense"):
        refused = desk.send(route.method, path, token, body)
        assert (refused.status_code, refused.json()["code"]) == (401, "POLICY_DENIED")
        assert refused.headers["www-authenticate"].startswith("Bearer")
        assert refused.headers["content-type"] == "application/problem+json"


@each_row("route", PLAIN)
def test_a_route_has_its_methods_and_no_others(desk: Served, route: Route) -> None:
    path, _, _, _ = EXAMPLES[route.method, route.path]
    refused = desk.send("DELETE", path.partition("?")[0], desk.token())
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD" if route.method == "GET" else "POST")


@each_row("route", [route for route in PLAIN if route.method == "GET"])
def test_head_has_the_headers_of_get_and_no_body(desk: Served, route: Route) -> None:
    path, _, status, _ = EXAMPLES[route.method, route.path]
    token = desk.token()
    got, head = desk.send("GET", path, token), desk.send("HEAD", path, token)
    assert (head.status_code, head.content) == (status, b"")
    for name in ("content-type", "content-length", "etag"):
        assert head.headers.get(name) == got.headers.get(name)
    assert desk.send("HEAD", "/api/events", token).status_code == 405


def test_a_websocket_is_named_as_one_to_those_who_ask_for_a_page(desk: Served) -> None:
    refused = desk.send("GET", "/ws", desk.token())
    assert (refused.status_code, refused.headers["upgrade"]) == (426, "websocket")
    assert "ws://" in refused.json()["fix"]


@each_row(
    ("method", "path", "fix"),
    [
        ("GET", "/api/jobs?statu=running", "did you mean 'status'?"),
        ("GET", "/api/jobs?colour=red", "known are status, tool, limit"),
        ("GET", "/api/tools/desk:echo?dialekt=openai", "did you mean 'dialect'?"),
        ("POST", "/api/tools/desk:echo/invoke?wait=1", "it takes none"),
    ],
)
def test_a_parameter_that_a_route_does_not_have_is_refused(desk: Served, method: str, path: str, fix: str) -> None:
    refused = desk.send(method, path, desk.token(), {"arguments": {"text": "a"}} if method == "POST" else None)
    assert (refused.status_code, refused.json()["code"], refused.json()["fix"]) == (400, "USAGE", fix)
    assert desk.send("GET", "/healthz?colour=red").status_code == 200, "a probe may add what it wants"


def test_the_document_describes_every_route_with_its_variables_and_body(desk: Served) -> None:
    paths = document(ROUTES)["paths"]
    described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert described == {(route.method, route.path) for route in ROUTES if route.method in ("GET", "POST")}
    for route in ROUTES:
        if route.method in ("GET", "POST"):
            operation = paths[route.path][route.method.lower()]
            named = {each["name"] for each in operation["parameters"]}
            assert named == {*re.findall(r"{(\w+)}", route.path), *(route.query or {})}
            assert operation["responses"]["200"]["content"].keys() == {route.media}
            assert ("requestBody" in operation) == (route.body is not None)
            assert operation["security"] == ([] if route.is_public else [{"token": []}])


DOCUMENT = document(ROUTES)


def problems_of(method: str, path: str, answer: httpx2.Response) -> list[str]:
    """The faults of an answer by the document."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    response = responses.get(str(answer.status_code), responses["default"])
    media = answer.headers["content-type"].partition(";")[0]
    if media not in response["content"]:
        return [f"{media} is not a media type of {answer.status_code}"]
    schema = {**response["content"][media]["schema"], "components": DOCUMENT["components"]}
    data = answer.text if media == "text/plain" else answer.json()
    return [error.message for error in Draft202012Validator(schema).iter_errors(data)]


ONE, INVOKED = "/api/tools/{id}", "/api/tools/{id}/invoke"
SPOKEN = "<|[REQUEST_TOOL]|>\ncommand:「始」desk:echo「末」\ntext:「始」said「末」\n<|[END_TOOL]|>"
ANSWERS: list[tuple[str, str, str, Any]] = [
    *((method, path, example[0], example[1]) for (method, path), example in EXAMPLES.items()),
    ("GET", "/api/nodes", "/api/nodes", None),
    ("GET", "/api/tools", "/api/tools?usable=true&query=text", None),
    *(("GET", ONE, f"/api/tools/desk:echo?dialect={dialect}", None) for dialect in ("json", "openai", "mcp", "none")),
    *(
        ("POST", INVOKED, f"/api/tools/{tool}/invoke", {"arguments": arguments})
        for tool, arguments in (
            ("desk:refuse", {}), ("desk:crash", {}), ("desk:echo", {"text": 1}), ("desk:pay", {"amount": 1}),
            ("desk:stock", {}), ("desk:none", {}),
        )
    ),
    ("POST", INVOKED, "/api/tools/desk:echo/invoke", {"argument": {}}),
    ("POST", "/api/tam", "/api/tam", {"text": SPOKEN}),
    ("POST", "/api/tam", "/api/tam", {"text": 1}),
    ("GET", "/api/jobs", "/api/jobs?limit=0", None),
    ("GET", "/api/jobs", "/api/jobs?status=gone", None),
]  # fmt: skip


@each_row("method, path, address, body", ANSWERS)
def test_an_answer_has_the_form_that_the_document_describes(
    desk: Served, method: str, path: str, address: str, body: Any
) -> None:
    assert problems_of(method, path, desk.send(method, address, desk.token(), body)) == []


@pytest.mark.slow
def test_every_answer_of_a_job_has_the_form_that_the_document_describes(desk: Served) -> None:
    token = desk.token("user:jobs")

    def answer(method: str, path: str, id_: str, body: Any = None) -> Any:
        got = desk.send(method, path.replace("{id}", id_), token, body)
        assert problems_of(method, path, got) == []
        return got.json()

    with desk.socket(token) as messages:
        id_ = answer("POST", INVOKED, "desk:deliver", {"arguments": {"item": "tea"}})["job"]
        while messages.until("JOB_CHANGED")[-1]["payload"]["status"] != "input_required":
            assert answer("GET", "/api/jobs/{id}", id_)["result"] is None
        assert answer("GET", "/api/jobs", "")[0]["questions"]
        assert answer("POST", "/api/jobs/{id}/answer", id_, {"value": {"count": 3}})["answered"]
        while messages.until("JOB_CHANGED")[-1]["payload"]["status"] != "completed":
            pass
    assert answer("GET", "/api/jobs/{id}", id_)["result"]["value"] == "3 of tea"
    assert answer("POST", "/api/jobs/{id}/cancel", id_) == {"jobId": id_, "cancelled": False}


@each_row(
    ("name", "made"),
    [
        ("Job", Job("job-1", "desk:echo", "queued").to_json()), ("JobWithResult", Job("job-1", "desk:echo", "queued").to_json() | {"result": None}),
        ("Result", ToolResult(True).to_json()), ("Error", ToolError("TIMEOUT", "late").to_json()),
        ("TextOutcome", TextOutcome().to_json()),
    ],
)  # fmt: skip
def test_the_document_describes_every_key_of_an_answer(name: str, made: dict[str, Any]) -> None:
    assert DOCUMENT["components"]["schemas"][name]["properties"].keys() == made.keys()


@pytest.mark.slow
def test_every_code_of_an_answer_is_a_code_of_the_project() -> None:
    assert set(STATUSES) <= set(ERROR_CODES)
    assert {code for code, row in ERROR_CODES.items() if row.call} - set(STATUSES) == {"INTERNAL"}
