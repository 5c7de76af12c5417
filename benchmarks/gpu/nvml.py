"""How busy a device is, from the management library of NVIDIA by ctypes: it comes with the driver."""

from __future__ import annotations

import ctypes
import statistics
import threading
from types import TracebackType
from typing import Any, Self

import torch

LIBRARY = "libnvidia-ml.so.1"
SECONDS = 0.2  # between two looks


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Utilisation:
    """Samples the utilisation of a device while its block runs.

    config: {"utilisation": mean, 0 to 1}, or why there is none.

    The figure of NVML is the share of time in which at least one kernel ran.
    """

    def __init__(self, device: torch.device) -> None:
        self._samples: list[int] = []
        self._handle, self._missing = (None, "") if device.type != "cuda" else _handle_of(device)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    @property
    def config(self) -> dict[str, Any]:
        """For the config of a row; empty on a CPU."""
        if self._samples:
            return {"utilisation": round(statistics.mean(self._samples) / 100, 3)}
        return {"utilisation": self._missing} if self._missing else {}

    def __enter__(self) -> Self:
        if self._handle is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()

    def _look(self) -> None:
        library, handle = self._handle or (None, None)
        rates = _Rates()
        while not self._end.wait(SECONDS):
            if library is not None and library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(rates)) == 0:
                self._samples.append(rates.gpu)


def _handle_of(device: torch.device) -> tuple[tuple[ctypes.CDLL, ctypes.c_void_p] | None, str]:
    """The library with the handle of a device, or None and the reason."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError:
        return None, f"not measured: {LIBRARY} is missing"
    handle = ctypes.c_void_p()
    properties: Any = torch.cuda.get_device_properties(device)  # the index may differ: CUDA_VISIBLE_DEVICES
    name = f"GPU-{properties.uuid}".encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        return None, "not measured: NVML does not know the device"
    return (library, handle), ""
