"""The Triton kernels, importable as ``pss_engine.kernels.<op>`` from an installed package and from a checkout.

In a checkout they live in the top-level folder ``kernels/``, which has no ``__init__.py``: with one it would shadow the
package ``kernels`` that transformers looks for.
"""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent
__path__ = [str(folder) for folder in (_PACKAGE / "kernels", _PACKAGE.parent / "kernels") if folder.is_dir()][:1]
