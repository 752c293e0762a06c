"""The CPU kernels against plain loops (tests/native): under sanitizers, as AVX-512, and on aarch64 processors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.targets.builds import build, native_sources, need, need_fetched, run

pytestmark = pytest.mark.targets

# The first has the baseline alone, the second dot products too (Orin), the third i8mm, bfloat16 and SVE (Thor, Grace).
PROCESSORS = ("cortex-a72", "cortex-a76", "max")


def test_no_kernel_leaves_its_memory_or_the_language(tmp_path: Path) -> None:
    program = tmp_path / "native"
    # unoptimised: with the checks in unrolled loops, -O1 compiles for minutes, and the kernels' work is small
    flags = ["-O0", "-g1", "-Wall", "-fopenmp", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    build(program, native_sources(), need("g++"), flags)
    output = run(program, environment={"OMP_NUM_THREADS": "2"})
    assert "scalar: " in output
    assert output.endswith("0 failures\n")


def test_avx512_gives_the_same_sums_in_terms_of_avx2(tmp_path: Path) -> None:
    headers = need_fetched("simde", "cmeel.prefix", "include")
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("SIMDe computes AVX-512 with AVX2, which this processor lacks")
    program = tmp_path / "native"
    flags = ["-O1", "-w", "-fopenmp", "-mavx2", "-mfma", "-mf16c", "-DPSS_SIMDE", f"-isystem{headers}"]
    build(program, native_sources(), need("g++"), flags)
    assert "zmm" not in run(need("objdump"), "-d", "--no-show-raw-insn", program)
    output = run(program, "avx512", environment={"OMP_NUM_THREADS": "2"})
    assert "avx512: " in output
    assert output.endswith("0 failures\n")


@pytest.fixture(scope="module")
def aarch64_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("aarch64") / "native"
    build(program, native_sources(), need("aarch64-linux-gnu-g++"), ["-O2", "-w", "-fopenmp"], ["-static"])
    return program


@pytest.mark.parametrize("processor", PROCESSORS)
def test_aarch64_gives_the_same_sums_on_every_generation(aarch64_program: Path, processor: str) -> None:
    emulator = need("qemu-aarch64-static")
    output = run(emulator, "-cpu", processor, aarch64_program, environment={"OMP_NUM_THREADS": "2"})
    assert "scalar: " in output
    assert "neon: " in output
    assert output.endswith("0 failures\n")
