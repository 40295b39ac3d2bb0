"""What version of itself runs: digests of this package's sources.

Caches on disk keep what parts of this package generate; their keys contain a digest of those parts, so that
nothing that an earlier version made is taken for what this one would make.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from pathlib import Path

__all__ = ["sources_digest"]

_PACKAGE = Path(__file__).parent
_IMPORTED_AT = time.time()


@functools.cache
def sources_digest(*components: str) -> bytes | None:
    """A digest of the sources of components of this package, such as ``kernels``; what they generate may be
    kept under it. ``None`` where there are no source files, or where one was changed since this process
    began: nobody can say then which version runs.
    """
    digest = hashlib.sha256()
    try:
        for component in components:
            paths = sorted((_PACKAGE / component).rglob("*.py"))
            if not paths:
                return None
            for path in paths:
                with path.open("rb") as file:
                    if os.fstat(file.fileno()).st_mtime >= _IMPORTED_AT:
                        return None
                    digest.update(hashlib.sha256(file.read()).digest() + path.name.encode() + b"\0")
    except OSError:
        return None
    return digest.digest()
