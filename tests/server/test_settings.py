from __future__ import annotations

import argparse
import logging
from pathlib import Path

import pytest

from tinyllm.cli.options import add_server_options, server_config
from tinyllm.errors import ConfigError
from tinyllm.server.logs import JSONFormatter, TextFormatter
from tinyllm.server.posture import check_posture, describe_posture
from tinyllm.server.settings import ServerConfig, unknown_variables


def from_flags(*flags: str) -> ServerConfig:
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    return server_config(parser.parse_args(flags))


def test_flags_win_over_variables_over_file_over_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tinyllm.toml"
    file.write_text(
        'port = 1\nhost = "::1"\nmax-num-seqs = 3\nserved_model_name = ["a", "b"]\nqueue_timeout = 5\n'
    )
    monkeypatch.setenv("TINYLLM_PORT", "2")
    monkeypatch.setenv("TINYLLM_MAX_NUM_SEQS", "4")
    monkeypatch.setenv("TINYLLM_API_KEYS", "k1, k2,")
    monkeypatch.setenv("TINYLLM_HOST", "")
    config = from_flags("--config", str(file), "--port", "3", "--allowed-hosts", "x", "--allowed-hosts", "y")
    assert (config.port, config.max_num_seqs, config.host) == (3, 4, "::1")
    assert config.served_model_name == ("a", "b")
    assert config.api_keys == ("k1", "k2")
    assert config.allowed_hosts == ("x", "y")
    assert (config.queue_timeout, config.write_timeout) == (5.0, 30.0)
    monkeypatch.setenv("TINYLLM_CONFIG", str(file))
    assert from_flags().port == 2
    assert from_flags().engine_config.max_num_seqs == 4


def test_every_option_has_a_flag_a_text_and_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_server_options(parser)
    help_text = parser.format_help()
    for name, field in ServerConfig.model_fields.items():
        assert field.description, name
        is_secret = name in ("api_keys", "hub_token")
        assert (f"--{name.replace('_', '-')}" in help_text) is not is_secret, name
    for name in ("api_keys", "served_model_name", "allowed_hosts"):
        monkeypatch.setenv(f"TINYLLM_{name.upper()}", "one,two")
        assert getattr(ServerConfig(), name) == ("one", "two")


@pytest.mark.parametrize("given", [" ", ",", " , "])
@pytest.mark.parametrize("name", ["api_keys", "allowed_hosts", "cors_origins"])
def test_a_list_of_nothing_is_a_mistake(name: str, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was given keys may not be open to anybody."""
    monkeypatch.setenv(f"TINYLLM_{name.upper()}", given)
    with pytest.raises(ConfigError, match=f"^{name}: has nothing but commas and spaces in it"):
        from_flags()
    with pytest.raises(ConfigError, match=name):
        ServerConfig(**{name: [given]})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--port", "70000"), r"^port: must be less than or equal to 65535 \(got 70000\)$"),
        (("--max-body-bytes", "0"), "max_body_bytes"),
        (("--root-path", "llm"), "root_path"),
        (("--config", "/no/such.toml"), "cannot be read"),
    ],
)
def test_wrong_flags(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_flags(*flags)


@pytest.mark.parametrize(
    ("text", "message"),
    [("prot = 1", "prot"), ("port = 'x'", "port"), ("port", "not TOML"), ("[a]\nb=1", "'a'")],
)
def test_wrong_files(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        ServerConfig(config=file)


UNFIT: list[tuple[str, str]] = [
    *[("served_model_name", name) for name in ("a\nb", "a,\x1b[31m", "\udcff", "a\u202eb")],
    ("allowed_hosts", "a.example,\udcff"),
    *[("cors_origins", origin) for origin in ("http://a.example/", "https://A.example", "a.example", "**")],
]


@pytest.mark.parametrize(("option", "value"), UNFIT)
def test_names_that_cannot_be_shown_or_would_never_match(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{option}\.\d: must "):
        ServerConfig(**{option: value})


def test_origins_as_browsers_write_them() -> None:
    given = "https://a.example:8443, http://[::1]:3000, chrome-extension://abc, null, *"
    assert len(ServerConfig(cors_origins=given).cors_origins) == 5


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_numbers_are_finite(value: str) -> None:
    floats = [name for name, field in ServerConfig.model_fields.items() if "float" in str(field.annotation)]
    assert len(floats) > 5
    for name in floats:
        with pytest.raises(ConfigError, match=name):
            ServerConfig(**{name: value})


def test_misspelt_variables_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_PROT", "1")
    monkeypatch.setenv("TINYLLM_PORT", "1")
    assert "TINYLLM_PROT" in unknown_variables()
    monkeypatch.setenv("TINYLLM_NATIVE", "0")
    assert not {"TINYLLM_PORT", "TINYLLM_NATIVE"} & set(unknown_variables())


def test_secrets_do_not_show() -> None:
    config = ServerConfig(api_keys=("sk-secret-0123456789",), hub_token="hf-secret")
    assert "secret" not in repr(config)
    assert "api_keys" not in config.model_dump()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "example.org"])
def test_an_open_address_needs_keys(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--allow-unauthenticated"):
        check_posture(ServerConfig(host=host))
    check_posture(ServerConfig(host=host, api_keys=("k" * 32,)))
    check_posture(ServerConfig(host=host, api_key_file=tmp_path))
    check_posture(ServerConfig(host=host, allow_unauthenticated=True))
    assert "the network" in describe_posture(ServerConfig(host=host, allow_unauthenticated=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_local_address_needs_none(host: str) -> None:
    check_posture(ServerConfig(host=host))
    assert "this machine" in describe_posture(ServerConfig(host=host))


def test_what_does_not_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch together"):
        check_posture(ServerConfig(workers=2))
    with pytest.raises(ConfigError, match="together"):
        check_posture(ServerConfig(ssl_certfile=tmp_path))


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("tinyllm.access", logging.INFO, "f", 1, message, (), None)
    made.__dict__.update(extra)
    return made


def test_logs_stay_on_their_line() -> None:
    evil = record("GET /\r\nFAKE \x1b[31m line\u2028", request_id="r1", seconds=0.5)
    text = TextFormatter().format(evil)
    assert "\n" not in text
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert text.endswith("request_id=r1 seconds=0.5")
    line = JSONFormatter().format(evil)
    assert "\n" not in line
    assert line.isascii()
    assert '"request_id": "r1"' in line


SECRET = "SECRETSECRETSECRET12"


@pytest.mark.parametrize(
    "line",
    [
        f'api_keys = ["{SECRET}", 5]',
        f'api_keys = {{a = "{SECRET}"}}',
        f"api_keys = {{{SECRET} = 1}}",
        f'hub_token = ["{SECRET}"]',
        f'hub_token = {{a = "{SECRET}"}}',
        f'api_key = "{SECRET}"',
    ],
)
def test_a_secret_that_is_wrong_is_not_shown(line: str, tmp_path: Path) -> None:
    (tmp_path / "options.toml").write_text(line)
    with pytest.raises(ConfigError) as caught:
        ServerConfig(config=tmp_path / "options.toml")
    assert SECRET not in str(caught.value)
    assert line.split(" ")[0] in str(caught.value)
