"""Chats that are stored, with the official client and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from test_chat_api import CAPITAL, ask

from patience import PATIENCE_SECONDS
from running_server import MODEL, RunningServer
from treadle.server.settings import ServerSettings

pytestmark = pytest.mark.model


@pytest.fixture
def client(native_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{native_server.url}/v1", api_key="none") as client:
        yield client


def test_the_official_client(client: openai.OpenAI) -> None:
    fields: Any = {"model": MODEL, "messages": CAPITAL, "temperature": 0, "max_tokens": 8, "store": True}
    label = {"trial": "official"}
    first = client.chat.completions.create(metadata=label, **fields)
    chunks = list(client.chat.completions.create(metadata=label, stream=True, **fields))
    streamed = client.chat.completions.retrieve(chunks[0].id)
    assert streamed.choices[0].message == first.choices[0].message
    assert (streamed.object, streamed.usage and streamed.usage.completion_tokens) == (
        "chat.completion",
        first.usage and first.usage.completion_tokens,
    )
    assert client.chat.completions.retrieve(first.id) == first
    # Whole pages, one after the other.
    assert [each.id for each in client.chat.completions.list(metadata=label, limit=1)] == [first.id, streamed.id]
    assert not client.chat.completions.list(model="other").data
    [message] = client.chat.completions.messages.list(first.id).data
    assert (message.id, message.role, message.content) == (f"{first.id}-0", "user", CAPITAL[0]["content"])
    assert client.chat.completions.update(first.id, metadata={"trial": "again"}).id == first.id
    assert [each.id for each in client.chat.completions.list(metadata=label)] == [streamed.id]
    assert client.chat.completions.delete(first.id).deleted
    for gone in (
        client.chat.completions.retrieve,
        client.chat.completions.delete,
        client.chat.completions.messages.list,
    ):
        with pytest.raises(openai.NotFoundError):
            gone(first.id)


def test_what_is_not_stored_is_not_there(direct: httpx.Client) -> None:
    for fields in ({}, {"store": False}):
        assert direct.get(f"/v1/chat/completions/{ask(direct, **fields).json()['id']}").status_code == 404
    response = direct.post("/v1/responses", json={"input": "a", "max_output_tokens": 2}).json()
    assert direct.get(f"/v1/chat/completions/{response['id']}").status_code == 404
    chat = ask(direct, store=True).json()
    assert direct.get(f"/v1/responses/{chat['id']}").status_code == 404
    assert direct.delete(f"/v1/responses/{chat['id']}").status_code == 404


def test_chats_are_listed_to_those_who_stored_them(smollm2_path: Path) -> None:
    running = RunningServer(smollm2_path, ServerSettings(api_keys=("one", "two")))
    try:
        with httpx.Client(base_url=running.url, timeout=PATIENCE_SECONDS) as http:
            http.headers["x-api-key"] = "one"
            stored = ask(http, store=True).json()["id"]
            assert [each["id"] for each in http.get("/v1/chat/completions").json()["data"]] == [stored]
            http.headers["x-api-key"] = "two"
            assert http.get("/v1/chat/completions").json()["data"] == []
    finally:
        running.close()
