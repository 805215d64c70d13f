"""`ServerConfig`: every option of the server and its engine; the one source of flags, variables and docs."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from tinyllm.artifacts.files import read_option_file
from tinyllm.config import EngineConfig
from tinyllm.errors import ConfigError

__all__ = ["ENV_PREFIX", "ServerConfig", "unknown_variables"]

ENV_PREFIX = "TINYLLM_"
OTHER_VARIABLES = {"TINYLLM_NATIVE"}
"""These mean something, and are no options."""


def _split(value: Any) -> Any:
    """Read a list from a variable: its entries are separated by commas."""
    if isinstance(value, str):
        parts = tuple(part.strip() for part in value.split(",") if part.strip())
        if value and not parts:  # who gives keys that are none does not want a server that is open to anybody
            raise ValueError("has nothing but commas and spaces in it")
        return parts
    return value


_Name = Annotated[str, Field(pattern=r"^\P{C}*[^\s,\p{C}]\P{C}*$")]
"""Shown to clients and in logs, so without control characters; not of commas and spaces alone."""
_Origin = Annotated[str, Field(pattern=r"^(\*|null|[a-z][a-z0-9+.-]*://[^/?#\sA-Z]+)$")]
"""As browsers write it: nothing else would ever be equal to what they send."""
Names = Annotated[tuple[_Name, ...], NoDecode, BeforeValidator(_split)]
Origins = Annotated[tuple[_Origin, ...], NoDecode, BeforeValidator(_split)]


class ServerConfig(BaseSettings, EngineConfig):
    """Every option of ``tinyllm serve``. Raises `ConfigError` on an unknown name or a wrong value.

    A value comes from a flag (``--max-body-bytes``), else from a variable (``TINYLLM_MAX_BODY_BYTES``), else
    from the TOML file that ``config`` names, else from the default. Sizes are in bytes, times in seconds.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, env_ignore_empty=True, allow_inf_nan=False)

    config: Path | None = None
    """TOML file with options under these names."""

    # Where it listens.
    host: str = "127.0.0.1"
    """Address to listen on. Anything but this machine alone needs API keys."""
    port: int = Field(8000, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    ssl_certfile: Path | None = None
    """Certificate chain (PEM); with ``ssl_keyfile`` this turns on TLS, and with it HTTP/2."""
    ssl_keyfile: Path | None = None
    """The certificate's private key (PEM)."""
    h2c: bool = False
    """Also speak HTTP/2 without TLS, for a proxy that wants it."""
    root_path: str = Field("", pattern=r"^(/[^/?#]+)*$")
    """Path below which a reverse proxy shows the server, such as ``/llm``."""
    workers: int = 1
    """There is one model and so one process; more is refused."""

    # Who may use it.
    api_keys: Names = Field((), repr=False, exclude=True)
    """API keys, separated by commas. Only from the variable or a file: a flag shows in the process list."""
    api_key_file: Path | None = None
    """File with one API key a line; empty lines and lines that begin with # do not count."""
    allow_unauthenticated: bool = False
    """Listen on other addresses than this machine's own without API keys."""
    public_metrics: bool = False
    """Serve /metrics without a key."""
    allowed_hosts: Names = ()
    """Names, beside localhost and IP addresses, that a Host header may hold; ``*`` is any."""
    cors_origins: Origins = ()
    """Origins of other web pages that may use the server, such as ``https://app.example``; ``*`` is any."""

    # What it serves.
    served_model_name: Names = ()
    """Names that requests may give as ``model``; default: the model's own name. The first is shown."""
    reasoning: Literal["auto", "think", "off"] = "auto"
    """Whether text in ``<think>`` goes into a field of its own; auto: if that is a token of the model's."""
    special_tokens_in_messages: bool = False
    """Let text in messages become special tokens, as in ``transformers``; else only templates write them."""
    strict_fields: bool = False
    """Refuse request fields that the server does not know, instead of naming them in a response header."""
    enable_force_include_usage: bool = False
    """Send token counts at the end of every stream, also when the client did not ask."""
    prefix_cache: Literal["per-key", "process-global", "off"] = "per-key"
    """Whose requests share cached prefixes: those of one API key (nobody's, without keys), or all."""

    # What it takes.
    max_body_bytes: int = Field(1 << 20, ge=1)
    """Largest request body."""
    max_header_bytes: int = Field(16 << 10, ge=256)
    """Most bytes of all headers of a request together."""
    max_headers: int = Field(100, ge=1)
    """Most headers of a request."""
    max_url_bytes: int = Field(8 << 10, ge=64)
    """Longest path and query."""
    max_json_depth: int = Field(32, ge=4, le=256)
    """Deepest nesting of a request's JSON."""
    max_json_nodes: int = Field(50_000, ge=16)
    """Most values in a request's JSON; token ids count one each."""
    max_messages: int = Field(1024, ge=1)
    """Most messages of a conversation."""
    max_prompts: int = Field(32, ge=1)
    """Most prompts in one completions request."""
    key_max_parallel_requests: int | None = Field(None, ge=1)
    """Most answers one API key may have running and waiting; ``n`` answers count ``n``."""
    key_rpm_limit: int | None = Field(None, ge=1)
    """Requests that one API key may make a minute; those that generate count."""
    key_tpm_limit: int | None = Field(None, ge=1)
    """Tokens, of prompts and answers, that one API key may use a minute."""
    max_connections: int = Field(256, ge=1)
    """Most connections at once; more are turned away, with 503 unless over TLS."""

    # How long things may take.
    keep_alive_timeout: float = Field(5.0, gt=0)
    """How long an idle connection, the beginning of TLS, or the head of a request may take."""
    body_timeout: float = Field(30.0, gt=0)
    """How long a request's body may take to arrive."""
    write_timeout: float = Field(30.0, gt=0)
    """How long a client may leave what is sent to it unread before it is cut off."""
    request_timeout: float | None = Field(None, gt=0)
    """How long a request may take altogether."""
    queue_timeout: float | None = Field(None, gt=0)
    """How long a request may wait before it runs."""
    step_timeout: float = Field(60.0, gt=0)
    """A step of the engine that takes longer makes /ready say that it hangs."""
    sse_ping_interval: float = Field(15.0, gt=0)
    """After this long without a token a stream gets a comment line, so that proxies keep it open."""

    # What it says.
    log_format: Literal["text", "json"] = "text"
    """Lines for people, or one JSON object each."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe messages to log. No level logs prompts, answers or keys."""
    access_log: bool = True
    """Log one line a request; health checks are left out."""

    if TYPE_CHECKING:  # the sources give what the caller does not

        def __init__(self, **values: Any) -> None: ...

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Say what wins over what: arguments, then variables, then the file."""
        given = init_settings().get("config") or os.environ.get(ENV_PREFIX + "CONFIG")
        file = _FileSource(settings_cls, Path(given) if given else None)
        return init_settings, env_settings, file

    @property
    def engine_config(self) -> EngineConfig:
        """The engine's own options."""
        values = {name: getattr(self, name) for name in EngineConfig.model_fields}
        if self.prefix_cache == "off" or (self.prefix_cache == "per-key" and not self.has_keys):
            values["enable_prefix_caching"] = False
        return EngineConfig(**values)

    @property
    def has_keys(self) -> bool:
        """Whether requests need an API key."""
        return bool(self.api_keys) or self.api_key_file is not None


class _FileSource(PydanticBaseSettingsSource):
    """The values of a TOML file. Unlike pydantic's own source it does not pass over a missing file."""

    def __init__(self, settings_cls: type[BaseSettings], path: Path | None) -> None:
        super().__init__(settings_cls)
        self._values = {} if path is None else _read_toml(path)

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _read_toml(path: Path) -> dict[str, Any]:
    text = read_option_file(path, "the config file")
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the config file {path.name} is not TOML: {error}") from None
    return {name.replace("-", "_"): value for name, value in values.items()}


def unknown_variables() -> list[str]:
    """Return the variables that look like options and are none, such as misspelt ones."""
    known = {ENV_PREFIX + name.upper() for name in ServerConfig.model_fields} | OTHER_VARIABLES
    return sorted(
        name for name in os.environ if name.upper().startswith(ENV_PREFIX) and name.upper() not in known
    )
