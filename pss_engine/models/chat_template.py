"""Chat templates by jinja2, in the sandbox and with the names that transformers gives them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


def compile_template(source: str) -> Callable[..., str]:
    """``render(messages=..., add_generation_prompt=..., **special_tokens)`` of a template.

    Raises:
        jinja2.TemplateError: it is none, or has a tag of its own; while rendering, what the template itself refuses.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(source).render


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **rest: Any) -> str:
    """jinja2's own would escape what HTML escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **rest)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
