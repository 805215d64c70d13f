from __future__ import annotations

from typing import Any

import pytest

from tests.server.harness import served
from tinyllm.server.openapi import BODIES, field_schemas
from tinyllm.server.openapi_responses import RESPONSES
from tinyllm.server.protocol.body import SAMPLING_FIELDS, RequestModel
from tinyllm.server.protocol.fields import HARMLESS_FIELDS, REFUSED_FIELDS

pytestmark = pytest.mark.asyncio

NOT_JSON = {"/", "/docs", "/metrics", "/static/{name}"}


async def test_every_route_is_described() -> None:
    async with served(ready=False) as app:
        document = (await app.get("/openapi.json")).json
        routes = {
            (rule.rule.replace("<path:", "{").replace(">", "}"), method.lower())
            for rule in app.app.url_map.iter_rules()
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        }
    assert document["openapi"] == "3.1.0"
    assert {(path, method) for path, methods in document["paths"].items() for method in methods} == routes
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation["summary"]
            assert {"200", "400", "500", "503"} <= set(operation["responses"])
            assert ("requestBody" in operation) == (path in BODIES)
            kinds = operation["responses"]["200"]["content"]
            assert ("application/json" in kinds) == (path in RESPONSES) == (path not in NOT_JSON)


async def test_references_lead_somewhere_and_nothing_leads_out() -> None:
    async with served(ready=False) as app:
        answer = await app.get("/openapi.json")
        page = (await app.get("/docs")).text

    def references(node: Any) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
            return own + [reference for value in node.values() for reference in references(value)]
        return (
            [reference for item in node for reference in references(item)] if isinstance(node, list) else []
        )

    for reference in references(answer.json):
        assert reference.removeprefix("#/components/schemas/") in answer.json["components"]["schemas"]
    assert "http" not in page.replace("http://www.w3.org", "")
    for field in ("temperature", "messages", "guided_json", "prompt_cache_key"):
        assert f"<code>{field}</code>" in page
    assert "``" not in page
    for field in ("messages", "prompt", "input", "tokens"):
        assert f"<code>{field}</code> (required)" in page


def refused_by(model: type[RequestModel]) -> set[str]:
    return set(REFUSED_FIELDS) - set(model.model_fields) | set(model.refused)


async def test_every_field_is_described() -> None:
    for model in BODIES.values():
        fields, required = field_schemas(model)
        assert set(required) <= set(fields)
        for name, schema in fields.items():
            assert schema.get("description"), (model, name)
            assert schema["description"].startswith("Refused") == (name in refused_by(model)), (model, name)
        if model.samples:
            assert set(fields) >= SAMPLING_FIELDS - set(model.refused) | HARMLESS_FIELDS | set(REFUSED_FIELDS)


async def test_a_path_that_a_proxy_shows_it_under_is_described() -> None:
    for root_path, url in (("", "/"), ("/ai", "/ai")):
        async with served(root_path=root_path) as app:
            for path in ("/openapi.json", f"{root_path}/openapi.json"):
                assert (await app.get(path)).json["servers"] == [{"url": url}]
