"""What successful responses look like, for ``/openapi.json``; tests hold the server to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["RESPONSES"]

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TIME: Final[Schema] = {"type": "integer", "description": "Seconds since 1970."}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
ANY_OBJECT: Final[Schema] = {"type": "object"}
FINISH: Final[Schema] = {"type": "string", "enum": ["stop", "length"]}


def list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def record(optional: Mapping[str, Schema] | None = None, /, **required: Schema) -> Schema:
    """Return the schema of an object that has these fields and no others."""
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }


def constant(value: str) -> Schema:
    return {"type": "string", "const": value}


USAGE: Final = record(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=record(cached_tokens=COUNT),
    completion_tokens_details=record(reasoning_tokens=COUNT),
)

_TOKEN: Final = {"token": TEXT, "logprob": NUMBER, "bytes": list_of({"type": "integer"})}
_STOP_REASON: Final = {"anyOf": [TEXT, COUNT, {"type": "null"}]}
_PROMPT_LOGPROBS: Final = list_of(or_null(ANY_OBJECT))
_TOKEN_IDS: Final = list_of(COUNT)
_HEAD: Final = {"id": TEXT, "created": TIME, "model": TEXT, "system_fingerprint": TEXT}

CHAT: Final = record(
    {"prompt_token_ids": _TOKEN_IDS, "prompt_logprobs": _PROMPT_LOGPROBS},
    **_HEAD,
    object=constant("chat.completion"),
    usage=USAGE,
    choices=list_of(
        record(
            {"token_ids": _TOKEN_IDS},
            index=COUNT,
            message=record(
                {"reasoning": TEXT, "reasoning_content": TEXT},
                role=constant("assistant"),
                content=TEXT,
                refusal={"type": "null"},
            ),
            logprobs=or_null(
                record(
                    content=list_of(record(**_TOKEN, top_logprobs=list_of(record(**_TOKEN)))),
                    refusal={"type": "null"},
                )
            ),
            finish_reason=FINISH,
            stop_reason=_STOP_REASON,
        )
    ),
)

COMPLETION: Final = record(
    **_HEAD,
    object=constant("text_completion"),
    usage=USAGE,
    choices=list_of(
        record(
            {
                "token_ids": _TOKEN_IDS,
                "prompt_token_ids": _TOKEN_IDS,
                "prompt_logprobs": _PROMPT_LOGPROBS,
            },
            index=COUNT,
            text=TEXT,
            logprobs=or_null(
                record(
                    tokens=list_of(TEXT),
                    token_logprobs=list_of(or_null(NUMBER)),
                    top_logprobs=list_of(or_null({"type": "object", "additionalProperties": NUMBER})),
                    text_offset=list_of(COUNT),
                )
            ),
            finish_reason=FINISH,
            stop_reason=_STOP_REASON,
        )
    ),
)

RESPONSE: Final[Schema] = {
    "type": "object",
    "required": ["id", "object", "created_at", "status", "model", "output", "usage", "incomplete_details"],
    "properties": {
        "id": TEXT,
        "object": constant("response"),
        "created_at": TIME,
        "status": {"type": "string", "enum": ["completed", "incomplete"]},
        "model": TEXT,
        "output": list_of(ANY_OBJECT),
        "usage": record(
            input_tokens=COUNT,
            output_tokens=COUNT,
            total_tokens=COUNT,
            input_tokens_details=ANY_OBJECT,
            output_tokens_details=ANY_OBJECT,
        ),
        "incomplete_details": or_null(record(reason=TEXT)),
    },
}

MODEL: Final = record(
    id=TEXT,
    object=constant("model"),
    created=TIME,
    owned_by=TEXT,
    root=TEXT,
    parent={"type": "null"},
    max_model_len=or_null(COUNT),
)

CANCELLED: Final = record(id=TEXT, object=constant("request.cancelled"), cancelled=FLAG)
ALIVE: Final = record(status=constant("ok"))

RESPONSES: Final[Mapping[str, Schema]] = {
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/render": record(
        prompt=TEXT,
        prompt_token_ids=_TOKEN_IDS,
        tokens=list_of(record(text=TEXT, special={"type": "boolean"})),
        count=COUNT,
        max_model_len=COUNT,
    ),
    "/v1/completions": COMPLETION,
    "/v1/responses": RESPONSE,
    "/v1/models": record(object=constant("list"), data=list_of(MODEL)),
    "/v1/models/{name}": MODEL,
    "/v1/requests/{request_id}": CANCELLED,
    "/v1/requests/{request_id}/cancel": CANCELLED,
    "/tokenize": record(
        count=COUNT, max_model_len=COUNT, tokens=_TOKEN_IDS, token_strs=or_null(list_of(TEXT))
    ),
    "/detokenize": record(prompt=TEXT),
    "/health": ALIVE,
    "/live": ALIVE,
    "/ready": record(status=constant("ready"), model=TEXT),
    "/version": record(version=TEXT),
    "/props": ANY_OBJECT,
    "/openapi.json": ANY_OBJECT,
}
"""By path. Those that are missing do not answer with JSON."""
