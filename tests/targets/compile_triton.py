"""Compiles every variant for every GPU generation, without a GPU, and says what each takes of a multiprocessor.

    python -m tests.targets.compile_triton          rows of the table as CSV
    python -m tests.targets.compile_triton --write  the same into triton_resources.csv

A process of its own: with TRITON_INTERPRET set, as in the tests, nothing would be compiled.
"""

from __future__ import annotations

import csv
import io
import os
import re
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

GOLDEN = Path(__file__).parent / "triton_resources.csv"
COLUMNS = ("variant", "target", "registers", "stack", "spills", "shared")
TARGETS = (80, 86, 87, 89, 90, 100, 110, 120, 121)


def resources(task: tuple[int, int]) -> tuple[str, int, int, int, int, int]:
    """Registers of a thread, bytes of stack and spills of a thread, bytes of shared memory of a program."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tests.targets.triton_variants import INTEGERS, variants

    index, target = task
    variant = list(variants())[index]
    kernel = variant.kernel
    constants = {name for name in kernel.arg_names if name.isupper()}
    signature = {n: "constexpr" if n in constants else variant.types.get(n, INTEGERS) for n in kernel.arg_names}
    # what a launch would find: addresses and sizes that are multiples of 16, but for those it is told not to look at
    fixed = {kernel.arg_names[i] if isinstance(i, int) else i for i in kernel.do_not_specialize or ()}
    aligned = [i for i, (n, t) in enumerate(signature.items()) if t[0] == "*" or (t == INTEGERS and n not in fixed)]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs={(kernel.arg_names.index(name),): value for name, value in variant.constants.items()},
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    binary = triton.compile(source, target=GPUTarget("cuda", target, 32), options=variant.options)
    registers, stack = _usage(binary.asm["cubin"])
    spills = _spills(binary.asm["ptx"]) if stack else 0
    return variant.name, target, registers, stack, spills, binary.metadata.shared


def _tool(name: str) -> Path:
    import triton.backends.nvidia as nvidia

    return Path(nvidia.__file__).parent / "bin" / name


def _usage(cubin: bytes) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        output = subprocess.run([_tool("cuobjdump"), "-res-usage", file.name], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", output)
    if found is None:
        raise RuntimeError(f"cuobjdump says nothing of registers: {output!r}")
    return int(found[1]), int(found[2])


def _spills(ptx: str) -> int:
    found = re.search(r"\.target (sm_\d+\w*)", ptx)
    target = found[1] if found else ""
    tool = _tool("ptxas-blackwell" if int(re.sub(r"\D", "", target)) >= 100 else "ptxas")
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [tool, "-v", f"-arch={target}", file.name, "-o", os.devnull]
        output = subprocess.run(command, capture_output=True, text=True).stderr
    return sum(int(size) for size in re.findall(r"(\d+) bytes spill (?:stores|loads)", output))


def compile_all() -> str:
    """The table as CSV: its first line names Triton's version."""
    import triton

    from tests.targets.triton_variants import variants

    tasks = [(i, target) for i in range(len(list(variants()))) for target in TARGETS]
    with get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        rows = pool.map(resources, tasks, chunksize=1)
    text = io.StringIO()
    print(f"# triton {triton.__version__}", file=text)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(rows)
    return text.getvalue()


if __name__ == "__main__":
    if os.environ.pop("TRITON_INTERPRET", None):
        os.execve(sys.executable, [sys.executable, "-m", "tests.targets.compile_triton", *sys.argv[1:]], os.environ)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        table = compile_all()
    if "--write" in sys.argv[1:]:
        GOLDEN.write_text(table)
    else:
        print(table, end="")
