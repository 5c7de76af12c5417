"""A quicker start for commands that only do arithmetic: torch without what compiling needs."""

from __future__ import annotations

import gc
import sys
from types import ModuleType

# Shape rules for tensors without storage: a third of torch's import, read by torch.compile and torch.export alone.
_UNUSED = "torch._meta_registrations"


def import_torch() -> None:
    """Import torch, a third quicker. Only for processes that neither compile nor export, and that end soon.

    What was left out is imported as usual if anything asks for it later. Does nothing where torch is there already.
    """
    if "torch" in sys.modules:
        return
    collects = gc.isenabled()
    gc.disable()  # a hundred thousand objects are made that all stay
    sys.modules[_UNUSED] = ModuleType(_UNUSED)
    try:
        import torch

        if hasattr(torch, "_meta_registrations"):
            del torch._meta_registrations
    finally:
        sys.modules.pop(_UNUSED, None)
        gc.freeze()
        if collects:
            gc.enable()
