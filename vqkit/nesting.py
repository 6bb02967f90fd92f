"""``asyncio.run`` inside a cell, for code of yours that insists on it. vqkit never needs it."""

from __future__ import annotations

import asyncio
import sys

from .errors import UsageError

__all__ = ["allow_nested"]


def allow_nested() -> str:
    """Lets ``asyncio.run()`` be called where a loop is running. Returns what made it possible.

    Patches asyncio for the whole kernel, for good: call it only if you need it. Uses
    nest-asyncio2; nest-asyncio 1.6 only on ipykernel < 7 and Python < 3.14, because on newer
    ones it loses every queued cell of "Run All" (its source is archived). Raises
    UsageError where neither is safe.
    """
    loop = _running_loop()
    if loop is not None and not isinstance(loop, asyncio.BaseEventLoop):
        raise UsageError(
            f"{type(loop).__module__} loops cannot be nested; use 'await' in the cell instead"
        )
    if hasattr(asyncio, "_nest_patched") and not hasattr(asyncio, "_nest_asyncio2"):
        if not _is_old():
            raise UsageError(
                "another package has applied nest-asyncio 1.6 here, which loses queued cells on"
                " this ipykernel; restart the kernel and call vqkit.allow_nested() first"
            )
        return "nest-asyncio"
    try:
        import nest_asyncio2
    except ImportError:
        if not _is_old():
            raise UsageError(
                "nest-asyncio 1.6 loses queued cells on this ipykernel;"
                " pip install nest-asyncio2, or use 'await' in the cell"
            ) from None
        import nest_asyncio

        nest_asyncio.apply()
        return "nest-asyncio"
    nest_asyncio2.apply()
    return "nest-asyncio2"


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _is_old() -> bool:
    """An ipykernel and a Python that nest-asyncio 1.6 is safe on."""
    from importlib import metadata

    try:
        major = int(metadata.version("ipykernel").split(".")[0])
    except (metadata.PackageNotFoundError, ValueError):
        major = 0
    return major < 7 and sys.version_info < (3, 14)
