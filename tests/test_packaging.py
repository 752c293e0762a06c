"""Every way to import the package finds all of it, and none hides the package ``kernels`` that transformers uses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Run by a fresh interpreter. What an editable installation of the tested tree has added is dropped, so that only the
# path decides; with --editable the .pth files of the folder named next are read, as for an installed package.
PROBE = """
import json, sys
sys.meta_path[:] = [f for f in sys.meta_path if not getattr(f, "__module__", "").startswith("__editable__")]
for name in [name for name in sys.modules if name.startswith("__editable__")]:
    del sys.modules[name]
if "--editable" in sys.argv:
    import site
    folder = sys.argv[sys.argv.index("--editable") + 1]
    sys.path.insert(0, folder)
    site.addsitedir(folder)
import importlib.util
import pss_engine, pss_engine.kernels
from pss_engine.ops import lora_bgmv
found = importlib.util.find_spec("pss_engine.kernels.lora_bgmv")
hugging_face = importlib.util.find_spec("kernels")
print(json.dumps({
    "package": pss_engine.__file__,
    "kernel": found and found.origin,
    "cpp": lora_bgmv.why("cpu")["cpp"],
    "triton": lora_bgmv.why("cuda")["triton"],
    "kernels": hugging_face and hugging_face.origin,
}))
"""


def probe(cwd: Path, *arguments: str, path: tuple[Path, ...] = ()) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def build(source: Path, target: Path, hook: str, **environment: str) -> Path:
    """Calls a hook of the build backend, as pip does, without its isolated environment and so without a network."""
    pytest.importorskip("setuptools", minversion="77", reason="setuptools 77 or newer is not installed")
    pytest.importorskip("pybind11", reason="pybind11 is not installed")
    code = f"import sys; from setuptools.build_meta import {hook}; {hook}(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(target)],
        cwd=source,
        env={**os.environ, "PSS_CUDA": "0", **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = target.glob("*.whl")
    return wheel


def unoptimised(compiler: str, folder: Path) -> str:
    """A compiler that takes a fraction of the time: what the extension computes is tested elsewhere."""
    wrapper = folder / "unoptimised-c++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" -O0\n')
    wrapper.chmod(0o755)
    return str(wrapper)


def copy_sources(target: Path) -> Path:
    """The sources as a fresh clone has them: nothing built."""
    for folder in ("pss_engine", "kernels", "csrc"):
        ignore = shutil.ignore_patterns("_C.*", "_build_info.json", "__pycache__")
        shutil.copytree(ROOT / folder, target / folder, ignore=ignore)
    for name in ("pyproject.toml", "setup.py", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, target)
    return target


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = copy_sources(tmp_path_factory.mktemp("source"))
    compiler = unoptimised(os.environ.get("CXX", "c++"), tmp_path_factory.mktemp("compiler"))
    return build(source, tmp_path_factory.mktemp("wheel"), "build_wheel", CXX=compiler)


def test_a_checkout_without_any_installation(tmp_path: Path) -> None:
    clone = copy_sources(tmp_path)
    found = probe(clone)
    assert found["package"] == str(clone / "pss_engine" / "__init__.py")
    assert found["kernel"] == str(clone / "kernels" / "lora_bgmv.py")
    assert found["cpp"] == "pss_engine._C is missing: install the package to build it"


def test_an_editable_installation_without_a_working_compiler(tmp_path: Path) -> None:
    clone = copy_sources(tmp_path / "clone")
    (tmp_path / "dist").mkdir()
    (tmp_path / "elsewhere").mkdir()
    wheel = build(clone, tmp_path / "dist", "build_editable", CXX="/bin/false")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    found = probe(tmp_path / "elsewhere", "--editable", str(site))
    assert found["package"] == str(clone / "pss_engine" / "__init__.py")
    assert found["kernel"] == str(clone / "kernels" / "lora_bgmv.py")
    assert found["cpp"] == "pss_engine._C is missing: false failed with exit code 1: no output"
    info = json.loads((clone / "pss_engine" / "_build_info.json").read_text())
    assert info["extension"] is False
    assert info["cuda_error"] == "PSS_CUDA=0"


def test_a_wheel_unpacked_elsewhere(wheel: Path, tmp_path: Path) -> None:
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    elsewhere.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    found = probe(elsewhere, path=(site,))
    assert found["package"] == str(site / "pss_engine" / "__init__.py")
    assert found["kernel"] == str(site / "pss_engine" / "kernels" / "lora_bgmv.py")
    info = json.loads((site / "pss_engine" / "_build_info.json").read_text())
    assert found["cpp"] == (f"pss_engine._C is missing: {info['error']}" if info["error"] else "")


def test_a_wheel_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"pss_engine", "pss_engine-0.1.0.dist-info"}
    assert "pss_engine/py.typed" in names
    assert "pss_engine/kernels/__init__.py" not in names
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pss_engine").rglob("*.py")}
    data = {path.relative_to(ROOT).as_posix() for path in (ROOT / "pss_engine").rglob("*.jsonl")}
    assert not (here | data) - set(names)


def test_transformers_works_in_the_root_of_a_checkout() -> None:
    code = """if True:
        import importlib.util
        from transformers import LlamaForCausalLM, pipeline
        from transformers.utils import is_kernels_available
        spec = importlib.util.find_spec("kernels")
        print(is_kernels_available(), spec.origin if spec else None)
    """
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    available, origin = done.stdout.split()
    assert available == "False" or origin != "None"
    assert not origin.startswith(str(ROOT / "kernels"))


def test_an_installed_package_named_kernels_is_not_shadowed(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("")
    found = probe(ROOT, path=(tmp_path,))
    assert found["kernels"] == str(tmp_path / "kernels" / "__init__.py")
    assert found["kernel"] == str(ROOT / "kernels" / "lora_bgmv.py")
