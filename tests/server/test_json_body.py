from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.server.json_body import InvalidJSONError, parse_json

BAD = {
    "empty": b"",
    "blank": b"  ",
    "not utf-8": b'{"a": "\xff"}',
    "utf-8 cut off": '{"a": "é"}'.encode()[:8],
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "encoded surrogate": b'"\xed\xa0\x80"',
    "nan": b'{"a": NaN}',
    "infinity": b'{"a": Infinity}',
    "minus infinity": b'{"a": -Infinity}',
    "infinite number": b'{"a": 1e999}',
    "negative infinite number": b'{"a": -1e999}',
    "equal keys": b'{"a": 1, "a": 2}',
    "equal keys, spelled otherwise": b'{"a": 1, "\\u0061": 2}',
    "equal keys deep inside": b'[{"b": {"a": 1, "c": 0, "a": 2}}]',
    "high surrogate": b'{"a": "\\ud800"}',
    "low surrogate": b'["\\udFFf"]',
    "surrogates in the wrong order": b'["\\ude00\\ud83d"]',
    "surrogate in a key": b'{"\\uD83D": 1}',
    "deep lists": b"[" * 1500 + b"]" * 1500,
    "deep lists without end": b"[" * 30000,
    "deep objects": b'{"a":' * 1500 + b"1" + b"}" * 1500,
    "one too deep": b"[" * 33 + b"]" * 33,
    "long integer": b'{"a": ' + b"9" * 5000 + b"}",
    "integer of 20 digits": b"[-12345678901234567890]",
    "too many values": b"[" + b"0," * 50_000 + b"0]",
    "too many objects": b"[" + b"{}," * 30_000 + b"{}]",
    "trailing comma": b"[1,]",
    "trailing text": b"{} {}",
    "single quotes": b"{'a': 1}",
    "comment": b"{} // no",
    "control character in a string": b'"a\nb"',
    "null byte": b'{"a": 1}\x00',
    "leading zero": b"[01]",
    "hexadecimal": b"[0x10]",
    "open string": b'{"a": "b',
    "open escape": b'{"a": "b\\',
    "word": b"undefined",
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_refused(body: bytes) -> None:
    with pytest.raises(InvalidJSONError) as caught:
        parse_json(body)
    assert caught.value.code == "invalid_json"


GOOD = {
    "object": b'{"a": [1, -2.5, 1e3, true, false, null, "x"]}',
    "surrogate pair": b'"\\ud83d\\ude00"',
    "raw emoji": '"😀"'.encode(),
    "brackets in a string": b'"' + b"[" * 1000 + b'"',
    "escaped quotes and backslashes": b'"\\\\\\"[\\\\"',
    "digits in a string": b'"' + b"9" * 1000 + b'"',
    "integer of 19 digits": b"9223372036854775807",
    "long fraction": b"0.1234567890123456789012345678901234567890",
    "as deep as allowed": b"[" * 32 + b"]" * 32,
    "equal keys in different objects": b'[{"a": 1}, {"a": 1}]',
    "the escape of an escape": b'"\\\\ud800"',
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD.keys())
def test_accepted_and_equal_to_what_json_says(body: bytes) -> None:
    assert parse_json(body) == json.loads(body)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(values, st.booleans())
def test_every_json_value_survives(value: object, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only).encode()) == value


@given(st.binary(max_size=200) | st.text('[]{}",:\\u0dD8 1.eE+-', max_size=100).map(str.encode))
def test_any_bytes_give_a_value_or_the_one_error(data: bytes) -> None:
    with contextlib.suppress(InvalidJSONError):
        parse_json(data)


MEGABYTE = {
    "escaped quotes": b'"' + b'\\"' * 500_000,
    "backslashes": b'"' + b"\\\\" * 500_000 + b'"',
    "escapes": b'{"a": "' + b"\\n" * 500_000 + b'"}',
    "surrogates": b'"' + b"\\ud83d\\ude00" * 80_000 + b'"',
    "text": b'"' + b"a" * 10**6,
    "openers": b"[" * 10**6,
    "closers": b"]" * 10**6,
    "pairs": b"[" + b"[]," * 24_000 + b"]" * 900_000,
    "spaces": b" " * 10**6 + b"{}",
    "quotes": b'"' * 10**6,
    "digits": b"1" * 10**6,
    "a long fraction": b"0." + b"1" * 10**6,
    "a long exponent": b"1e" + b"0" * 10**6 + b"1",
    "minus one": b"-1" * 500_000,
    "long integers beside letters": (b"1" * 19 + b"e") * 50_000,
    "equal keys": b"{" + b'"a":1,' * 24_000 + b'"b":1}',
}


@pytest.mark.parametrize("body", MEGABYTE.values(), ids=MEGABYTE)
def test_a_megabyte_takes_no_time_to_speak_of(body: bytes) -> None:
    """The event loop waits for it. Counted in processor time, which other processes do not take away."""
    times = []
    for _ in range(3):
        started = time.thread_time()
        with contextlib.suppress(InvalidJSONError):
            parse_json(body)
        times.append(time.thread_time() - started)
    assert min(times) < 0.06
