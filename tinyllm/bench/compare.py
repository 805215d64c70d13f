"""Two results side by side: every figure that both have, and everything that makes them hard to compare.

It knows no kind of result. A figure is a number anywhere in the JSON, named by its path; what describes the
run rather than measures it is listed only where the two differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tinyllm.bench.table import markdown_table
from tinyllm.errors import ConfigError

__all__ = ["Comparison", "Figure", "compare", "comparison_lines", "kind_of", "read_report"]

_ABOUT: Final = frozenset(
    ("environment", "metadata", "model", "engines", "engine", "limits_ms", "dtype", "max_tokens", "blocks")
)
"""What describes a run."""
_RAW: Final = frozenset(
    ("samples", "requests", "timeline", "prompts", "server_metrics", "client_seconds", "probes")
)
"""Lists of single observations, which have no partner in another run."""
_NO_FIGURES: Final = _ABOUT | {"schema", "tie"}
_CHANCE: Final = frozenset(("time", "load_average", "base_url", "load_seconds"))
"""What differs between any two runs."""
_NAMES: Final = ("workload", "name", "label", "backend", "engines", "fraction")
"""What a member of a list is called by, in this order."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of both results."""

    name: str
    before: float
    after: float

    @property
    def ratio(self) -> float | None:
        """The second over the first; None if the first is 0 and the second is not."""
        if self.before == self.after:
            return 1.0
        return self.after / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What two results have in common, and what not."""

    figures: list[Figure]
    different: dict[str, tuple[Any, Any]]
    """Of what describes the runs: path -> both values; None where one has none."""
    only_before: list[str]
    only_after: list[str]
    """Figures that the other does not have."""

    def to_json(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "schema": 1,
            "kind": "comparison",
            "different": {name: list(values) for name, values in self.different.items()},
            "figures": {
                each.name: {"before": each.before, "after": each.after, "ratio": each.ratio}
                for each in self.figures
            },
            "only_before": self.only_before,
            "only_after": self.only_after,
        }


def read_report(path: Path) -> dict[str, Any]:
    """Read a result. Raises `ConfigError` that names the file, `OSError`."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path.name} is no JSON: {error}") from None
    if not isinstance(report, dict):
        raise ConfigError(f"{path.name} is no result: a JSON object is expected")
    return report


def kind_of(report: Mapping[str, Any]) -> str:
    """Return what was measured."""
    return str(report.get("kind") or report.get("benchmark") or "comparison of engines")


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Compare two results of one kind. Raises `ConfigError` if they have no figure in common."""
    kinds = kind_of(before), kind_of(after)
    if kinds[0] != kinds[1] or before.get("schema") != after.get("schema"):
        raise ConfigError(
            f"these are results of different kinds: {kinds[0]} (schema {before.get('schema')}) "
            f"and {kinds[1]} (schema {after.get('schema')})"
        )
    mine, theirs = dict(_figures(before)), dict(_figures(after))
    common = [Figure(name, mine[name], theirs[name]) for name in mine if name in theirs]
    if not common:
        raise ConfigError("these results have no figure in common")
    about = dict(_about(before)), dict(_about(after))
    different = {
        name: (about[0].get(name), about[1].get(name))
        for name in about[0] | about[1]
        if about[0].get(name) != about[1].get(name)
    }
    return Comparison(
        common,
        different,
        [name for name in mine if name not in theirs],
        [name for name in theirs if name not in mine],
    )


def comparison_lines(comparison: Comparison, names: tuple[str, str]) -> Iterator[str]:
    """Yield the comparison as Markdown: what differs about the runs first."""
    for name, (before, after) in comparison.different.items():
        yield f"differs: {name}: {_shown(before)} / {_shown(after)}"
    if comparison.different:
        yield ""
    rows = [
        (
            each.name,
            _number(each.before),
            _number(each.after),
            "" if each.ratio is None else f"{each.ratio:.3f}",
        )
        for each in comparison.figures
    ]
    yield from markdown_table(("figure", *names, "ratio"), rows)
    for name, only in zip(names, (comparison.only_before, comparison.only_after), strict=True):
        if only:
            yield f"only in {name}: {', '.join(only[:8])}" + (f" and {len(only) - 8} more" * (len(only) > 8))


def _figures(value: Any, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        yield path, float(value)
    for key, member in _members(value):
        if key not in _NO_FIGURES and not (key in _RAW and isinstance(member, (dict, list))):
            yield from _figures(member, f"{path}.{key}" if path else key)


def _about(report: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in report:
        if key in _ABOUT:
            yield from _leaves(report[key], key)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, member in value.items():
        if key not in _CHANCE:
            yield from _leaves(member, f"{path}.{key}")


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the members of an object by key, and those of a list of objects by what they are called."""
    if isinstance(value, Mapping):
        yield from ((str(key), member) for key, member in value.items())
    elif isinstance(value, list):
        for number, member in enumerate(value):
            if isinstance(member, Mapping):
                yield _name_of(member, number), member


def _name_of(member: Mapping[str, Any], number: int) -> str:
    for key in _NAMES:
        if key in member:
            name = member[key]
            return "+".join(map(str, name)) if isinstance(name, list) else str(name)
    return str(number)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:59] + "…"
