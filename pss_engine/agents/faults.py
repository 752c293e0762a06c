"""What ends a question without an answer, with a name to count it by."""

from __future__ import annotations

from pss_engine.errors import PSSError


class Fault(PSSError):
    """A call, a search or a rerank that brought nothing.

    Attributes:
        cause: ``timeout``, ``connect``, ``http_500``, ``invalid_utf8``, ``invalid_reply``, ``too_long``, ``rejected``,
            ``no_session``, ``engine``, ``empty_clue``, ``evidence_store``, ``reranker``.
    """

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        super().__init__(message)
