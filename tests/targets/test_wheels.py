"""The wheel for aarch64 (Jetson and other boards): built across, imported by that platform's Python, computing."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from tests.targets.builds import need, need_fetched, run
from tests.test_packaging import build, copy_sources, unoptimised

pytestmark = pytest.mark.targets

# The extension alone, since torch is not there: it loads without a driver, says what runs, and gives a norm.
PROGRAM = """
import array, glob, importlib.util, math, platform, sys
(path,) = glob.glob(sys.argv[1] + "/pss_engine/_C.*")
spec = importlib.util.spec_from_file_location("_C", path)
_C = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_C)
x, w, y = (array.array("f", values) for values in ([1.0, -2.0, 3.0, 0.5, 7.0], [1.0, 2.0, 1.0, 1.0, 0.5], [0.0] * 5))
address = lambda a: a.buffer_info()[0]
_C.rms_norm(address(y), address(x), address(w), 1, 5, 5, 1e-6, 0)
scale = 1 / math.sqrt(sum(v * v for v in x) / 5 + 1e-6)
assert all(abs(a - b * c * scale) < 1e-6 for a, b, c in zip(y, x, w)), list(y)
print(platform.machine(), _C.with_cuda(), *_C.supported_isas())
"""


def test_the_wheel_for_aarch64_is_imported_there_and_computes(tmp_path: Path) -> None:
    compiler, emulator = need("aarch64-linux-gnu-g++"), need("qemu-aarch64-static")
    system = need_fetched("python-aarch64")
    version = "{}.{}".format(*sys.version_info[:2])
    headers = [system / "usr" / "include" / f"python{version}", system / "usr" / "include"]
    if not headers[0].exists():
        pytest.skip(f"build/targets/python-aarch64 is not of Python {version}; remove it, .ci/target-tools fetches it")
    suffix = f".cpython-{version.replace('.', '')}-aarch64-linux-gnu.so"
    environment = {
        "CC": compiler.replace("g++", "gcc"),
        "CXX": unoptimised(compiler, tmp_path),
        "LDSHARED": f"{compiler} -shared",
        "LDCXXSHARED": f"{compiler} -shared",
        "CFLAGS": " ".join(f"-I{folder}" for folder in headers),
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
    }
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = build(copy_sources(tmp_path / "source"), wheels, "build_wheel", **environment)
    assert wheel.name.endswith("-linux_aarch64.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    assert (site / "pss_engine" / f"_C{suffix}").exists()
    python = system / "usr" / "bin" / f"python{version}"
    home = {"PYTHONHOME": str(system / "usr"), "PYTHONPATH": ""}
    output = run(emulator, "-L", system, python, "-S", "-c", PROGRAM, site, environment=home)
    machine, cuda, *isas = output.split()
    assert (machine, cuda) == ("aarch64", "False")
    assert isas[0] == "scalar" and "neon" in isas
