"""``pss inspect kv``: what a model's KV weighs, from its config alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from pss_engine.cli.options import DEFAULT_MODEL, Json

if TYPE_CHECKING:
    from pss_engine.cli.kv_facts import KVFacts

KVDtype = Literal["auto", "float32", "bfloat16", "float16", "fp8", "int8"]


def kv(
    model: Annotated[
        str,
        Parameter(env_var="PSS_MODEL", help="A config.json, a folder with one, a .gguf file, a package or a hub id."),
    ] = DEFAULT_MODEL,
    /,
    *,
    context: Annotated[int, Parameter(help="Tokens of a sequence; 0: the model's longest.")] = 0,
    batch: Annotated[int, Parameter(help="Sequences that live together.")] = 1,
    kv_dtype: Annotated[KVDtype, Parameter(help="Of keys and values; auto: the model's.")] = "auto",
    block_size: Annotated[int, Parameter(help="Tokens in a block.")] = 16,
    num_session_layers: Annotated[int, Parameter(help="Layers above the cut.")] = 8,
    common_tokens: Annotated[
        int, Parameter(help="Leading tokens that all sessions have in common; -1: the whole context.")
    ] = -1,
    memory_bytes: Annotated[int, Parameter(help="Memory for KV that sessions are to fit.")] = 8 * 1024**3,
    as_json: Json = False,
) -> int:
    """What KV cache and recurrent states a model needs, and how many sessions fit; no weights are read."""
    from pss_engine.cli.kv_facts import kv_facts
    from pss_engine.cli.output import emit_json

    found = kv_facts(
        model,
        context=context,
        batch=batch,
        kv_dtype=kv_dtype,
        block_size=block_size,
        num_session_layers=num_session_layers,
        common_tokens=common_tokens,
        memory_bytes=memory_bytes,
    )
    if as_json:
        emit_json(found.to_dict())
    else:
        _show(found)
    return 0


def _show(found: KVFacts) -> None:
    from pss_engine.cli.output import console, facts, listing, mib

    document = found.to_dict()
    sequence, tokens = document["sequence"], document["kv_bytes_per_token"]
    out = console()
    out.print(
        facts(
            [
                ("model", found.name),
                ("read as", f"{found.read_as}, {found.path}"),
                ("KV", f"{tokens['all']:,} bytes per token in {document['kv_dtype']}"),
            ]
        )
    )
    table = listing()
    columns = ("side", "layers", "keeps", "bytes/token", f"{document['context']:,} tokens", "in blocks", "recurrent")
    for at, name in enumerate(columns):
        table.add_column(name, justify="left" if at in (0, 2) else "right")
    for group, rows in document["layers"].items():
        for row in rows:
            table.add_row(group, *_cells(row))
    out.print(table)
    common, memory = document["common_tokens"], mib(found.memory_bytes)
    fits = document["num_sessions"]
    lines: list[tuple[str, object]] = [
        ("sequence", f"{mib(sequence['kv_bytes'])}, {mib(sequence['kv_bytes_allocated'])} in blocks of"
         f" {document['block_size']}, and {mib(sequence['recurrent_state_bytes'])} of recurrent state"),
        (f"batch of {document['batch']}", f"{mib(document['batch_bytes'])};"
         f" {mib(document['batch_bytes_with_cut'])} with {common:,} common tokens held once below the cut"),
        (f"fit in {memory}", f"{fits['without_cut']:,} sessions without the cut, {fits['with_cut']:,} with it"),
    ]  # fmt: skip
    if sequence["kv_bytes_unwindowed"] != sequence["kv_bytes_allocated"]:
        lines.append(("windows", f"this engine frees no block behind a window: {mib(sequence['kv_bytes_unwindowed'])}"))
    out.print(facts(lines))


def _cells(row: dict[str, Any]) -> list[str]:
    from pss_engine.cli.output import mib

    kind = f"{row['kind']}, {row['window']:,} tokens" if row["window"] else row["kind"]
    recurrent = row["recurrent_state_bytes"] + row["conv_state_bytes"]
    grown = [row["kv_bytes_per_token"], row["kv_bytes"], row["kv_bytes_allocated"]]
    return [
        str(row["num_layers"]),
        kind,
        *([f"{grown[0]:,}", mib(grown[1]), mib(grown[2])] if grown[0] else ["", "", ""]),
        mib(recurrent) if recurrent else "",
    ]
