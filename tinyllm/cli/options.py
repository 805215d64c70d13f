"""Flags made from the fields of a pydantic model, so that an option is declared once."""

from __future__ import annotations

import argparse
import re
import types
import typing
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tinyllm.config import EngineConfig
from tinyllm.errors import ConfigError
from tinyllm.params import SamplingParams

if TYPE_CHECKING:
    from tinyllm.server.settings import ServerConfig

__all__ = [
    "add_engine_options",
    "add_options",
    "add_sampling_options",
    "add_server_options",
    "engine_config",
    "given_options",
    "sampling_params",
    "server_config",
]

NOT_ON_THE_COMMAND_LINE = {"logits_processors", "hub_token", "api_keys"}
"""A Python callable cannot be typed, and a secret must not be: it would show in the process list."""


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every field of `EngineConfig`."""
    add_options(parser.add_argument_group("engine"), EngineConfig)


def add_sampling_options(parser: argparse.ArgumentParser, *, without: Collection[str] = ()) -> None:
    """Add a flag for every field of `SamplingParams`, but for those that the command has no use for."""
    add_options(parser.add_argument_group("sampling"), SamplingParams, without=without)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add a flag for every field of `ServerConfig`, the engine's in a group of their own."""
    from tinyllm.server.settings import ServerConfig

    add_options(parser.add_argument_group("server"), ServerConfig, without=EngineConfig.model_fields)
    add_engine_options(parser)


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """Return the config of the flags that were given. Raises `ConfigError`, which names the flag."""
    try:
        return EngineConfig(**given_options(args, EngineConfig))
    except ConfigError as error:
        raise ConfigError(re.sub(r"^EngineConfig: (\w+)", _flag_of, str(error))) from None


def server_config(args: argparse.Namespace) -> ServerConfig:
    """Return the config of flags, variables and file. Raises `ConfigError`, which names the option."""
    from tinyllm.server.settings import ServerConfig

    try:
        return ServerConfig(**given_options(args, ServerConfig))
    except ConfigError as error:
        raise ConfigError(str(error).removeprefix("ServerConfig: ")) from None


def sampling_params(args: argparse.Namespace, **defaults: Any) -> SamplingParams:
    """Return the params of the flags that were given, else of ``defaults``. Raises `InvalidRequestError`."""
    values = defaults | given_options(args, SamplingParams)
    if "logit_bias" in values:
        values["logit_bias"] = dict(_token_bias(entry) for entry in values["logit_bias"])
    return SamplingParams(**values)


def add_options(
    group: argparse._ArgumentGroup, model: type[BaseModel], *, without: Collection[str] = ()
) -> None:
    """Add a flag for every field of a model."""
    for name, field in model.model_fields.items():
        if name not in NOT_ON_THE_COMMAND_LINE and name not in without:
            _add_option(group, name, field)


def _add_option(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    flag = _flag(name)
    text = (field.description or "").replace("``", "").replace("%", "%%")
    default = field.get_default()
    if default not in (None, (), ""):
        text += f" (default: {default})"
    options: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
    kind = _plain(field.annotation)
    if kind is bool:
        group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
    elif get_origin(kind) is Literal:
        group.add_argument(flag, choices=get_args(kind), **options)
    elif get_origin(kind) in (Sequence, tuple):
        element = _plain(get_args(kind)[0])
        group.add_argument(flag, action="append", type=element, metavar=_metavar(element), **options)
    elif get_origin(kind) is dict:
        group.add_argument(flag, action="append", metavar="ID=VALUE", **options)
    else:
        group.add_argument(flag, type=kind, metavar=_metavar(kind), **options)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _flag_of(match: re.Match[str]) -> str:
    return _flag(match[1])


def _plain(annotation: Any) -> Any:
    """Strip ``Annotated[...]`` and ``| None`` from a type."""
    if get_origin(annotation) is typing.Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(part for part in get_args(annotation) if part is not type(None)))
    return annotation


def _metavar(kind: type) -> str:
    return {int: "N", float: "X", Path: "PATH"}.get(kind, "TEXT")


def given_options(args: argparse.Namespace, model: type[BaseModel]) -> dict[str, Any]:
    """Return the fields of a model whose flags were given."""
    names: Collection[str] = model.model_fields
    return {name: value for name, value in vars(args).items() if name in names}


def _token_bias(entry: str) -> tuple[str, float]:
    token_id, _, value = entry.partition("=")
    try:
        return token_id, float(value)
    except ValueError:
        raise ConfigError(f"--logit-bias takes ID=VALUE, such as 42=-100 (got {entry!r})") from None
