"""Datasets in files, as their publishers write them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tinyllm.bench.serve.files import read_burstgpt, read_custom, read_oasst1, read_sharegpt
from tinyllm.errors import ConfigError


def lines(path: Path, *objects: object) -> Path:
    path.write_text("\n".join(json.dumps(each) for each in objects) + "\n\n")
    return path


def test_custom_lines(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a.jsonl",
        {"prompt": "text", "output_tokens": 5, "label": "l", "timestamp": 1.5},
        {"prompt": [1, 2]},
        {"messages": [{"role": "user", "content": "hi"}]},
    )
    rows = list(read_custom(path))
    assert (rows[0].prompt, rows[0].output_tokens, rows[0].label, rows[0].timestamp) == ("text", 5, "l", 1.5)
    assert (rows[1].prompt, rows[1].output_tokens, rows[1].timestamp) == ([1, 2], None, None)
    assert rows[2].prompt == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "line",
    [
        *({}, {"prompt": ""}, {"prompt": []}, {"prompt": [1, "x"]}, [1]),
        {"prompt": "x", "output_tokens": 0},
        {"prompt": "x", "timestamp": "noon"},
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: object) -> None:
    path = lines(tmp_path / "a.jsonl", {"prompt": "fine"}, line)
    with pytest.raises(ConfigError, match=r"^a\.jsonl, line 2:"):
        list(read_custom(path))


def test_sharegpt(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    entries = [
        {
            "id": "1",
            "conversations": [
                {"from": "system", "value": "be kind"},
                *({"from": "human", "value": "q1"}, {"from": "gpt", "value": "a1"}),
                *({"from": "human", "value": "q2"}, {"from": "gpt", "value": "a2"}),
                {"from": "human", "value": "q3"},
            ],
        },
        {"conversations": [{"from": "gpt", "value": "answer first"}, {"from": "human", "value": "q"}]},
        {"conversations": []},
        {"items": "other"},
    ]
    path.write_text(json.dumps(entries))
    assert list(read_sharegpt(path)) == [[("q1", "a1"), ("q2", "a2")]]


@pytest.mark.parametrize("content", ["{", '{"a": 1}'])
def test_what_is_no_sharegpt_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"^s\.json"):
        list(read_sharegpt(path))


def message(text: str, role: str, *replies: Any, rank: int | None = None) -> dict[str, Any]:
    return {"text": text, "role": role, "rank": rank, "replies": list(replies)}


TREE = message(
    "q1",
    "prompter",
    message("worse", "assistant", rank=1),
    message("best", "assistant", message("q2", "prompter", message("a2", "assistant")), rank=0),
    message("unranked", "assistant"),
)
TALK = [("q1", "best"), ("q2", "a2")]


def test_oasst1_trees(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write(json.dumps({"message_tree_id": "x", "prompt": TREE}) + "\n")
    assert list(read_oasst1(path)) == [TALK]


def test_oasst1_messages_make_the_same_trees(tmp_path: Path) -> None:
    flat: list[dict[str, Any]] = []

    def flatten(node: dict[str, Any], parent: str | None) -> None:
        name = f"m{len(flat)}"
        flat.append({**node, "message_id": name, "parent_id": parent} | {"replies": None})
        for reply in node["replies"]:
            flatten(reply, name)

    flatten(TREE, None)
    path = lines(tmp_path / "m.jsonl", *reversed(flat))
    assert list(read_oasst1(path)) == [TALK]


def test_what_is_no_oasst1_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        list(read_oasst1(lines(tmp_path / "m.jsonl", {"text": "x"})))


CSV = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
185,ChatGPT,1360,647,2007,Conversation log
"""


def test_burstgpt_without_its_failures(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(CSV)
    rows = read_burstgpt(path, 1, 2)
    assert [(row.timestamp, row.prompt_tokens, row.output_tokens) for row in rows] == [
        (118.5, 417, 276),
        (185.0, 1360, 647),
    ]
    with pytest.raises(ConfigError, match="--window"):
        read_burstgpt(path, 2, 2)


@pytest.mark.parametrize("content", ["a,b\n1,2\n", CSV.replace("472", "many"), CSV.replace(",18,490,", ",")])
def test_what_is_no_burstgpt_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "b.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"^b\.csv"):
        read_burstgpt(path, 0, 3)
