"""Both clients' figures side by side."""

from __future__ import annotations

from benches.serving.crosscheck import FIGURES, table


def test_medians_of_the_rounds_and_their_difference() -> None:
    runs = [
        {
            "round": number,
            "streams": 16,
            "tinyllm": dict.fromkeys(FIGURES, ours),
            "vllm": dict.fromkeys(FIGURES, 100.0),
        }
        for number, ours in enumerate((90.0, 105.0, 500.0))
    ]
    header, _, *rows = table(runs)
    assert "tinyllm bench serve" in header
    assert len(rows) == len(FIGURES)
    for name, row in zip(FIGURES, rows, strict=True):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert cells == [f"16 streams, {name}", "105.0", "100.0", "+5.0%"]
