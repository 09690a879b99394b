"""Names, paths, and `models.toml`."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import write_atomic
from mink_local.models import catalog


def test_a_path_is_a_model(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = home / "my model.v2.gguf"
    path.touch()
    monkeypatch.chdir(home)
    for name in (str(path), path.name, f"~/{path.name}"):
        assert catalog.resolve(name) == catalog.ModelFile("my model.v2", path)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("parrot", "'parrot'.* smollm2-135m"),
        ("", "''|folder"),
        ("parrot.gguf", "parrot.gguf"),
        ("no/such/file", "no/such/file"),
        ("~no-such-user/file", "~no-such-user/file"),
        ("long" * 999, "'longlong"),  # longer than a file name may be
        ("/", "/ is a folder"),
    ],
)
def test_no_such_model(name: str, complaint: str) -> None:
    with pytest.raises(ModelNotFoundError, match=complaint):
        catalog.resolve(name)


@pytest.fixture
def models(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models.toml, not yet written, in place of the real one, and no other; and empty stores."""
    path = home / "models.toml"
    monkeypatch.setattr(catalog, "_catalog_path", lambda: path)
    return path


def test_a_model_without_quantizations(models: Path) -> None:
    models.write_text(
        f'''# mine
        [[model]]
        name = "a"  # short
        source = "package:p_q"
        file = "f.gguf"
        size = 0.1
        sha256 = "{"A" * 64}"
        licence = "MIT"
        note = "b | c"
        '''
    )
    entry = catalog.CatalogEntry("a", "package:p_q", "f.gguf", "main", 100_000_000, "a" * 64, "MIT", "b | c")
    assert catalog.read_catalog() == {"a": (entry,)}
    with pytest.raises(ModelNotFoundError, match="p-q"):  # the package is not installed
        catalog.resolve("a")


def test_a_model_with_quantizations(models: Path) -> None:
    """Sizes and hashes go by order, and what is missing at the end is not known."""
    models.write_text(
        f'''
        [[model]]
        name = "a"
        source = "hf:o/r"
        file = "m-{{Q4_K_M, Q8_0}}*.gguf"
        revision = "v1"
        size = [4.92, 8.5]
        sha256 = "{"0" * 64}"
        licence = "MIT"
        '''
    )
    q4 = catalog.CatalogEntry(
        "a:Q4_K_M", "hf:o/r", "m-Q4_K_M*.gguf", "v1", 4_920_000_000, "0" * 64, "MIT", ""
    )
    q8 = catalog.CatalogEntry("a:Q8_0", "hf:o/r", "m-Q8_0*.gguf", "v1", 8_500_000_000, None, "MIT", "")
    assert catalog.read_catalog() == {"a": (q4, q8)}
    assert catalog.find("a") == q4
    assert catalog.find("a:q8_0") == q8
    assert catalog.find("b") is None
    with pytest.raises(ModelNotFoundError, match=r"Q2.* a:Q4_K_M, a:Q8_0"):
        catalog.find("a:Q2")
    with pytest.raises(ModelNotFoundError, match="mink-models pull a:Q8_0"):
        catalog.resolve("a:q8_0")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("\udcff\udcfe", "utf-8"),
        ("a | file | f", "line 1"),
        ("model = 3", "model"),
        ("[[models]]", "model"),
        ('[[model]]\nname = "a b"\nsource = "file"', "'a b'"),
        ('[[model]]\nsource = "file"', "name"),
        ('[[model]]\nname = 3.5\nsource = "file"\ncolour = "green"', "'colour'"),
        ('[[model]]\nname = "a"', "'a': source"),
        ('[[model]]\nname = "a"\nsource = "ftp://x"', "'ftp://x'"),
        ('[[model]]\nname = "a"\nsource = "hf:x"', "'hf:x'"),
        *(
            (f'[[model]]\nname = "a"\nsource = "file"\n{line}', wrong)
            for line, wrong in (
                ('size = "big"', "size.*'big'"),
                ("size = nan", "size.*nan"),
                ("size = -1", "size.*-1"),
                ("size = 1000000", "size.*1000000"),
                ("size = [1, 2]", "size"),
                ('sha256 = "abc"', "sha256.*'abc'"),
                ('sha256 = ["", ""]', "sha256"),
                (r'note = "two\nlines"', "note"),
            )
        ),
    ],
)
def test_models_that_do_not_parse(models: Path, text: str, wrong: str) -> None:
    models.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(CatalogError, match=f"{models}: .*{wrong}"):
        catalog.read_catalog()


