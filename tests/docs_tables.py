"""Reference tables in the docs, made from the code they describe.

    python -m tests.docs_tables      # write them again

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; tests/test_docs.py fails when one is old.
"""

from __future__ import annotations

import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from tinyllm.bench.capacity.settings import CapacityOptions
from tinyllm.bench.serve.settings import ArrivalOptions, DatasetOptions, ServerOptions
from tinyllm.config import EngineConfig
from tinyllm.metrics import EngineMetrics
from tinyllm.params import SamplingParams
from tinyllm.server.app import create_app
from tinyllm.server.docs_page import kind_of
from tinyllm.server.http_metrics import HTTPMetrics
from tinyllm.server.openapi import describe, field_schemas
from tinyllm.server.protocol.body import RequestModel
from tinyllm.server.protocol.chat import ChatRequest
from tinyllm.server.protocol.completions import CompletionRequest
from tinyllm.server.protocol.fields import HARMLESS_FIELDS, REFUSED_FIELDS
from tinyllm.server.protocol.responses import ResponsesRequest
from tinyllm.server.protocol.tokenize import DetokenizeRequest, TokenizeRequest
from tinyllm.server.settings import ServerConfig

DOCS = Path(__file__).parent.parent / "docs"
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def fields_of(model: type[BaseModel], *, without: type[BaseModel] = BaseModel) -> Iterator[str]:
    yield "| name | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        if name in without.model_fields:
            continue
        default = field.get_default()
        shown = "" if default in (None, (), "") else f"`{default!r}`".replace("'", '"')
        meaning = (field.description or "").replace("``", "`").replace("\n", " ")
        yield f"| `{name}` | {type_name(field.annotation)} | {shown} | {meaning} |"


def type_name(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return type_name(args[0])
    if origin in (typing.Union, types.UnionType):
        return type_name(next(arg for arg in args if arg is not types.NoneType))
    if origin is Literal:
        return " or ".join(f"`{arg}`" for arg in args)
    if origin in (tuple, Sequence):
        return f"list of {type_name(args[0])}"
    if origin is dict:
        return f"dict of {type_name(args[0])} to {type_name(args[1])}"
    if origin is not None:
        return "callable"
    return "path" if annotation is Path else str(annotation.__name__)


def metric_rows(registry: CollectorRegistry) -> Iterator[str]:
    yield "| name | kind | labels | meaning |"
    yield "|---|---|---|---|"
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {
            label
            for sample in family.samples
            for label in sample.labels
            if label not in ("model_name", "engine", "le")
        }
        yield f"| `{name}` | {family.type} | {', '.join(sorted(labels))} | {family.documentation} |"


def http_metric_rows() -> Iterator[str]:
    metrics = HTTPMetrics()
    metrics.record("/health", "GET", 200, 0.0)  # a labelled family is empty before it is used
    return metric_rows(metrics.registry)


def body_rows(model: type[RequestModel]) -> Iterator[str]:
    """Say of every field of a request what becomes of it."""
    schemas, required = field_schemas(model)
    supported = [name for name in schemas if name not in HARMLESS_FIELDS and not is_refused(model, name)]
    yield "| field | takes | meaning |"
    yield "|---|---|---|"
    for name in sorted(supported, key=lambda name: (name not in required, name)):
        meaning = schemas[name]["description"].replace("``", "`").replace("\n", " ")
        default = schemas[name].get("default")
        if default not in (None, [], {}, ""):
            meaning += f" Default: `{json.dumps(default)}`."
        takes = kind_of(schemas[name]).replace("|", "\\|")
        yield f"| `{name}`{' (required)' if name in required else ''} | {takes} | {meaning} |"


def is_refused(model: type[RequestModel], name: str) -> bool:
    return name in model.refused or (name in REFUSED_FIELDS and name not in model.model_fields)


def harmless_rows() -> Iterator[str]:
    yield ", ".join(f"`{name}`" for name in sorted(HARMLESS_FIELDS)) + "."


def refused_rows() -> Iterator[str]:
    yield "| field | where | values that ask for nothing, and are taken | why |"
    yield "|---|---|---|---|"
    models: dict[str, type[RequestModel]] = {
        "chat": ChatRequest,
        "completions": CompletionRequest,
        "responses": ResponsesRequest,
    }
    rules = {(name, "everywhere"): rule for name, rule in REFUSED_FIELDS.items()}
    rules |= {(name, where): rule for where, model in models.items() for name, rule in model.refused.items()}
    for (name, where), (harmless, reason) in sorted(rules.items()):
        taken = ", ".join(f"`{json.dumps(value)}`" for value in harmless)
        yield f"| `{name}` | {where} | {taken} | {reason} |"


def endpoint_rows() -> Iterator[str]:
    yield "| request | what it does |"
    yield "|---|---|"
    for path, methods in describe(create_app(ServerConfig())).get("paths", {}).items():
        for method, operation in sorted(methods.items()):
            summary = operation["summary"].replace("``", "`")
            yield f"| `{method.upper()} {path}` | {summary} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "SamplingParams": lambda: fields_of(SamplingParams),
    "EngineConfig": lambda: fields_of(EngineConfig),
    "ServerConfig": lambda: fields_of(ServerConfig, without=EngineConfig),
    "BenchServer": lambda: fields_of(ServerOptions),
    "BenchDataset": lambda: fields_of(DatasetOptions),
    "BenchArrivals": lambda: fields_of(ArrivalOptions),
    "BenchCapacity": lambda: fields_of(CapacityOptions),
    "Metrics": lambda: metric_rows(EngineMetrics("model").registry),
    "HTTPMetrics": http_metric_rows,
    "Endpoints": endpoint_rows,
    "ChatRequest": lambda: body_rows(ChatRequest),
    "CompletionRequest": lambda: body_rows(CompletionRequest),
    "ResponsesRequest": lambda: body_rows(ResponsesRequest),
    "TokenizeRequest": lambda: body_rows(TokenizeRequest),
    "DetokenizeRequest": lambda: body_rows(DetokenizeRequest),
    "HarmlessFields": harmless_rows,
    "RefusedFields": refused_rows,
}


def up_to_date(text: str) -> str:
    """Return a page with its tables made again."""
    return MARKED.sub(lambda m: m[1] + "\n".join(TABLES[m[2]]()) + "\n" + m[3], text)


def main() -> None:
    """Write every page again."""
    for page in DOCS.rglob("*.md"):
        page.write_text(up_to_date(page.read_text()))


if __name__ == "__main__":
    main()
