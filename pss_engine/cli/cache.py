"""``pss cache``: the packed models that are kept on disk."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pss_engine.cli.options import Json

if TYPE_CHECKING:
    from pss_engine.models.cache import Entry


def list_entries(*, as_json: Json = False) -> None:
    """What is kept, last used first."""
    from pss_engine.cli.output import console, emit_json, listing, mib
    from pss_engine.models.cache import CacheFolder, cache_folder

    folder = CacheFolder(cache_folder())
    rows = [_row(entry) for entry in folder.entries()]
    total, limit = sum(row["num_bytes"] for row in rows), folder.max_bytes()
    if as_json:
        emit_json({"cache": str(folder.root), "num_bytes": total, "max_bytes": limit, "models": rows})
        return
    table = listing()
    for name in ("model", "weights", "size", "used", "fingerprint", "path"):
        table.add_column(name, overflow="fold")
    for row in rows:
        if "error" in row:
            table.add_row("damaged", "", mib(row["num_bytes"]), row["used_at"], "", row["error"], style="red")
            continue
        fingerprint = row["fingerprint"][:12]
        table.add_row(row["model"], row["weights"], mib(row["num_bytes"]), row["used_at"], fingerprint, row["path"])
    console().print(table if rows else "nothing is kept")
    console().print(f"{len(rows)} models, {mib(total)} of at most {mib(limit)} in {folder.root}", style="dim")


def clear(*, as_json: Json = False) -> None:
    """Remove all of it; the next load of each model makes it again."""
    from pss_engine.cli.output import emit_json, mib
    from pss_engine.models.cache import CacheFolder, cache_folder

    folder = CacheFolder(cache_folder())
    num_models, num_bytes = len(folder.entries()), folder.clear()
    if as_json:
        emit_json({"cache": str(folder.root), "num_models": num_models, "num_bytes": num_bytes})
    else:
        print(f"{num_models} models, {mib(num_bytes)} removed from {folder.root}")


def _row(entry: Entry) -> dict[str, Any]:
    from pss_engine.models.cache.packed_cache import read_info
    from pss_engine.models.cache.tensors import Damaged

    used_at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.used_at))
    row = {"key": entry.path.name, "num_bytes": entry.num_bytes, "used_at": used_at}
    try:
        info = read_info(entry.path)
    except (Damaged, OSError) as error:
        return {**row, "error": str(error)}
    source = info["source"]
    return {
        **row,
        "model": source["name"],
        "weights": source["weights"],
        "path": source["path"],
        "fingerprint": info["fingerprint"],
    }
