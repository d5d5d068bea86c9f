"""Against a real n8n: ``TAVERN_TEST_N8N`` is its address, ``TAVERN_TEST_N8N_KEY`` a key of its API with all rights on workflows and executions.

Two workflows are made there, activated, called and deleted.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.upstreams.opening import failure, opened

pytestmark = pytest.mark.anyio

URL = os.environ["TAVERN_TEST_N8N"].rstrip("/")
KEY = os.environ["TAVERN_TEST_N8N_KEY"]
NOTE = (
    'Echoes its text.\n```tavern\n{"parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}\n```'
)


def node(name: str, kind: str, version: float, **parameters: Any) -> dict[str, Any]:
    return {
        "id": str(uuid.uuid4()), "name": name, "type": f"n8n-nodes-base.{kind}", "typeVersion": version, "position": [0, 0],
        "parameters": parameters,
    }  # fmt: skip


def chain(name: str, nodes: list[dict[str, Any]], *others: dict[str, Any]) -> dict[str, Any]:
    """A workflow whose nodes follow one another."""
    steps = itertools.pairwise(nodes)
    connections = {one["name"]: {"main": [[{"node": two["name"], "type": "main", "index": 0}]]} for one, two in steps}
    settings = {"saveDataSuccessExecution": "all", "saveDataErrorExecution": "all"}
    return {"name": name, "nodes": [*nodes, *others], "connections": connections, "settings": settings}


def workflows(name: str) -> list[dict[str, Any]]:
    def hook(path: str, mode: str) -> dict[str, Any]:
        made = node("Webhook", "webhook", 2, httpMethod="POST", path=path, responseMode=mode)
        return {**made, "webhookId": str(uuid.uuid4())}

    response = {
        "respondWith": "json",
        "responseBody": '={{ {"jobId": $execution.id} }}',
        "options": {"responseCode": 202},
    }
    quick = [hook(f"{name}-quick", "lastNode"), node("Last", "noOp", 1)]
    slow = [
        hook(f"{name}-slow", "responseNode"),
        node("Respond", "respondToWebhook", 1.1, **response),
        node("Last", "noOp", 1),
    ]
    return [chain(f"{name}-quick", quick, node("Note", "stickyNote", 1, content=NOTE)), chain(f"{name}-slow", slow)]


@asynccontextmanager
async def made(name: str) -> AsyncIterator[None]:
    ids: list[str] = []
    async with httpx2.AsyncClient(base_url=f"{URL}/api/v1", headers={"X-N8N-API-KEY": KEY}) as api:
        try:
            for workflow in workflows(name):
                answer = await api.post("/workflows", json=workflow)
                assert answer.status_code == 200, answer.text
                ids.append(answer.json()["id"])
                activated = await api.post(f"/workflows/{ids[-1]}/activate")
                assert activated.status_code == 200, activated.text
            yield
        finally:
            for one in ids:
                await api.delete(f"/workflows/{one}")


async def test_workflows_are_found_called_and_followed(tmp_path: Path) -> None:
    name = f"tavern-test-{uuid.uuid4().hex[:8]}"
    settings = {"apiKey": {"$secret": "n8n"}, "webhooks": {"nowhere": {"path": f"{name}-nowhere"}}}
    entry = {"kind": "n8n", "url": URL, "idempotencyHeader": "Idempotency-Key", "settings": settings}
    async with made(name), opened(tmp_path, {"n8n": entry}, secrets={"n8n": KEY}) as host:
        await host.upstreams.check("n8n")
        await host.upstreams.refresh("n8n")
        quick = host.tools.get(f"n8n:{name}-quick")
        assert quick is not None and "text" in quick.input_schema["properties"]
        result = await host.invoke(quick.id, {"text": "Hello"}, idempotency_key="key-of-the-test")
        assert result.ok, result.error
        assert result.value["body"] == {"text": "Hello"}
        assert result.value["headers"]["idempotency-key"] == "key-of-the-test"
        followed = await host.invoke(f"n8n:{name}-slow", {"text": "later"})
        assert followed.ok, followed.error
        assert followed.value["body"] == {"text": "later"}
        assert failure(await host.invoke("n8n:nowhere", {})) == ("UPSTREAM_ERROR", "none", "inactive")
