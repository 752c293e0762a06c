"""What Linux says of the memory of this process and of the machine. Bytes; no torch."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def table(path: Path) -> dict[str, int]:
    """A file of ``Name:  1234 kB`` lines, in bytes; empty where it cannot be read (not Linux)."""
    found: dict[str, int] = {}
    with suppress(OSError):
        for line in path.read_text("utf-8", "replace").splitlines():
            name, _, rest = line.partition(":")
            number, _, unit = rest.strip().partition(" ")
            if unit == "kB" and number.isdigit():
                found[name] = int(number) * 1024
    return found


def process() -> dict[str, int]:
    """``rss``, ``pss`` (pages shared with other processes count by their share), ``files`` (mapped files: libraries,
    weights that are read in place) and ``peak`` (largest rss since :func:`reset_peak`, or ever)."""
    status, rollup = table(PROC / "self" / "status"), table(PROC / "self" / "smaps_rollup")
    rss = status.get("VmRSS", 0)
    return {
        "rss": rss,
        "pss": rollup.get("Pss", rss),
        "files": status.get("RssFile", 0),
        "peak": max(rss, status.get("VmHWM", 0)),
    }


def reset_peak() -> bool:
    """Let the peak begin again at what is resident now; False where the system does not allow it."""
    try:
        (PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def give_back_freed() -> None:
    """Return to the system what was used and freed since: of loading a small model or a state a good part of its size.
    Nothing where the C library is not glibc, which keeps such memory."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def machine() -> Mapping[str, int]:
    """``total`` and ``available`` memory. On boards with unified memory (Jetson) the GPU takes from the same."""
    memory = table(PROC / "meminfo")
    if "MemAvailable" not in memory:  # not Linux
        return {"total": _PAGE * os.sysconf("SC_PHYS_PAGES"), "available": _PAGE * os.sysconf("SC_AVPHYS_PAGES")}
    return {"total": memory["MemTotal"], "available": memory["MemAvailable"]}


def file_ranges() -> list[tuple[int, int]]:
    """Address ranges [start, end) of this process that are files mapped in place."""
    found: list[tuple[int, int]] = []
    with suppress(OSError):
        for line in (PROC / "self" / "maps").read_text("utf-8", "replace").splitlines():
            addresses, _, _, _, inode = line.split(maxsplit=5)[:5]
            if inode != "0":
                start, _, end = addresses.partition("-")
                found.append((int(start, 16), int(end, 16)))
    return found


def resident_bytes(address: int, num_bytes: int) -> int:
    """Of so many bytes from an address, those on pages that are in memory: an allocation that nobody wrote to is not.

    Pages at the ends count by the bytes that they share with the range. Where the system cannot tell, all bytes count.
    """
    first = address // _PAGE * _PAGE
    count = -(-(address + num_bytes - first) // _PAGE)
    pages = (ctypes.c_ubyte * count)()
    try:
        failed = ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(count * _PAGE), pages)
    except (OSError, AttributeError):
        return num_bytes
    if failed or not num_bytes:
        return num_bytes
    resident = bytes(pages)
    inside = resident.translate(_LOW_BIT).count(1) * _PAGE
    inside -= (resident[0] & 1) * (address - first)
    return inside - (resident[-1] & 1) * (first + count * _PAGE - address - num_bytes)


_LOW_BIT = bytes(value & 1 for value in range(256))
