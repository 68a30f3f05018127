"""ci/gpu-bundle's lock, what goes into the archive, and the installer on a small bundle of the test's own making."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gpu_bundle import build, install, requirements
from pinning import lockfile

PINS = lockfile.load()
TABLE = lockfile.wheel_set(PINS, "gpu-bundle")


# ---- The lock --------------------------------------------------------------------------------------------


def test_every_locked_wheel_is_a_root_with_one_hash() -> None:
    locked = lockfile.wheels(PINS, "gpu-bundle")
    assert {wheel.requirement for wheel in locked} == set(TABLE["roots-without-dependencies"])
    assert all(len(wheel.sha256) == 1 for wheel in locked)


def test_the_server_is_the_newest_tested_one() -> None:
    assert f"sglang=={PINS['sglang']['tested'][-1]}" in TABLE["lock"]


def test_versions_are_those_that_the_cpu_server_is_tested_with() -> None:
    tested = {wheel.normalized: wheel.version for wheel in lockfile.wheels(PINS, "server-cpu")}
    for wheel in lockfile.wheels(PINS, "gpu-bundle"):
        assert tested[wheel.normalized] == wheel.version


def test_what_is_left_out_is_neither_bundled_nor_expected_there() -> None:
    bundled = {wheel.normalized for wheel in lockfile.wheels(PINS, "gpu-bundle")}
    assert not bundled & (requirements.ABSENT.keys() | set(requirements.THERE))
    assert not requirements.ABSENT.keys() & set(requirements.THERE)


def test_a_requirement_that_is_nowhere_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    needs = [Requirement(text) for text in ("torch>=9", "jedi", "one<1", "nowhere")]
    packages = [requirements.Package("one", "2"), requirements.Package("some", "1", needs)]
    assert requirements.report(packages, verbose=True) == ["some requires nowhere"]
    said = capsys.readouterr().out
    assert "absent: jedi (of some)" in said
    assert "another version: one 2, some asks for <1" in said


# ---- The archive -----------------------------------------------------------------------------------------


def wheel(folder: Path, name: str, files: dict[str, str], requires: str = "") -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{requires}"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{name}-1.0.dist-info/METADATA": metadata}.items():
            archive.writestr(file, text)
    return path


SGLANG = {
    "sglang/srt/a.py": "",
    "sglang/srt/b.cpython-312-x86_64-linux-gnu.so": "",
    "sglang/multimodal_gen/a.py": "",
    "sglang/test/kits/a.py": "",
    "sglang/test/manual/a.py": "",
    "sglang-1.0.data/scripts/sglang": "",
    "sglang-1.0.data/purelib/more.py": "",
}


def test_sglang_is_trimmed(tmp_path: Path) -> None:
    kept = {name for name, _ in build.members(wheel(tmp_path, "sglang", SGLANG))}
    assert kept == {"sglang/srt/a.py", "sglang/test/kits/a.py", "more.py", "sglang-1.0.dist-info/METADATA"}


def test_a_compiled_module_of_another_package_stays(tmp_path: Path) -> None:
    assert "zmq/a.so" in {name for name, _ in build.members(wheel(tmp_path, "zmq", {"zmq/a.so": ""}))}


def test_the_same_wheels_make_the_same_archive(tmp_path: Path) -> None:
    wheels = [wheel(tmp_path, "sglang", SGLANG)]
    build.pack(tmp_path / "a", wheels)
    build.pack(tmp_path / "b", wheels)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_wheel_that_requires_what_is_nowhere_stops_the_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(tmp_path, "some", {}, "Requires-Dist: nowhere\nRequires-Dist: an-extra; extra == 'x'\n")
    assert build.main(tmp_path, tmp_path / "bundle") == 1
    assert "kdtree: the bundle lacks what its packages require: some requires nowhere. Fix: " in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


# ---- The installer ---------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """What build.py makes of one small wheel."""
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "sglang", SGLANG)
    assert build.main(tmp_path / "wheels", tmp_path / "bundle") == 0
    return tmp_path / "bundle"


def run(bundle: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -I -S: the standard library only.
    command = [sys.executable, "-I", "-S", str(bundle / "install"), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_it_unpacks_once(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "deep" / "site"
    done = run(bundle, str(site))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"gpu-bundle: {site} made, ")
    assert len(done.stdout.splitlines()) == 1
    for name in ("sglang/srt/a.py", "sgl_kernel/speculative.py", "flash_mla/__init__.py", "environment"):
        assert (site / name).is_file()
    (site / "touched").touch()
    again = run(bundle, str(site))
    assert (again.returncode, again.stdout) == (0, f"gpu-bundle: {site} is up to date\n")
    assert (site / "touched").exists()
    assert [path.name for path in site.parent.iterdir()] == ["site"]


def test_an_interrupted_unpack_never_looks_done(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"

    def interrupt(archive: tarfile.TarFile, path: Path, **_options: object) -> None:
        (path / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "extractall", interrupt)
    assert install.main([str(site)], bundle) == 130
    assert not site.exists()
    monkeypatch.undo()
    assert install.main([str(site)], bundle) == 0
    assert not (site / "half").exists()
    assert not (tmp_path / "site.part").exists()


def test_another_bundle_replaces_the_folder_whole(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert install.main([str(site)], bundle) == 0
    (site / install.STAMP).write_text("of another bundle")
    (site / "stale").touch()
    assert install.main([str(site)], bundle) == 0
    assert not (site / "stale").exists()


def test_a_folder_of_someone_else_is_left_alone(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "mine").touch()
    assert install.main([str(tmp_path / "site")], bundle) == 69
    assert "is not this bundle's: it has no .gpu-bundle. Fix: " in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["mine"]


@pytest.mark.parametrize("name", [install.ARCHIVE, install.SUMS])
def test_a_missing_file_is_named(name: str, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / name).unlink()
    assert install.main([str(tmp_path / "site")], bundle) == 69
    assert f"kdtree: the bundle is not whole: no {name} in {bundle}. Fix: " in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_a_damaged_file_is_named(bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = bundle / install.ARCHIVE
    archive.write_bytes(archive.read_bytes()[:-1])
    assert install.main([str(tmp_path / "site")], bundle) == 69
    assert f"{install.ARCHIVE} is not what was made. Fix: " in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "found"), [([], "nothing"), (["a", "b"], "a b"), (["--force"], "--force")])
def test_bad_usage(arguments: list[str], found: str, bundle: Path) -> None:
    done = run(bundle, *arguments)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == f"kdtree: install takes one folder: {found}. Fix: install FOLDER\n"


def test_the_sums_are_those_that_sha256sum_reads(bundle: Path) -> None:
    digest = hashlib.sha256((bundle / install.ARCHIVE).read_bytes()).hexdigest()
    assert (bundle / install.SUMS).read_text() == f"{digest}  {install.ARCHIVE}\n"


def test_the_environment_puts_its_own_folder_first(bundle: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert install.main([str(site)], bundle) == 0
    script = 'cd / && . "$1/environment" && echo "$PYTHONPATH|${SGLANG_GPU_FLAGS[*]}" && env | grep -c ^SGLANG_'
    script += ' && echo "$SGLANG_GPU_BUNDLE"'
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "/other"}
    done = subprocess.run(
        ["bash", "-euc", script, "bash", str(site)], env=environment, capture_output=True, text=True, check=True
    )
    path, count, version = done.stdout.splitlines()
    assert path.startswith(f"{site}:/other|--attention-backend triton ")
    assert count == "4"
    assert version == hashlib.sha256((bundle / install.SUMS).read_bytes()).hexdigest()[:12]
