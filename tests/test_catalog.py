"""Names, paths, and `models.txt`."""

from pathlib import Path

import pytest

from mink_local import catalog
from mink_local.errors import ModelNotFoundError


def test_default_model_is_the_file_in_its_package() -> None:
    file = catalog.resolve(catalog.DEFAULT_MODEL)
    assert file.name == "smollm2-135m"
    assert file.path.read_bytes()[:4] == b"GGUF"
    assert file.sha256 == catalog.read_catalog()["smollm2-135m"].sha256


def test_a_path_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "my model.v2.gguf"
    path.touch()
    assert catalog.resolve(str(path)) == catalog.ModelFile("my model.v2", path)
    monkeypatch.chdir(tmp_path)
    assert catalog.resolve("my model.v2.gguf").path == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert catalog.resolve("~/my model.v2.gguf").path == path


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("parrot", "unknown model 'parrot': name a .gguf file or one of smollm2-135m"),
        ("", "unknown model ''|is a folder"),
        ("parrot.gguf", "there is no file parrot.gguf"),
        ("no/such/file", "there is no file no/such/file"),
        ("/", "/ is a folder: name the .gguf file in it"),
    ],
)
def test_no_such_model(name: str, complaint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=complaint):
        catalog.resolve(name)


def test_a_package_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / "models.txt"
    models.write_text("parrot | package:llm_parrot | parrot.gguf | 00 | MIT | a bird\n")
    monkeypatch.setattr(catalog, "_catalog_path", lambda: models)
    with pytest.raises(ModelNotFoundError, match="type  python -m pip install llm-parrot"):
        catalog.resolve("parrot")


def test_catalogue_lines(tmp_path: Path) -> None:
    models = tmp_path / "models.txt"
    models.write_text("# a comment\n\n a | package:p | f.gguf | 00 | MIT | a note # and a comment\n")
    assert catalog.read_catalog(models) == {
        "a": catalog.Entry("a", "package:p", "f.gguf", "00", "MIT", "a note")
    }
    models.write_text("a | b\n")
    with pytest.raises(ValueError, match="line 1: six columns are wanted, not 2"):
        catalog.read_catalog(models)
