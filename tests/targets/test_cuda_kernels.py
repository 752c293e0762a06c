"""The CUDA kernels: their numbers on the CPU under sanitizers, code for every target, and the library for aarch64."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import pytest

from tests.targets.builds import ROOT, build, need, need_fetched, run

pytestmark = pytest.mark.targets

KERNELS = sorted(path for path in (ROOT / "csrc" / "cuda").glob("*.cu") if path.stem != "device")
TARGETS = (80, 86, 87, 89, 90, 100, 110, 120, 121)
# A template is code only where it is instantiated.
INSTANCES = {
    "paged_attention": "".join(
        f"template __global__ void pss::cuda::attend<{group}, {split}>(pss::cuda::AttentionArgs);\n"
        for group in (1, 4, 8, 16)
        for split in ("true", "false")
    ),
    "retrieve_topk": "".join(
        f"template __global__ void pss::cuda::dense_candidates<pss::cuda::{codes}>(pss::cuda::DenseArgs);\n"
        for codes in ("Floats", "Int8s")
    ),
}
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def toolkit() -> Path:
    """The folder of the toolkit. nvcc may be a wrapper or a link, so it is asked."""
    output = run(need("nvcc"), "-dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull)
    found = re.search(r"TOP=(\S+)", output)
    assert found, output
    return Path(found[1])


def test_on_the_cpu_every_kernel_gives_the_right_sums_and_stays_in_its_memory(tmp_path: Path) -> None:
    flags = ["-O1", "-g1", "-w", f"-I{toolkit() / 'include'}", *SANITIZERS]
    compiler, objects = need("g++"), []
    for source in KERNELS:
        objects.append(str(tmp_path / f"{source.stem}.o"))
        shim = ["-x", "c++", "-include", str(ROOT / "tests" / "cuda" / "cpu_shim.h")]
        run(compiler, "-std=c++17", *flags, f"-I{ROOT}", f"-I{ROOT / 'csrc'}", *shim, "-c", source, "-o", objects[-1])
    program = tmp_path / "cuda"
    tests = [*sorted((ROOT / "tests" / "cuda").glob("*.cpp")), ROOT / "tests" / "native" / "harness.cpp"]
    build(program, tests, compiler, flags, objects)
    output = run(program)
    assert "cuda: " in output
    assert "\n0 failures\n" in output


@pytest.mark.parametrize("source", KERNELS, ids=lambda path: path.stem)
def test_every_target_that_nvcc_knows_compiles_without_spills(source: Path, tmp_path: Path) -> None:
    nvcc = need("nvcc")
    known = run(nvcc, "--list-gpu-arch")
    targets = [target for target in TARGETS if f"compute_{target}\n" in known]
    assert targets
    code = [f"-gencode=arch=compute_{target},code=sm_{target}" for target in targets]
    flags = ["-O3", "-std=c++17", f"-I{ROOT / 'csrc'}", "-Xptxas", "-v", "--threads", str(len(os.sched_getaffinity(0)))]
    output = run(nvcc, "-c", source, "-o", tmp_path / "kernels.o", *flags, *code)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", output)
    assert len(spills) >= len(targets)
    assert set(spills) == {("0", "0")}, output


@pytest.mark.parametrize("target", [72, 87])
@pytest.mark.parametrize("source", [s.with_suffix(".cuh") for s in KERNELS], ids=lambda path: path.stem)
def test_the_compiler_of_jetpack_6_takes_the_device_code(source: Path, target: int) -> None:
    folder = need_fetched("nvrtc", "nvidia")
    library = ctypes.CDLL(str(folder / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = source.read_text() + INSTANCES.get(source.stem, "")
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), source.name.encode(), 0, None, None)
    include = folder / "cuda_runtime" / "include"
    options = [f"--gpu-architecture=sm_{target}", f"-I{include}", f"-I{ROOT / 'csrc'}", "-std=c++17"]
    encoded = [option.encode() for option in options]
    code = library.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    assert code == 0, log.value.decode()
    assert library.nvrtcGetCUBINSize(program, ctypes.byref(size)) == 0
    assert size.value > 0


def test_the_cuda_part_links_for_orin_and_loads_without_a_driver(tmp_path: Path) -> None:
    nvcc, compiler, emulator = need("nvcc"), need("aarch64-linux-gnu-g++"), need("qemu-aarch64-static")
    runtime = need_fetched("cuda-aarch64", "nvidia", "cu13", "lib")
    objects = []
    for source in sorted((ROOT / "csrc" / "cuda").glob("*.cu")):
        objects.append(tmp_path / f"{source.stem}.o")
        flags = ["-arch=sm_87", f"-I{toolkit() / 'include'}", f"-I{ROOT / 'csrc'}", "-std=c++17", "-O3"]
        run(nvcc, "-ccbin", compiler, *flags, "-c", source, "-o", objects[-1])
    main = tmp_path / "main.cpp"
    main.write_text(
        '#include <cstdio>\n#include "cuda/device.h"\n'
        'int main() { std::printf("%d devices, %s\\n", pss::cuda::device_count(), pss::cuda::why_not()); }\n'
    )
    libraries = [runtime / "libcudart_static.a", runtime / "libculibos.a"]
    system = ["-ldl", "-lrt", "-lpthread"]
    run(compiler, "-std=c++17", f"-I{ROOT / 'csrc'}", main, *objects, *libraries, *system, "-o", tmp_path / "main")
    output = run(emulator, "-L", "/usr/aarch64-linux-gnu", tmp_path / "main")
    assert output.startswith("0 devices, CUDA driver version is insufficient"), output
