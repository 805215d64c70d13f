from __future__ import annotations

import pytest

from tests.server.harness import USER, Served, served
from tinyllm.server.http_metrics import HTTPMetrics

pytestmark = pytest.mark.asyncio

KEY = "k" * 32
CHAT = "/v1/chat/completions"


def count(app: Served, handler: str, method: str, status: int) -> float | None:
    labels = {"handler": handler, "method": method, "status": str(status)}
    return app.service.http_metrics.registry.get_sample_value("http_requests_total", labels)


async def test_requests_are_counted_by_route_method_and_status() -> None:
    async with served(api_keys=(KEY,)) as app:
        key = {"Authorization": f"Bearer {KEY}"}
        assert (await app.post(CHAT, headers=key, messages=USER, max_tokens=2)).status == 200
        assert (await app.post(CHAT, headers=key, messages=USER, temperature=-1)).status == 400
        assert (await app.get("/v1/models/a/b", **key)).status == 404
        assert (await app.get("/nothing/here", **key)).status == 404
        assert (await app.get(CHAT, **key)).status == 405
        assert (await app.get("/v1/models")).status == 401
        assert count(app, CHAT, "POST", 200) == count(app, CHAT, "POST", 400) == 1
        assert count(app, "/v1/models/<path:name>", "GET", 404) == 1
        assert count(app, "none", "GET", 404) == 1
        assert count(app, "none", "GET", 405) == 1
        assert count(app, "none", "GET", 401) == 1
        text = (await app.get("/metrics", **key)).text
        assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="200"} 1.0' in text
        assert 'http_request_duration_seconds_count{handler="/v1/chat/completions",method="POST"} 2.0' in text
        assert "tinyllm:num_requests_running" in text


async def test_clients_cannot_make_series() -> None:
    metrics = HTTPMetrics()
    for i in range(100):
        metrics.record("", f"M{i}", 405, 0.1)
    metrics.record("/x", "GET", 0, 0.1)
    text = metrics.text()
    assert 'http_requests_total{handler="none",method="other",status="405"} 100.0' in text
    assert 'http_requests_total{handler="/x",method="GET",status="499"} 1.0' in text
    assert text.count("http_requests_total{") == 2
