"""`ChatTemplates`: conversations made into the text that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from jinja2 import Template, TemplateSyntaxError, meta, nodes

from tinyllm.errors import ChatTemplateError, InvalidRequestError, TinyLLMError
from tinyllm.text.chat_messages import data_size, plain_data, plain_messages, plain_tools
from tinyllm.text.template_budget import MAX_SECONDS, Budget, LimitError, spend
from tinyllm.text.template_filters import RefusedError
from tinyllm.text.template_sandbox import SandboxEnvironment

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


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class _Compiled:
    """A template, and what its source tells about the messages it expects."""

    template: Template
    variables: frozenset[str]
    """Names it uses without defining them."""
    takes_parts: bool
    """It goes through contents part by part."""
    takes_argument_text: bool
    """It looks whether the arguments of a tool call are text."""


class ChatTemplates:
    """A model's chat templates. Thread-safe; compiled templates are kept."""

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str] | None = None,
        *,
        max_seconds: float = MAX_SECONDS,
    ) -> None:
        """Take Jinja sources by name, and the special tokens' texts by name (``bos_token``, ...).

        ``max_seconds`` is the processor time that one rendering may take.
        """
        self._max_seconds = max_seconds
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens or {})
        self._environment = SandboxEnvironment()
        self._compiled: dict[str, _Compiled] = {}

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
        return variable in self._compile(self._choose(name, tools)).variables

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
        compiled = self._compile(self._choose(name, plain_tool_list))
        plain = plain_messages(
            messages, parts=compiled.takes_parts, arguments_as_text=compiled.takes_argument_text
        )
        own = self._variables(variables)
        if mark is not None:
            plain = [{**mark(message), "role": message["role"]} for message in plain]
            plain_tool_list, own = mark(plain_tool_list), mark(own)
        if continue_final_message:
            _mark_unfinished(plain[-1])
        text = self._run(
            compiled.template,
            {"documents": None}
            | self._special_tokens
            | own
            | {"messages": plain, "tools": plain_tool_list, "add_generation_prompt": add_generation_prompt},
        )
        return _cut_unfinished(text) if continue_final_message else text

    def _variables(self, variables: Mapping[str, Any]) -> dict[str, Any]:
        reserved = (RESERVED_VARIABLES | self._environment.globals.keys()) & variables.keys()
        if reserved:
            raise InvalidRequestError(
                f"A chat template variable cannot be named {min(reserved)!r}.", param="chat_template_kwargs"
            )
        own: dict[str, Any] = plain_data(variables, "chat_template_kwargs")
        return own

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

    def _compile(self, name: str) -> _Compiled:
        if (compiled := self._compiled.get(name)) is None:
            source = self._templates[name]
            compiled = _contained(lambda: _compiled(self._environment, source))
            self._compiled[name] = compiled
        return compiled

    def _run(self, template: Template, variables: Mapping[str, Any]) -> str:
        size = data_size([variables[key] for key in ("messages", "tools")])

        def render() -> str:
            with spend(Budget(size, seconds=self._max_seconds)):
                return template.render(variables)

        return _contained(render)


def _compiled(environment: SandboxEnvironment, source: str) -> _Compiled:
    tree = environment.parse(source)
    return _Compiled(
        variables=frozenset(meta.find_undeclared_variables(tree)),
        template=environment.from_string(tree),
        takes_parts=any(_names_content(loop.iter) for loop in tree.find_all(nodes.For)),
        takes_argument_text=re.search(r"arguments\s+is\s+(not\s+)?string", source) is not None,
    )


def _names_content(expression: nodes.Node) -> bool:
    """Return whether ``content``, ``message.content`` or ``message['content']`` is the thing looped over."""
    match expression:
        case nodes.Name(name="content") | nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Filter(node=nodes.Node() as inner):
            return inner is not None and _names_content(inner)
    return False


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


def _contained(run: Callable[[], _T]) -> _T:
    """Turn whatever a template raises into `ChatTemplateError`."""
    try:
        return run()
    except TinyLLMError:
        raise
    except RefusedError as error:
        raise ChatTemplateError(f"The chat template refused the messages: {error}") from None
    except LimitError as error:
        raise ChatTemplateError(f"The chat template was stopped: {error}.") from None
    except TemplateSyntaxError as error:
        raise ChatTemplateError(
            f"The chat template has a fault in line {error.lineno}: {error.message}"
        ) from None
    except RecursionError:
        raise ChatTemplateError("The chat template was stopped: it is nested too deep.") from None
    except MemoryError:
        raise ChatTemplateError("The chat template was stopped: it uses too much memory.") from None
    except Exception as error:
        raise ChatTemplateError(f"The chat template failed: {str(error)[:300]}") from None
