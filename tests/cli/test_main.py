from __future__ import annotations

import pytest

from tinyllm.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--promt", "x"], "did you mean --prompt?"),
        (["generate", "--max-token=5"], "did you mean --max-tokens?"),
        (["serve", "--max-model-length", "5"], "did you mean --max-model-len?"),
        (["serve", "x", "--hots", "y"], "unrecognized arguments: --hots y (did you mean --host?)"),
        (["serve", "--no-acces-log"], "did you mean --no-access-log?"),
        (["generate", "--qqqqqqqq"], "unrecognized arguments: --qqqqqqqq;"),
        (["generate", "--max-tokens", "x"], "invalid int value"),
        (["serv"], "invalid choice: 'serv'"),
        ([], "required: COMMAND"),
    ],
)
def test_wrong_use_is_one_line_with_a_guess(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
