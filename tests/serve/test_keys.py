"""API keys: their file, their names, and how they are read again."""

import os
import signal
from pathlib import Path

import click
import httpx
import pytest

from mink_local.serve.keys import Keys
from tests.support.http import until
from tests.support.server import running_server


def test_a_line_is_a_key_or_a_name_and_a_key(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("\ufeff# the team\nalice:k1\n\n  k2  \n#bob:k3\ncarol:a\n", encoding="utf-8")
    keys = Keys(["dave:k4"], path)
    assert [keys.name_of(key) for key in ("k1", "a", "k4")] == ["alice", "carol", "dave"]
    assert [keys.name_of(key) for key in ("", "k", "alice:k1", "#bob:k3", "k3")] == [None] * 5
    unnamed = keys.name_of("k2")
    assert unnamed is not None
    assert unnamed.startswith("key-")
    assert "k2" not in unnamed
    assert (len(keys), bool(Keys())) == (4, False)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("alice:k1\nbob: k2", "line 2"),
        ("a b", "line 1"),
        ("# nobody", "keys"),
        ("alice:", "line 1"),
        ("sk-user:pass:word", "two colons"),
        ("alice:k1\nbob:k1", "line 2: alice and bob"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "keys"
    path.write_text("k1")
    keys = Keys((), path)
    path.write_text(text)
    with pytest.raises(click.UsageError, match=place):
        keys.reload()
    assert keys.name_of("k1")
    path.unlink()
    with pytest.raises(click.UsageError) as error:
        keys.reload()
    assert str(error.value).count("keys") == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("k1")
    keys = Keys((), path)
    assert not keys.look()
    for text, key in (("k2", "k2"), ("two words", "k2"), ("k3", "k3")):
        path.write_text(text)
        os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9 * (1 + len(text))))
        assert keys.look() == (text == key)
        assert not keys.look()
        assert keys.name_of(key)
        assert keys.name_of("k1") is None
    keys.changed = None
    assert keys.look()


@pytest.mark.posix
def test_a_file_that_all_can_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys"
    path.write_text("k1")
    for mode, n in ((0o600, 0), (0o640, 0), (0o644, 1)):
        path.chmod(mode)
        Keys((), path)
        assert len(caplog.records) == n


@pytest.mark.posix
def test_keys_change_while_the_server_runs(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice:k1")
    with running_server("--api-key-file", str(path)) as server:

        def status(key: str) -> int:
            return httpx.get(f"{server.url}/v1/models", headers={"x-api-key": key}).status_code

        body = {"prompt": "Hi", "max_tokens": 400, "ignore_eos": True, "stream": True}
        headers = {"x-api-key": "k1"}
        with httpx.stream("POST", f"{server.url}/v1/completions", json=body, headers=headers) as answer:
            path.write_text("bob:k2")
            server.process.send_signal(signal.SIGHUP)
            until(lambda: status("k2") == 200)
            assert status("k1") == 401
            path.write_text("no key")  # which is noticed without a signal
            until(lambda: any("line 1" in line for line in server.said))
            assert status("k2") == 200
            assert answer.read().endswith(b"data: [DONE]\n\n")
        numbers = httpx.get(f"{server.url}/metrics", headers={"x-api-key": "k2"}).text
        assert 'mink_generated_tokens_total{client="alice",model="smollm2-135m"} 400.0' in numbers
        assert any("client=alice" in line for line in server.said)
        url = f"{server.url}/history/{answer.headers['x-request-id']}"
        assert httpx.get(url, headers={"x-api-key": "k2"}).status_code == 404  # it is alice's
        assert not any("k1" in line or "k2" in line for line in server.said)


@pytest.mark.posix
def test_a_hang_up_never_ends_the_server(tiny_path: Path) -> None:
    with running_server("--model", str(tiny_path)) as server:
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("again" in line for line in server.said))
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_options_are_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINK_SERVE_ALIAS", "m")
    monkeypatch.setenv("MINK_SERVE_PRESET", "hot=min-k@9 cold=greedy@0")
    monkeypatch.setenv("MINK_SERVE_NO_PRESETS", "1")
    monkeypatch.setenv("MINK_API_KEY", "alice:k1 bob:k2")
    with running_server() as server:
        headers = {"x-api-key": "k2"}
        listed = httpx.get(f"{server.url}/v1/models", headers=headers).json()["data"]
        assert [entry["id"] for entry in listed] == ["m", "m:hot", "m:cold"]
