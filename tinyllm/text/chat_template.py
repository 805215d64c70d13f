"""`ChatTemplates`: conversations made into the text that a model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tinyllm.errors import ChatTemplateError, InvalidRequestError
from tinyllm.text.chat_messages import plain_data, plain_messages, plain_tools
from tinyllm.text.template_process import TemplateProcess, shared_process

if TYPE_CHECKING:
    from tinyllm.artifacts.model import ModelArtifacts
    from tinyllm.text.tokenizer import Tokenizer

__all__ = ["RESERVED_VARIABLES", "ChatTemplates"]

RESERVED_VARIABLES: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "name", "self"}
)
"""Names that template variables of a request cannot have."""

_UNFINISHED: Final = "\ue000unfinished\ue001 "
"""Put after a message that the model is to continue. Its space shows whether a template strips contents."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What a template's source tells."""

    variables: frozenset[str]
    """Names it uses without defining them."""
    helpers: frozenset[str]
    """Names that every template finds defined."""
    takes_parts: bool
    """It goes through contents part by part."""
    takes_argument_text: bool
    """It looks whether the arguments of a tool call are text."""


class ChatTemplates:
    """A model's chat templates. Thread-safe. They are compiled and run in a `TemplateProcess`."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        process: TemplateProcess | None = None,
    ) -> None:
        """Take Jinja sources by name, and the special tokens' texts by name (``bos_token``, ...).

        Without ``process`` they run in the one that all models share.
        """
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._process = process or shared_process()
        self._known: dict[str, _Facts] = {}

    @classmethod
    def for_model(
        cls, artifacts: ModelArtifacts, tokenizer: Tokenizer | None, *, override: str | None = None
    ) -> ChatTemplates:
        """Take a model's own templates, or ``override`` in place of all of them."""
        templates = artifacts.chat_templates if override is None else {"default": override}
        return cls(templates, None if tokenizer is None else tokenizer.special_tokens)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the templates; none if the model has none."""
        return tuple(self._templates)

    def uses(self, variable: str, *, name: str | None = None) -> bool:
        """Return whether a template reads ``variable`` (``tools``, ``enable_thinking``, ...).

        What it does not read has no effect on it, so a caller can refuse it.
        """
        tools: list[object] | None = [{}] if variable == "tools" else None
        return variable in self._facts(self._choose(name, tools)).variables

    def render(
        self,
        messages: object,
        mark: Callable[[Any], Any] | None = None,
        /,
        *,
        tools: object = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        name: str | None = None,
        **variables: Any,
    ) -> str:
        """Return the prompt for a conversation, as ``transformers`` would render it.

        ``messages`` are mappings with ``role`` and ``content`` (text, or a list of text parts). Without
        ``name``, ``tool_use`` is the template if there are ``tools`` and there is such a template, else
        ``default``. With ``add_generation_prompt`` the prompt ends where the answer begins; with
        ``continue_final_message`` it ends inside the last message. Other names are variables of the
        template. Encode the result with `Tokenizer.encode_chat`: special tokens are already there.

        ``mark`` is applied to all that is not the template's own, but for roles, which templates make tokens
        of: with `UserText.mark`, encode the result with `UserText.encode`.

        Raises `InvalidRequestError` for bad messages, tools or variables, and `ChatTemplateError` if there is
        no such template, or it refuses the messages, fails, or uses more time or memory than is allowed.
        """
        if add_generation_prompt and continue_final_message:
            raise InvalidRequestError(
                "continue_final_message needs add_generation_prompt=False.", param="continue_final_message"
            )
        plain_tool_list = plain_tools(tools)
        chosen = self._choose(name, plain_tool_list)
        facts = self._facts(chosen)
        plain = plain_messages(messages, parts=facts.takes_parts, arguments_as_text=facts.takes_argument_text)
        own = _own_variables(variables, RESERVED_VARIABLES | facts.helpers)
        if mark is not None:
            plain = [{**mark(message), "role": message["role"]} for message in plain]
            plain_tool_list, own = mark(plain_tool_list), mark(own)
        if continue_final_message:
            _mark_unfinished(plain[-1])
        given = {"messages": plain, "tools": plain_tool_list, "add_generation_prompt": add_generation_prompt}
        everything = {"documents": None} | self._special_tokens | own | given
        answer = self._process.ask(self._templates[chosen], everything)
        return _cut_unfinished(answer["text"]) if continue_final_message else str(answer["text"])

    def _choose(self, name: str | None, tools: object) -> str:
        """Return the name of the template to use."""
        if not self._templates:
            raise ChatTemplateError(
                "This model has no chat template, so it takes no messages. Completions (a prompt as text) "
                "work, and a template can be given with chat_template."
            )
        if name is None:
            name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise ChatTemplateError(
                f"This model has no chat template named {name[:100]!r}; it has: {', '.join(self._templates)}."
            )
        return name

    def _facts(self, name: str) -> _Facts:
        if (facts := self._known.get(name)) is None:
            answer = self._process.ask(self._templates[name])
            facts = _Facts(
                frozenset(answer["variables"]),
                frozenset(answer["helpers"]),
                answer["takes_parts"],
                answer["takes_argument_text"],
            )
            self._known[name] = facts
        return facts


def _own_variables(variables: Mapping[str, Any], reserved: frozenset[str]) -> dict[str, Any]:
    if taken := reserved & variables.keys():
        raise InvalidRequestError(
            f"A chat template variable cannot be named {min(taken)!r}.", param="chat_template_kwargs"
        )
    own: dict[str, Any] = plain_data(variables, "chat_template_kwargs")
    return own


def _mark_unfinished(message: dict[str, Any]) -> None:
    """Put the mark after the last text of ``message``."""
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + _UNFINISHED
    elif content:
        content[-1]["text"] += _UNFINISHED


def _cut_unfinished(text: str) -> str:
    """Return the text up to the mark."""
    position = text.rfind(_UNFINISHED.strip())
    if position < 0:
        raise ChatTemplateError(
            "The chat template does not show the last message, so it cannot be continued."
        )
    is_exact = text.startswith(_UNFINISHED, position)
    return text[:position] if is_exact else text[:position].rstrip()
