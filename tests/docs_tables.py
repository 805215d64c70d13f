"""Reference tables in the docs, made from the code they describe.

    python -m tests.docs_tables      # write them again

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``; tests/test_docs.py fails when one is old.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from tinyllm.config import EngineConfig
from tinyllm.metrics import EngineMetrics
from tinyllm.params import SamplingParams

DOCS = Path(__file__).parent.parent / "docs"
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


def fields_of(model: type[BaseModel]) -> Iterator[str]:
    yield "| name | type | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in model.model_fields.items():
        default = field.get_default()
        shown = "" if default is None else f"`{default!r}`".replace("'", '"')
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


def metric_rows() -> Iterator[str]:
    yield "| name | kind | labels | meaning |"
    yield "|---|---|---|---|"
    registry: CollectorRegistry = EngineMetrics("model").registry
    for family in registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {
            label
            for sample in family.samples
            for label in sample.labels
            if label not in ("model_name", "engine", "le")
        }
        yield f"| `{name}` | {family.type} | {', '.join(sorted(labels))} | {family.documentation} |"


TABLES: dict[str, Callable[[], Iterator[str]]] = {
    "SamplingParams": lambda: fields_of(SamplingParams),
    "EngineConfig": lambda: fields_of(EngineConfig),
    "Metrics": metric_rows,
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
