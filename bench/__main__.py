"""``python -m bench``: run a suite, print the report, compare two files of rows."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench import compare, pictures, report
from bench.environment import ROOT, say, stamp
from bench.rows import Row, append_rows, newest_run, read_rows
from bench.suites import SUITES, Options, Skipped, runner
from pss_engine.errors import ConfigError, PSSError

RESULTS = ROOT / "bench" / "results"


def main(arguments: Sequence[str]) -> int:
    # As the command line does: what is measured is what its users get. OpenMP reads it when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        if options.command == "report":
            return _report(options.suites, options.write)
        if options.command == "compare":
            print(compare.table(newest_run(read_rows(options.old)), newest_run(read_rows(options.new))))
            return 0
        data = options.data or Path(os.environ.get("PSS_DATA") or ROOT.parent / "shared" / "data")
        out = options.out or RESULTS / f"{options.command}.jsonl"
        return _run(options.command, Options(options.quick, data, out.parent), out, arguments)
    except PSSError as error:
        say(f"bench: {error}")
        return 1


def _run(suite: str, options: Options, out: Path, arguments: Sequence[str]) -> int:
    where = stamp(suite, arguments)
    rows = []
    try:
        for found in runner(suite)(options):
            rows.append(Row.of(found, where))
            say(report.line(rows[-1]))
    except Skipped as reason:
        say(f"bench: {suite} is skipped: {reason}")
        return 0
    except BaseException:
        if rows:
            unfinished = out.with_suffix(".unfinished.jsonl")
            append_rows(unfinished, rows)
            say(f"bench: the run did not end; its {len(rows)} rows are in {os.path.relpath(unfinished)}")
        raise
    append_rows(out, rows)
    say(f"bench: {len(rows)} rows of run {where.run} appended to {os.path.relpath(out)}")
    return 0


def _report(suites: Sequence[str], target: Path | None) -> int:
    if unknown := sorted(set(suites) - set(SUITES)):
        raise ConfigError(f"suites {', '.join(unknown)} are unknown; choices: {', '.join(SUITES)}")
    files = {suite: RESULTS / f"{suite}.jsonl" for suite in suites or SUITES}
    present = {suite: file for suite, file in files.items() if file.exists()}
    for file in present.values():
        pictures.draw(file)
    folder = ROOT if target is None else target.resolve().parent
    tables = {suite: report.of_file(file) + pictures.link(file, folder) for suite, file in present.items()}
    for suite in sorted(set(files) - set(tables)):
        say(f"bench: {suite} has no rows; python -m bench {suite} makes them")
    if target is None:
        print("\n\n".join(f"### {suite}\n\n{table}" for suite, table in tables.items()))
    else:
        target.write_text(report.fill(target.read_text("utf-8"), tables), "utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures and reports; rows go to bench/results."
    )
    commands = parser.add_subparsers(dest="command", metavar="SUITE | report | compare")
    for suite, summary in SUITES.items():
        command = commands.add_parser(suite, help=summary, description=summary)
        command.add_argument("--quick", action="store_true", help="a smaller run; its rows say what was left out")
        command.add_argument("--out", type=Path, help=f"file to append rows to (bench/results/{suite}.jsonl)")
        command.add_argument("--data", type=Path, help="folder of the evaluation data ($PSS_DATA, ../shared/data)")
    command = commands.add_parser("report", help="markdown tables of the newest run of each suite")
    command.add_argument("suites", nargs="*", metavar="SUITE", help="only these suites")
    command.add_argument(
        "--write", type=Path, metavar="FILE", help="fill <!-- bench:SUITE --> ... <!-- /bench --> there"
    )
    command = commands.add_parser("compare", help="what moved between the newest runs of two files of rows")
    command.add_argument("old", type=Path, metavar="OLD")
    command.add_argument("new", type=Path, metavar="NEW")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
