from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.harness import USER, served
from tinyllm.errors import ConfigError
from tinyllm.server.checks import check_framing, check_origin, check_sizes
from tinyllm.server.errors import RefusedError
from tinyllm.server.guard import normal_path
from tinyllm.server.keys import load_keys
from tinyllm.server.service import Service
from tinyllm.server.settings import ServerConfig

KEY, OTHER = "sk-0123456789abcdef", "sk-fedcba9876543210"
CHAT = "/v1/chat/completions"


@pytest.mark.asyncio
async def test_without_a_key_only_health_and_the_page_are_open() -> None:
    async with served(api_keys=(KEY,)) as app:
        routes = [rule for rule in app.app.url_map.iter_rules() if not rule.rule.startswith("/static/")]
        opened = set()
        for rule in routes:
            path = rule.rule.replace("<path:name>", "a/b").replace("<path:request_id>", "a")
            for method in (rule.methods or set()) - {"OPTIONS", "HEAD"}:
                answer = await app.get(path, method)
                if answer.status == 401:
                    assert answer.error["code"] == "invalid_api_key"
                    assert answer.error["type"] == "authentication_error"
                    assert answer.headers["www-authenticate"].startswith("Bearer")
                else:
                    opened.add(path)
        assert opened == {"/", "/health", "/live", "/ready"}
        for path in ("/nope", "/v1", "/v1/../health/x", "//v1//models", "/health/x", "/Health"):
            assert (await app.get(path)).status == 401, path
        for header in (
            "",
            "Bearer",
            "Bearer wrong",
            f"Basic {KEY}",
            f"Bearer {KEY}x",
            f"Bearer {KEY[:-1]}",
            KEY,
        ):
            assert (await app.get("/v1/models", Authorization=header)).status == 401, header
        for header in (f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "):
            assert (await app.get("/v1/models", Authorization=header)).status == 200, header
        assert (await app.get("/nope", Authorization=f"Bearer {KEY}")).status == 404


@pytest.mark.asyncio
async def test_metrics_can_be_public() -> None:
    async with served(api_keys=(KEY,), public_metrics=True) as app:
        answer = await app.get("/metrics")
        assert answer.status == 200
        assert "tinyllm:num_requests_running" in answer.text


@pytest.mark.asyncio
async def test_several_keys_from_variable_and_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n  {OTHER}  \n")
    async with served(api_keys=(KEY,), api_key_file=file) as app:
        for key in (KEY, OTHER):
            assert (await app.get("/v1/models", Authorization=f"Bearer {key}")).status == 200
        assert KEY not in (await app.get("/props", Authorization=f"Bearer {KEY}")).text
        assert str(tmp_path) not in (await app.get("/props", Authorization=f"Bearer {KEY}")).text


@pytest.mark.parametrize("text", ["", "# nothing\n", "short\n", "has a space in it, which is no good\n"])
def test_files_without_good_keys(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_keys(ServerConfig(api_key_file=file))
    assert "space in it" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_keys(ServerConfig(api_key_file=tmp_path / "none"))


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("192.168.7.7", 200),
        ("llm.example:443", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("", 400),
        ("a b", 400),
        ("localhost:x", 400),
        ("user@localhost", 400),
        ("localhost/", 400),
    ],
)
async def test_host(host: str, status: int) -> None:
    async with served(allowed_hosts=("LLM.example",), ready=False) as app:
        for path in ("/health", "/", "/static/x.js", "/v1/models"):
            answer = await app.get(path, Host=host)
            assert answer.status == (404 if status == 200 and "static" in path else status), path
        if status != 200:
            assert answer.error["code"] in ("unknown_host", "invalid_host")


@pytest.mark.asyncio
async def test_any_host_if_told() -> None:
    async with served(allowed_hosts=("*",), ready=False) as app:
        assert (await app.get("/health", Host="whatever.example")).status == 200


@pytest.mark.asyncio
async def test_other_sites_may_not_use_the_server() -> None:
    async with served(ready=False) as app:
        for origin in (
            "https://evil.example",
            "null",
            "http://localhost:3000",
            "localhost",
            "http://",
            "http://[::1",
        ):
            answer = await app.get("/v1/models", Origin=origin, Host="localhost:8000")
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed"), origin
            assert "access-control-allow-origin" not in answer.headers
        assert (
            await app.get("/v1/models", Origin="http://localhost:8000", Host="localhost:8000")
        ).status == 200
        assert (await app.get("/v1/models", Origin="https://LOCALHOST", Host="localhost")).status == 200
        cross = {"Sec_Fetch_Site": "cross-site"}
        assert (await app.get("/v1/models", **cross)).status == 403
        assert (await app.get("/", **cross)).status == 403
        assert (await app.get("/", **cross, Sec_Fetch_Mode="navigate")).status == 200
        assert (await app.get("/v1/models", **cross, Sec_Fetch_Mode="navigate")).status == 403
        assert (await app.get("/v1/models", Sec_Fetch_Site="same-origin")).status == 200


@pytest.mark.asyncio
async def test_cors_for_configured_origins() -> None:
    origin = "https://app.example"
    asked = {"Access_Control_Request_Method": "POST"}
    asked["Access_Control_Request_Headers"] = (
        "authorization, content-type, x-stainless-os, openai-project, x-evil"
    )
    async with served(cors_origins=(origin,), api_keys=(KEY,)) as app:
        preflight = await app.get(CHAT, "OPTIONS", Origin=origin, **asked)
        assert (preflight.status, preflight.text) == (204, "")
        assert preflight.headers["access-control-allow-origin"] == origin
        allowed = "authorization, content-type, x-stainless-os, openai-project"
        assert preflight.headers["access-control-allow-headers"] == allowed
        assert "POST" in preflight.headers["access-control-allow-methods"]
        answer = await app.get("/v1/models", Origin=origin, Authorization=f"Bearer {KEY}")
        assert answer.headers["access-control-allow-origin"] == origin
        exposed = answer.headers["access-control-expose-headers"].split(", ")
        assert {"x-request-id", "retry-after", "x-should-retry"} <= set(exposed)
        assert answer.headers["vary"] == "origin"
        refused = await app.get("/v1/models", Origin=origin)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == origin
        assert (await app.get(CHAT, "OPTIONS", Origin="https://evil.example", **asked)).status == 403
        assert (await app.get(CHAT, "OPTIONS")).status == 401


def scope(**values: Any) -> dict[str, Any]:
    plain = {"http_version": "1.1", "scheme": "http", "method": "POST", "path": "/", "raw_path": b"/"}
    return {**plain, "query_string": b"", "headers": [], **values}


def test_framing() -> None:
    config = ServerConfig()
    check_framing(scope(), {"content-length": "3"}, config)
    with pytest.raises(RefusedError):
        check_framing(scope(), {"content-length": "3", "transfer-encoding": "chunked"}, config)
    with pytest.raises(RefusedError):
        check_framing(scope(http_version="2"), {}, config)
    check_framing(scope(http_version="2", scheme="https"), {}, config)
    check_framing(scope(headers=[(b"cookie", b"a"), (b"cookie", b"b"), (b"host", b"a")]), {}, config)
    for name in (b"Host", b"origin", b"Authorization", b"content-type", b"Content-Encoding"):
        with pytest.raises(RefusedError, match="once"):
            check_framing(scope(headers=[(name, b"a"), (b"x", b"y"), (name, b"a")]), {}, config)
    check_framing(scope(http_version="2"), {}, ServerConfig(h2c=True))


def test_sizes() -> None:
    config = ServerConfig(max_headers=2, max_header_bytes=300, max_url_bytes=64)
    check_sizes(scope(headers=[(b"a", b"b")] * 2, raw_path=b"/" * 64), config)
    for values, status in (
        ({"headers": [(b"a", b"b")] * 3}, 431),
        ({"headers": [(b"a", b"b" * 300)]}, 431),
        ({"raw_path": b"/" * 60, "query_string": b"aaaaa"}, 414),
    ):
        with pytest.raises(RefusedError) as caught:
            check_sizes(scope(**values), config)
        assert caught.value.fault.status == status


def test_a_configured_origin_may_be_cross_site() -> None:
    config = ServerConfig(cors_origins=("https://app.example",))
    check_origin(scope(), {"origin": "https://app.example", "sec-fetch-site": "cross-site"}, config)


@pytest.mark.asyncio
async def test_every_response_has_an_id_and_safe_headers() -> None:
    async with served() as app:
        for path, method in (("/health", "GET"), ("/nope", "GET"), ("/v1/models", "DELETE"), ("/", "GET")):
            answer = await app.get(path, method)
            assert len(answer.headers["x-request-id"]) == 32
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "access-control-allow-origin" not in answer.headers
        assert (await app.get("/health", X_Request_Id="mine")).headers["x-request-id"] == "mine"
        for given in ("a b", "é", "x" * 129, "", "a\tb"):
            assert len((await app.get("/health", X_Request_Id=given)).headers["x-request-id"]) == 32
        page = await app.get("/")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "<script>" not in page.text


@pytest.mark.asyncio
async def test_errors_of_the_framework_have_the_envelope() -> None:
    async with served(max_body_bytes=500) as app:
        missing = await app.get("/nope")
        assert (missing.status, missing.error["code"]) == (404, "not_found")
        wrong = await app.get(CHAT)
        assert (wrong.status, wrong.error["code"], "POST" in wrong.headers["allow"]) == (
            405,
            "method_not_allowed",
            True,
        )
        large = await app.post(CHAT, messages=USER, user="x" * 1000)
        assert (large.status, large.error["code"]) == (413, "body_too_large")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
            answer = await app.post_raw(CHAT, b"{}", content_type=kind)
            assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type"), kind
        packed = await app.post_raw(CHAT, b"{}", content_encoding="gzip")
        assert packed.status == 415
        charset = await app.post_raw(
            "/tokenize", b'{"prompt": "a"}', content_type="application/json; charset=utf-8"
        )
        assert charset.status == 200


@pytest.mark.asyncio
async def test_what_nobody_expected_is_not_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served() as app:
        app.templates.fault = RuntimeError("/secret/path")
        answer = await app.post(CHAT, messages=USER)
        assert answer.status == 500
        assert "secret" not in answer.text
        monkeypatch.setattr(Service, "check_model", lambda *_: 1 / 0)
        answer = await app.post(CHAT, messages=USER)
    assert (answer.status, answer.error["code"]) == (500, "internal_error")
    assert "division" not in answer.text
    assert answer.headers["x-request-id"] in caplog.text


@pytest.mark.parametrize(
    ("path", "root", "expected"),
    [
        ("/v1//models/", "", "/v1/models"),
        ("//", "", "/"),
        ("", "", "/"),
        ("/llm/v1/models", "/llm", "/v1/models"),
        ("/v1/models", "/llm", "/v1/models"),
        ("/llm", "/llm", "/"),
        ("/llmx", "/llm", "/llmx"),
    ],
)
def test_paths(path: str, root: str, expected: str) -> None:
    assert normal_path(path, root) == expected


@pytest.mark.asyncio
async def test_careless_urls_work() -> None:
    async with served(root_path="/llm") as app:
        for path in ("/v1//models", "/v1/models/", "/llm/v1/models", "/llm//v1/models/"):
            assert (await app.get(path)).status == 200, path


@pytest.mark.asyncio
async def test_keys_do_not_share_cached_prefixes() -> None:
    async with served(api_keys=(KEY, OTHER)) as app:

        async def cached(key: str, **fields: Any) -> int:
            headers = {"authorization": f"Bearer {key}"}
            body = {"prompt": "x" * 64, "max_tokens": 1, **fields}
            usage = (await app.post("/v1/completions", body, headers=headers)).json["usage"]
            count: int = usage["prompt_tokens_details"]["cached_tokens"]
            return count

        assert await cached(KEY) == 0
        assert await cached(KEY) > 0
        assert await cached(OTHER) == 0
        assert await cached(KEY, cache_salt="mine") == 0


@pytest.mark.asyncio
async def test_without_keys_prefixes_are_shared_only_if_told() -> None:
    for policy, shared in (("per-key", False), ("off", False), ("process-global", True)):
        async with served(prefix_cache=policy) as app:
            body = {"prompt": "x" * 64, "max_tokens": 1}
            await app.post("/v1/completions", body)
            usage = (await app.post("/v1/completions", {**body, "n": 3})).json["usage"]
        assert (usage["prompt_tokens_details"]["cached_tokens"] > 0) is shared
