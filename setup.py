"""Builds the optional extension ``pss_engine._C`` and maps ``kernels/`` to ``pss_engine.kernels``.

The metadata is in pyproject.toml. Environment:
    PSS_CUDA        0: CPU only; 1: the CUDA part is required; auto (default): with the CUDA part if nvcc works.
    PSS_CUDA_ARCHS  compute capabilities of the CUDA part, for example 87 or 80,90; those that nvcc lacks are left out.
    CUDA_HOME, CXX  the toolkit and the compiler to use.
    MAX_JOBS        C++ files compiled at once; default: one for each processor.

A failed build does not fail the installation: ``pss_engine/_build_info.json`` keeps the reason for ``pss doctor``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, ExecError
from setuptools.extension import Extension

ROOT = Path(__file__).parent
CUDA_ARCHS = "80,86,87,89,90,100,110,120,121"
# A contracted multiply-add would give a quantised weight other bits than its dequantised copy.
COMPILER_FLAGS = ["-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-g0"]


def sources(pattern: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").glob(pattern))


def run(command: list[str]) -> str:
    """The command's output; an ExecError with its first error line if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise ExecError(f"{command[0]}: {error.strerror}") from None
    output = done.stdout + done.stderr
    if done.returncode:
        sys.stderr.write(output)
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        reason = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no output")
        raise ExecError(f"{Path(command[0]).name} failed with exit code {done.returncode}: {reason}")
    return output


