"""From a JSON object to a checked request: nulls, unsupported and unknown fields, then the models."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from tinyllm.errors import InvalidRequestError
from tinyllm.faults import first_fault
from tinyllm.params import SamplingParams
from tinyllm.server.protocol.fields import (
    HARMLESS_FIELDS,
    REFUSED_FIELDS,
    Refusals,
    refuse_unsupported,
    without_nulls,
)

__all__ = ["RequestModel", "StrictModel", "UnknownFieldError", "listed", "parse_body"]

logger = logging.getLogger("tinyllm.server")

SAMPLING_FIELDS: Final = frozenset(SamplingParams.model_fields) - {"logits_processors"}
MAX_LISTED_FIELDS: Final = 16


class UnknownFieldError(InvalidRequestError):
    """Nobody knows this field, and the server is strict about it."""

    code = "unknown_parameter"


class StrictModel(BaseModel):
    """An object in a request: no type is made of another. Names that it lacks are dealt with before."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class RequestModel(StrictModel):
    """A request's own fields. Those of `SamplingParams` come beside them where `samples` says so."""

    samples: ClassVar[bool] = False
    """Whether the body may hold the fields of `SamplingParams` too."""

    refused: ClassVar[Refusals] = {}
    """Fields that this request alone refuses, beside `REFUSED_FIELDS`."""

    model: str | None = None
    """A name the server gives its model; without one, the model there is."""


M = TypeVar("M", bound=RequestModel)


def parse_body(
    body: object, model: type[M], *, strict_fields: bool = False
) -> tuple[M, dict[str, Any], list[str]]:
    """Return the request, the sampling fields that were given, and the names of unknown fields.

    A null means that the field is absent. Raises `InvalidRequestError`, whose ``param`` names the field.
    """
    if not isinstance(body, Mapping):
        raise InvalidRequestError("the body must be a JSON object")
    given = without_nulls(body)
    refusals = {name: rule for name, rule in REFUSED_FIELDS.items() if name not in model.model_fields}
    refusals |= model.refused
    refuse_unsupported(given, refusals)
    own = {name: given.pop(name) for name in model.model_fields if name in given}
    sampling = {name: given.pop(name) for name in SAMPLING_FIELDS if name in given} if model.samples else {}
    unknown = [name for name in given if name not in HARMLESS_FIELDS and name not in refusals]
    unknown += _prune(model, own)
    if unknown and strict_fields:
        name = unknown[0][:80]
        raise UnknownFieldError(f"unknown field {name!r} (the server runs with --strict-fields)", param=name)
    return _validated(model, own), sampling, listed(unknown)


def _prune(model: type[RequestModel], own: dict[str, Any]) -> list[str]:
    """Do the same to the objects in a body: take out nulls and unknown names, and return the latter."""
    unknown = []
    for name, value in own.items():
        known = _fields_of(model.model_fields[name].annotation)
        if known and isinstance(value, Mapping):
            given = without_nulls(value)
            unknown += [f"{name}.{key}" for key in given if key not in known]
            own[name] = {key: inner for key, inner in given.items() if key in known}
    return unknown


def _fields_of(annotation: Any) -> Collection[str]:
    """Return the fields of the object that a field takes; none if it takes something else."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, StrictModel):
            return kind.model_fields
    return ()


def _validated(model: type[M], own: Mapping[str, Any]) -> M:
    try:
        return model.model_validate(own)
    except ValidationError as error:
        field, message = first_fault(error)
        raise InvalidRequestError(message, param=field) from None


def listed(unknown: Sequence[str]) -> list[str]:
    """Log names of fields that have no effect, and return them as they fit into a header."""
    names = [name[:64] for name in unknown[:MAX_LISTED_FIELDS]]
    names = [name if name.isascii() and name.isidentifier() else ascii(name)[1:-1] for name in names]
    names = [name[:64].replace(",", "?") for name in names]
    if names:
        logger.warning("request fields without a meaning here: %s", ", ".join(names))
    return names
