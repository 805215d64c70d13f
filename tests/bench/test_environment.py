"""What is recorded beside a measurement."""

from __future__ import annotations

import json

import pytest

from tinyllm.bench.environment import Disturbance, environment, peak_memory


def test_settings_that_change_speed_are_recorded_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    for name in ("TINYLLM_API_KEYS", "TINYLLM_HUB_TOKEN", "HF_TOKEN"):
        monkeypatch.setenv(name, "a-secret")
    recorded = environment(num_threads=2)
    assert recorded["settings"]["OMP_NUM_THREADS"] == "3"
    assert recorded["threads"] == 2
    assert "a-secret" not in json.dumps(recorded)


def test_peak_memory_grows_with_what_is_held() -> None:
    before = peak_memory()
    held = bytearray(before + (64 << 20))
    assert peak_memory() >= before + (32 << 20)
    assert len(held) > before


def test_disturbance_counts_from_its_start() -> None:
    since = Disturbance().since()
    assert all(seconds is None or 0 <= seconds < 60 for seconds in since.values())
