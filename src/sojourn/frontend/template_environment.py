"""The sandbox that chat templates run in: the helpers they expect, a bound on time and size. Knows no messages.

Templates come with model files, so they are foreign code. Jinja's immutable sandbox keeps them from Python; this file
keeps them from running or growing without end, which no sandbox does: every loop and macro body starts with a check.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateRuntimeError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_CHARS = 64 * 1024 * 1024  # of one text or the whole output: twice the largest request body
MAX_ITEMS = 1_000_000  # of one list
MAX_INTEGER_BITS = 1024
_BUDGET = "render budget"  # a context key that no template can name: it is no identifier
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\*|\d{5})")


class TemplateRejectedError(TemplateError):
    """The template called raise_exception(message): these messages are not for it."""


class TemplateLimitError(TemplateRuntimeError):
    """Rendering took too long or grew too large."""


class RenderBudget:
    """The time one rendering may take. Not shared."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def check(self) -> None:
        if time.monotonic() > self._deadline:
            raise TemplateLimitError(f"it took longer than {self._seconds:g} s")


def render_within(template: Template, variables: Mapping[str, Any], *, seconds: float) -> str:
    """The template's output.

    Raises TemplateLimitError after `seconds` or `MAX_CHARS`, and whatever the template raises.
    """
    budget = RenderBudget(seconds)
    context = template.new_context({**variables, _BUDGET: budget})
    pieces: list[str] = []
    size = 0
    for piece in template.root_render_func(context):
        budget.check()
        size += len(piece)
        _check_size(size, MAX_CHARS)
        pieces.append(piece)
    return "".join(pieces)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Immutable after construction, so several threads may render at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        del self.globals["lipsum"]  # makes text of any length
        self.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        self.filters.update(tojson=_tojson, center=_refused_filter)

    def compile_chat_template(self, source: str) -> Template:
        """Raises TemplateSyntaxError, which holds the line number."""
        return self.from_string(_Metering(self).visit(self.parse(source)))

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuses at once: Jinja's own would print nothing and only fail on further use."""
        raise SecurityError(f"access to {attribute!r} of a {type(obj).__name__} is not allowed")

    def check_step(self, context: Context) -> None:
        """Called by the compiled template at the start of every loop and macro body."""
        context.parent[_BUDGET].check()

    def join_values(self, *values: Any) -> str:
        """The `~` operator."""
        texts = [str(value) for value in values]
        _check_size(sum(map(len, texts)), MAX_CHARS)
        return "".join(texts)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Metering(NodeTransformer):
    """Rewrites a parsed template: a check at the start of every loop and macro body, `~` through join_values."""

    def __init__(self, environment: TemplateEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802  (the name is Jinja's protocol)
        return self._metered(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return self._call("join_values", list(node.nodes), node.lineno)

    def _metered(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        self.generic_visit(node)
        check = self._call("check_step", [nodes.ContextReference()], node.lineno)
        node.body.insert(0, nodes.ExprStmt(check, lineno=node.lineno).set_environment(self._environment))
        return node

    def _call(self, method: str, arguments: list[nodes.Expr], lineno: int) -> nodes.Call:
        call = nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=lineno)
        call.set_lineno(lineno)
        call.set_environment(self._environment)
        return call


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; for inference its body is all that counts."""

    tags = {"generation"}  # noqa: RUF012  (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        lineno = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=lineno)


def _raise_exception(message: Any) -> NoReturn:
    raise TemplateRejectedError(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as `transformers` gives it: unlike Jinja's own filter it escapes neither HTML nor non-ASCII characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refused_filter(value: Any, *_: Any) -> NoReturn:
    raise TemplateLimitError("the filter `center` is not available to chat templates")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuses an operation whose result would be too large, before it is made."""
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * max(right, 0), MAX_INTEGER_BITS)
    elif operator == "*":
        for sized, times in ((left, right), (right, left)):
            if isinstance(sized, Sized) and isinstance(times, int):
                _check_size(len(sized) * times, _limit_of(sized))
    elif operator == "+":
        if isinstance(left, Sized) and isinstance(right, Sized):
            _check_size(len(left) + len(right), _limit_of(left))
    elif isinstance(left, str) and _WIDE_FORMAT.search(left):
        raise TemplateLimitError("a format that wide is not available to chat templates")


def _limit_of(value: Sized) -> int:
    return MAX_CHARS if isinstance(value, str) else MAX_ITEMS


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise TemplateLimitError(f"it would make a value of size {size}, the limit is {limit}")
