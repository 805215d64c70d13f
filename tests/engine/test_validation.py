from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from tests.fakes import VOCAB_SIZE, build_fake_core, fake_info
from tinyllm.config import EngineConfig
from tinyllm.engine.messages import RequestOptions
from tinyllm.engine.prompt import encode_prompt, make_submission, render_prompt
from tinyllm.engine.validation import check_options, check_params, check_prompt_ids, output_limit
from tinyllm.errors import ConfigError, ContextLengthError, InvalidRequestError
from tinyllm.params import SamplingParams

INFO = fake_info(max_model_len=20)
MODEL = build_fake_core(EngineConfig(max_model_len=20)).model


@pytest.mark.parametrize(
    "prompt", [[], [-1], [VOCAB_SIZE], [1, 2.0], [True], ["a"], [[1]], [None], b"ab", None, 5, {1: 2}]
)
def test_prompts_that_are_no_token_ids_are_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt_ids(prompt, INFO)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("prompt", [[0], [VOCAB_SIZE - 1], (1, 2, 3), range(5)])
def test_prompts_that_are_token_ids_are_taken(prompt: Any) -> None:
    assert check_prompt_ids(prompt, INFO) == tuple(prompt)


def test_empty_text_is_refused_where_the_tokenizer_adds_nothing() -> None:
    options = RequestOptions("r", SamplingParams(), 0.0)
    with pytest.raises(InvalidRequestError, match="empty"):
        make_submission(MODEL, encode_prompt(MODEL, ""), options)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="surrogate"):
        encode_prompt(MODEL, "a\ud800b")


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers() -> None:
    for length, params in (
        (21, SamplingParams()),
        (20, SamplingParams()),
        (20, SamplingParams(max_tokens=1)),
    ):
        with pytest.raises(
            ContextLengthError, match=rf"maximum context length is 20 tokens.*{length}"
        ) as caught:
            output_limit(length, params, INFO)
        assert caught.value.param == "prompt"
        assert caught.value.code == "context_length_exceeded"


def test_max_tokens_beyond_the_context_is_refused_with_the_numbers() -> None:
    with pytest.raises(ContextLengthError, match=r"25 were asked for .5 in the") as caught:
        output_limit(5, SamplingParams(max_tokens=20), INFO)
    assert caught.value.param == "max_tokens"


def test_max_tokens_defaults_to_the_rest_of_the_context() -> None:
    assert output_limit(5, SamplingParams(), INFO) == 15
    assert output_limit(5, SamplingParams(max_tokens=15), INFO) == 15
    assert output_limit(20, SamplingParams(max_tokens=0), INFO) == 0
    with pytest.raises(InvalidRequestError, match="min_tokens"):
        output_limit(5, SamplingParams(min_tokens=16), INFO)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("logit_bias", {999_999: 5.0}),
        ("logit_bias", {VOCAB_SIZE: 5.0}),
        ("allowed_token_ids", [1, VOCAB_SIZE]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("stop", ["a\udc00"]),
        ("bad_words", ["\ud800"]),
        ("logits_processors", (5,)),
    ],
)
def test_params_that_the_model_cannot_follow_name_their_field(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_params(SamplingParams(**{param: value}), MODEL)
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


LONGEST: list[tuple[str, int, Any]] = [
    ("stop", 16, list),
    ("stop_token_ids", 1024, tuple),
    ("bad_words", 1024, list),
    ("logit_bias", 1024, lambda entries: dict.fromkeys(entries, 1)),
    ("logit_bias", 1024, lambda entries: MappingProxyType(dict.fromkeys(entries, 1))),
]


@pytest.mark.parametrize(("param", "longest", "of"), LONGEST)
def test_what_each_prompt_is_checked_for_again_has_a_longest(param: str, longest: int, of: Any) -> None:
    entries: list[Any] = [str(i) if param in ("stop", "bad_words") else i for i in range(longest + 1)]
    assert len(getattr(SamplingParams(**{param: of(entries[:longest])}), param)) == longest
    with pytest.raises(InvalidRequestError, match=f"{param} takes at most {longest} entries") as caught:
        SamplingParams(**{param: of(entries)})
    assert caught.value.param == param


def test_params_must_be_params() -> None:
    with pytest.raises(InvalidRequestError):
        check_params({"max_tokens": 5}, MODEL)
    assert check_params(None, MODEL).temperature == 0.0  # the model's default


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("n", 0),
        ("n", 10**9),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("top_k", -7),
        ("max_tokens", -3),
    ],
)
def test_params_that_were_copied_are_checked_again(param: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_params(SamplingParams().model_copy(update={param: value}), MODEL)
    assert caught.value.param == param


def test_checking_again_keeps_every_field() -> None:
    def hook(token_ids: list[int], logits: Any) -> Any:
        return logits

    params = SamplingParams(
        n=2,
        temperature=0.5,
        seed=1,
        stop=("a", "b"),
        logit_bias={3: 1.5},
        logits_processors=(hook,),
        logprobs=2,
    )
    checked = check_params(params, MODEL)
    assert checked == params.resolved(MODEL.sampling_defaults)
    assert checked.logits_processors == (hook,)


@pytest.mark.parametrize("value", ["zz", [1], 5])
def test_template_arguments_must_have_names(value: Any) -> None:
    with pytest.raises(InvalidRequestError, match="names") as caught:
        render_prompt(MODEL, [{"role": "user", "content": "x"}], None, value)
    assert caught.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_threads", 0),
        ("num_threads", 99_999_999),
        ("max_num_batched_tokens", 10**9),
        ("max_num_batched_tokens", 10**30),
        ("max_num_seqs", 10**30),
    ],
)
def test_sizes_that_no_machine_has_are_refused(option: str, value: int) -> None:
    with pytest.raises(ConfigError, match=option):
        EngineConfig.combine(None, {option: value})


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("request_id", ["", "x" * 257, 5, "\ud800"]),
        ("priority", [float("nan"), float("inf"), True, 2**31, "1"]),
        ("timeout", [0, -1.0, float("nan"), float("inf"), "1", True, 10**400, -(10**400)]),
        ("queue_timeout", [0, float("nan")]),
        ("cache_salt", [None, 5, "x" * 1025, "\ud800"]),
    ],
)
def test_options_are_checked(param: str, values: list[Any]) -> None:
    for value in values:
        fields: dict[str, Any] = {"request_id": "r", param: value}
        with pytest.raises(InvalidRequestError) as caught:
            check_options(EngineConfig(), RequestOptions(params=SamplingParams(), arrival_time=0.0, **fields))
        assert caught.value.param == param


def test_more_answers_than_the_engine_ever_takes_are_refused() -> None:
    config = EngineConfig(max_num_seqs=2, max_waiting_requests=1)
    with pytest.raises(InvalidRequestError, match="3 answers at once") as caught:
        check_options(config, RequestOptions("r", SamplingParams(n=4), 0.0))
    assert caught.value.param == "n"


def test_bad_words_are_encoded_with_and_without_a_space_before() -> None:
    options = RequestOptions("r", SamplingParams(bad_words=("ab",), max_tokens=1), 0.0)
    assert make_submission(MODEL, [1], options).bad_word_token_ids == ((97, 98), (32, 97, 98))