def find_nvcc() -> str | None:
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    candidates = [f"{home}/bin/nvcc"] if home else []
    candidates += [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    return next((path for path in candidates if path and Path(path).exists()), None)


def supported_archs(nvcc: str) -> list[str]:
    wanted = os.environ.get("PSS_CUDA_ARCHS", CUDA_ARCHS)
    known = {line.removeprefix("compute_") for line in run([nvcc, "--list-gpu-arch"]).split()}
    archs = [arch for arch in wanted.split(",") if arch.rstrip("af") in known]
    if not archs:
        raise CompileError(f"nvcc supports none of PSS_CUDA_ARCHS={wanted}; it supports {','.join(sorted(known))}")
    return archs


def static_cuda_runtime(nvcc: str) -> list[str]:
    """Linker arguments of the static CUDA runtime. nvcc may be a wrapper or a link, so it is asked for its toolkit."""
    dry_run = run([nvcc, "-dryrun", "-c", "-x", "cu", os.devnull, "-o", os.devnull])
    found = re.search(r"TOP=(\S+)", dry_run)
    root = Path(found[1]) if found else Path(nvcc).resolve().parent.parent
    for folder in (root / "lib64", root / "lib", *root.glob("targets/*/lib")):
        if (folder / "libcudart_static.a").exists():
            libraries = [folder / "libcudart_static.a", folder / "libculibos.a"]
            return [str(path) for path in libraries if path.exists()] + ["-ldl", "-lrt", "-lpthread"]
    raise CompileError(f"libcudart_static.a not found under {root}")


class BuildExtension(build_ext):
    """Adds OpenMP and CUDA to the extension where they are to be had, and writes down how the build went."""

    def run(self) -> None:
        mode = os.environ.get("PSS_CUDA", "auto")
        if mode not in ("0", "1", "auto"):
            raise SystemExit(f"PSS_CUDA={mode} is not one of 0, 1, auto")
        self.cuda_mode = mode
        self.info: dict[str, Any] = {"extension": False, "error": "", "compiler": "", "openmp": False}
        self.info |= {"cuda": False, "cuda_error": "PSS_CUDA=0" if mode == "0" else "", "cuda_archs": [], "nvcc": ""}
        self.remove_earlier_build()
        super().run()
        self.write_info()

    def build_extension(self, ext: Extension) -> None:
        try:
            from pybind11.setup_helpers import ParallelCompile

            self.setup_compiler(ext)
            self.add_cuda(ext)
            with ParallelCompile("MAX_JOBS"):
                super().build_extension(ext)
            self.info["extension"] = True
        except Exception as error:
            self.info["error"] = " ".join(str(error).split())
            if self.cuda_mode == "1":
                raise SystemExit(f"PSS_CUDA=1, but the extension cannot be built: {self.info['error']}") from None
            self.warn(f"pss_engine._C is not built, the torch backend is used instead: {self.info['error']}")

    def setup_compiler(self, ext: Extension) -> None:
        import pybind11

        # Runs every compiler command through run(), so that its first error line can be kept.
        self.compiler.spawn = lambda command, **_: run([str(part) for part in command])
        self.info["compiler"] = run([*self.compiler.compiler_so_cxx, "--version"]).splitlines()[0]
        ext.include_dirs.append(pybind11.get_include())
        ext.extra_compile_args += COMPILER_FLAGS
        # clang would bring a second OpenMP runtime beside the one that torch has loaded.
        if "clang" not in self.info["compiler"] and self.has_openmp():
            self.info["openmp"] = True
            ext.extra_compile_args.append("-fopenmp")
            ext.extra_link_args.append("-fopenmp")

    def has_openmp(self) -> bool:
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / "openmp.cpp"
        probe.write_text("#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n")
        try:
            run([*self.compiler.compiler_so_cxx, "-fopenmp", str(probe), "-o", str(folder / "openmp")])
        except ExecError:
            return False
        return True

    def add_cuda(self, ext: Extension) -> None:
        if self.cuda_mode == "0":
            return
        try:
            nvcc = find_nvcc()
            if nvcc is None:
                raise CompileError("nvcc not found in CUDA_HOME, PATH or /usr/local/cuda")
            self.compile_cuda(ext, nvcc)
        except Exception as error:
            if self.cuda_mode == "1":
                raise SystemExit(f"PSS_CUDA=1, but the CUDA part cannot be built: {error}") from None
            self.info["cuda_error"] = " ".join(str(error).split())

    def compile_cuda(self, ext: Extension, nvcc: str) -> None:
        archs = supported_archs(nvcc)
        runtime = static_cuda_runtime(nvcc)
        targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
        targets.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")  # PTX for newer chips
        flags = ["-O3", "-std=c++17", "-lineinfo", "-Icsrc", "-Xcompiler", "-fPIC,-fvisibility=hidden"]
        flags += ["--threads=0", *targets]  # targets side by side
        folder = Path(self.build_temp)
        folder.mkdir(parents=True, exist_ok=True)
        objects = []
        for source in sources("cuda/*.cu"):
            objects.append(str(folder / (Path(source).stem + ".cu.o")))
            run([nvcc, "-c", source, "-o", objects[-1], *flags])
        ext.extra_objects += objects
        ext.extra_link_args += runtime
        ext.define_macros.append(("PSS_WITH_CUDA", "1"))
        version = re.search(r"release (\S+),", run([nvcc, "--version"]))
        self.info |= {"cuda": True, "cuda_archs": archs, "nvcc": version[1] if version else "unknown"}

    def package_folder(self) -> Path:
        inplace = self.inplace or getattr(self, "editable_mode", False)
        return (ROOT if inplace else Path(self.build_lib)) / "pss_engine"

    def remove_earlier_build(self) -> None:
        for stale in [*self.package_folder().glob("_C.*"), *self.package_folder().glob("_build_info.json")]:
            stale.unlink()

    def write_info(self) -> None:
        folder = self.package_folder()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "_build_info.json").write_text(json.dumps(self.info, indent=2) + "\n")


setup(
    packages=[*find_packages(include=["pss_engine", "pss_engine.*"]), "pss_engine.kernels"],
    package_dir={"pss_engine.kernels": "kernels"},
    package_data={"pss_engine": ["py.typed", "**/*.json", "**/*.jsonl", "**/*.md", "**/*.txt"]},
    ext_modules=[
        Extension(
            "pss_engine._C",
            sources("*.cpp") + sources("cpu/*.cpp"),
            include_dirs=["csrc"],
            depends=sources("**/*.*"),
            language="c++",
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