def local(name: str, file: str, **more: object) -> dict[str, object]:
    return {"name": name, "source": "file", "file": file, **more}


FILES = {"models.toml", ".models.toml.lock"}


def test_the_users_own_models(models: Path, tmp_path: Path) -> None:
    """They come last, and replace what has the same name."""
    models.write_text(
        "".join(f'[[model]]\nname = "{n}"\nsource = "file"\nfile = "/{n}.gguf"\n' for n in "ab")
    )
    file = tmp_path / "mine.gguf"
    file.touch()
    catalog.add(**local("b", str(file), size=1.5, licence="MIT", note='my "own" \\ 🦜'))
    for quantization in ("Q8_0", "Q6_K"):
        catalog.add(name="c", source="hf:o/r", file=quantization, revision="main", size=None)
    assert list(catalog.read_catalog()) == ["a", "b", "c"]
    assert catalog.resolve("b").path == file
    assert catalog.read_catalog()["b"][0].note == 'my "own" \\ 🦜'
    assert catalog.find("c") == catalog.CatalogEntry("c", "hf:o/r", "Q6_K", "main", None, None, "", "")
    assert {path.name for path in catalog.user_catalog_path().parent.iterdir()} == FILES
    file.unlink()
    with pytest.raises(ModelNotFoundError, match=f"b: .*{file}"):
        catalog.resolve("b")


def test_adding_keeps_what_a_person_wrote(models: Path) -> None:
    path = catalog.user_catalog_path()
    path.parent.mkdir(parents=True)
    mine = '# my models\n[[model]]\nname = "a"  # the first\nsource = "file"\nfile = "/a.gguf"\n'
    path.write_text(mine)
    catalog.add(**local("b", "/b.gguf"))
    assert path.read_text() == f'{mine}\n[[model]]\nname = "b"\nsource = "file"\nfile = "/b.gguf"\n'
    assert not models.exists()


@pytest.mark.parametrize(
    ("name", "note", "wrong"), [("a", "x\ny", r"x\\ny"), ("a", "\x7f", "line 5"), ("a b", "", "'a b'")]
)
def test_what_a_catalogue_cannot_hold(models: Path, name: str, note: str, wrong: str) -> None:
    with pytest.raises(CatalogError, match=wrong):
        catalog.add(**local(name, "/a.gguf", note=note))
    assert not catalog.user_catalog_path().exists()
    models.parent.joinpath("config").write_text("in the way")
    with pytest.raises(CatalogError, match=r"models\.toml"):
        catalog.add(**local("a", "/a.gguf"))
    assert not models.exists()


def test_models_added_at_once_are_all_kept(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_slowly(path: Path, data: str) -> None:
        time.sleep(0.05)
        write_atomic(path, data)

    monkeypatch.setattr(catalog, "write_atomic", write_slowly)
    names = ["a", "b", "c", "d"]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: catalog.add(**local(name, f"/{name}")), names))
    assert sorted(catalog.read_catalog()) == names
    assert not models.exists()


@pytest.mark.usefixtures("home")
def test_every_model_of_the_catalogue_is_whole() -> None:
    """All of models.toml can be pulled: each file has a size, and each name one entry."""
    entries = [entry for entries in catalog.read_catalog().values() for entry in entries]
    assert len({entry.name for entry in entries}) == len(entries) > 40
    for entry in entries:
        assert entry.size
        assert entry.licence
        assert entry.file.endswith(".gguf")
        assert (entry.name.partition(":")[2] or "Q4_1") in entry.file
