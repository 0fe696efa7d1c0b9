"""Keys: made once, kept as digests, and a file of them that says what is wrong with it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from service.core.errors import ConfigError, Unauthorized
from service.features.keys import keys as keys_module
from service.features.keys.keys import Keys, keys_of_restart, new_key, read_keys
from tests.waiting import until_async

pytestmark = pytest.mark.contract
GOOD = "sha256:" + "a" * 64
ENTRY = f'[[keys]]\nname = "x"\ndigest = "{GOOD}"\n'


def test_a_new_key_is_let_in_by_its_entry(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    ann, her_entry = new_key("ann", ["explain"], None)
    bob, his_entry = new_key("bob.2", ["explain", "admin"], "600/minute")
    file.write_text(f"# two\n{her_entry}\n{his_entry}")
    keys = read_keys(file)
    found = keys.of(ann), keys.of(bob)
    assert [(key.name, sorted(key.scopes), str(key.rate)) for key in found if key] == [
        ("ann", ["explain"], "None"),
        ("bob.2", ["admin", "explain"], "600 per 1 minute"),
    ]


def test_scopes_that_are_not_said_are_explain(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    secret, entry = new_key("x", ["explain"], None)
    file.write_text("\n".join(line for line in entry.splitlines() if "scopes" not in line))
    found = read_keys(file).of(secret)
    assert found
    assert found.scopes == {"explain"}


def test_an_entry_holds_the_digest_of_a_long_random_key_and_nothing_of_the_key() -> None:
    secret, entry = new_key("x", ["explain"], "3/minute")
    another, _ = new_key("x", ["explain"], "3/minute")
    assert secret != another
    random = secret.removeprefix("gradcam_")
    assert random != secret
    assert len(random) == 43  # 256 bits, six in a character
    assert not any(random[turn : turn + 8] in entry for turn in range(len(random) - 7))
    assert hashlib.sha256(secret.encode()).hexdigest() in entry


def test_nothing_but_the_key_itself_is_let_in(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    secret, entry = new_key("x", ["explain"], None)
    file.write_text(entry)
    keys = read_keys(file)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    wrong = [
        "",
        " ",
        "x",
        "gradcam_",
        digest,
        f"sha256:{digest}",
        f"{secret} ",
        f" {secret}",
        f"{secret}\n",
        f"{secret}\0",
        secret[:-1],
        secret + secret[-1],
        secret.upper(),
        secret.removeprefix("gradcam_"),
        "ключ",
    ]
    assert [each for each in wrong if keys.of(each)] == []
    assert keys.of(secret)


def test_no_entry_lets_in_those_without_a_key(tmp_path: Path) -> None:
    """A digest of nothing is what `printf "$KEY" | sha256sum` makes where KEY is not set."""
    file = tmp_path / "keys.toml"
    file.write_text(ENTRY.replace("a" * 64, hashlib.sha256(b"").hexdigest()))
    with suppress(ConfigError):  # to refuse the file is as good
        assert read_keys(file).of("") is None


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "no TOML": ("[[keys]", ["is not TOML"]),
    "not UTF-8": ("\udcff", ["is not TOML"]),
    "empty": ("", ["[[keys]] entries, at least one"]),
    "no entries": ("keys = []", ["[[keys]] entries, at least one"]),
    "keys that are not a list": ("[keys]\nname = 'x'", ["[[keys]] entries, at least one"]),
    "another table": (f"{ENTRY}[[users]]\nname = 'x'", ["[[keys]] entries", "nothing else"]),
    "an entry that is not a table": ("keys = [1]", ["entry 1", "the entry"]),
    "no digest": ("[[keys]]\nname = 'x'", ["entry 1", "digest", "required"]),
    "no name": (f"[[keys]]\ndigest = '{GOOD}'", ["entry 1", "name", "required"]),
    "a key in place of its digest": (
        "[[keys]]\nname = 'x'\ndigest = 'gradcam_x'",
        ["entry 1", "digest", "sha256: and 64 hexadecimal digits"],
    ),
    "a digest that is too short": (
        ENTRY.replace("aaa", "a", 1),
        ["entry 1", "digest", "sha256: and 64 hexadecimal digits"],
    ),
    "a digest in capitals": (
        ENTRY.replace("a" * 64, "A" * 64),
        ["entry 1", "digest", "sha256: and 64 hexadecimal digits"],
    ),
    "an unknown scope": (
        f"{ENTRY}scopes = ['explain', 'root']",
        ["entry 1", "scopes", "'explain' or 'admin'"],
    ),
    "no scopes": (f"{ENTRY}scopes = []", ["entry 1", "scopes", "at least 1"]),
    "an unknown key": (
        f"{ENTRY}limit = 3",
        ["entry 1", "limit", "name, digest, scopes, rate, expires"],
    ),
    "a name taken": (f"{ENTRY}\n{ENTRY}", ["entry 2", "name", "'x'", "taken"]),
    "a name of two words": (
        ENTRY.replace('"x"', '"a b"'),
        ["entry 1", "name", "a letter or a digit"],
    ),
    "a name that is none": (ENTRY.replace('"x"', '""'), ["entry 1", "name"]),
    "a rate in words": (f"{ENTRY}rate = 'often'", ["entry 1", "rate", "'often'", "600/minute"]),
    "an empty rate": (f"{ENTRY}rate = ''", ["entry 1", "rate"]),
    "a rate of no known time": (f"{ENTRY}rate = '3/fortnight'", ["entry 1", "rate", "fortnight"]),
    "a rate that is a number": (f"{ENTRY}rate = 3", ["entry 1", "rate", "text"]),
    "an end in words": (f"{ENTRY}expires = 'soon'", ["entry 1", "expires", "'soon'", "an offset"]),
    "an end without an offset": (f"{ENTRY}expires = 2027-01-31T12:00:00", ["expires", "an offset"]),
    "an end that is a number": (f"{ENTRY}expires = 90", ["entry 1", "expires", "a date"]),
    "an end that is a time of day": (
        f"{ENTRY}expires = 12:00:00",
        ["entry 1", "expires", "a date"],
    ),
    "lists in lists": ("x = " + "[" * 20_000, ["is not TOML"]),
    "no requests": (f"{ENTRY}rate = '0/minute'", ["entry 1", "rate", "1 to 10000000 requests"]),
    "no time": (f"{ENTRY}rate = '3/0 hours'", ["entry 1", "rate", "1 or more hours"]),
    "a rate of no memory": (f"{ENTRY}rate = '99999999/day'", ["entry 1", "rate", "10000000"]),
    "digits of another script": (f"{ENTRY}rate = '٣/minute'", ["entry 1", "rate"]),
    "two rates": (f"{ENTRY}rate = '9/minute;99/hour'", ["entry 1", "rate"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_the_file_is_told(tmp_path: Path, case: str) -> None:
    text, words = MISTAKES[case]
    file = tmp_path / "keys.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as told:
        read_keys(file)
    for word in (str(file), *words):
        assert word in str(told.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "keys.toml", tmp_path):
        with pytest.raises(ConfigError) as told:
            read_keys(path)
        assert str(path) in str(told.value)
        assert "cannot be read" in str(told.value)


@pytest.mark.parametrize(
    ("name", "scopes", "rate", "words"),
    [
        ("a b", ["explain"], None, ["name", "'a b'"]),
        ('x"\n[[keys]]', ["explain"], None, ["name"]),
        ("x", ["root"], None, ["scopes", "'root'", "'explain' or 'admin'"]),
        ("x", [], None, ["scopes"]),
        ("x", ["explain"], "often", ["rate", "'often'"]),
        ("x", ["explain"], '3/minute"\nname = "y', ["rate"]),
    ],
)
def test_no_key_is_made_that_no_file_may_hold(
    name: str, scopes: list[str], rate: str | None, words: list[str]
) -> None:
    with pytest.raises(ConfigError) as told:
        new_key(name, scopes, rate)
    for word in words:
        assert word in str(told.value)


@pytest.mark.parametrize("rate", ["3/minute", " 10 per 2 hours "])
def test_every_rate_that_is_taken_is_written_so_that_it_is_read(tmp_path: Path, rate: str) -> None:
    file = tmp_path / "keys.toml"
    secret, entry = new_key("x", ["explain"], rate)
    file.write_text(entry)
    found = read_keys(file).of(secret)
    assert found
    assert found.rate


@pytest.mark.parametrize("end", ["90d", "2999-01-31", "2999-01-31T12:00:00+02:00"])
def test_an_end_is_written_so_that_it_is_read(tmp_path: Path, end: str) -> None:
    file = tmp_path / "keys.toml"
    secret, entry = new_key("x", ["explain"], None, end)
    file.write_text(entry)
    found = read_keys(file).of(secret)
    assert found
    assert found.expires
    ahead = found.expires - datetime.now(UTC)
    assert timedelta(89) < ahead <= timedelta(90) or found.expires.year == 2999


@pytest.mark.parametrize(
    "end", ["", "d", "-1d", "0d", "99999999d", "2001-01-31", "2999-02-30", "2999-01-31T12:00:00"]
)
def test_no_key_is_made_with_an_end_that_is_none(end: str) -> None:
    with pytest.raises(ConfigError, match="expires is '"):
        new_key("x", ["explain"], None, end)


@pytest.mark.parametrize("end", ["2001-01-31", "2001-01-31T12:00:00+02:00"])
def test_an_expired_key_is_told_so_and_no_other_is(tmp_path: Path, end: str) -> None:
    file = tmp_path / "keys.toml"
    secret, entry = new_key("x", ["explain"], None)
    file.write_text(f"{entry}expires = {end}\n")
    keys = read_keys(file)
    with pytest.raises(Unauthorized, match="the key 'x' expired at 2001-01-31T"):
        keys.of(secret)
    assert keys.of(secret + "x") is None


def written(file: Path, text: str) -> None:
    """Replace a file as editors do."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@asynccontextmanager
async def followed(file: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Keys]:
    monkeypatch.setattr(keys_module, "LOOK_SECONDS", 0.01)
    keys = keys_of_restart(file)
    following = asyncio.create_task(keys.follow(file))
    yield keys
    following.cancel()
    assert not following.done()


@pytest.mark.anyio
async def test_a_changed_file_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys.toml"
    ann, her_entry = new_key("ann", ["explain"], None)
    bob, his_entry = new_key("bob", ["explain"], "3/minute")
    file.write_text(her_entry)
    async with followed(file, monkeypatch) as keys:
        written(file, his_entry)
        found = await until_async(lambda: keys.of(bob))
        assert found
        assert found.rate
        assert keys.of(ann) is None
        file.write_text(f"{his_entry}\n{her_entry}")  # in place
        await until_async(lambda: keys.of(ann))
        assert keys.of(bob)


@pytest.mark.anyio
async def test_a_secret_of_kubernetes_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is a link into a folder that is a link, which Kubernetes replaces."""
    (ann, her_entry), (bob, his_entry) = (new_key(name, ["explain"], None) for name in "ab")
    for version, entry in (("..1", her_entry), ("..2", his_entry)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "keys.toml").write_text(entry)
    (tmp_path / "..data").symlink_to("..1")
    file = tmp_path / "keys.toml"
    file.symlink_to("..data/keys.toml")
    async with followed(file, monkeypatch) as keys:
        assert keys.of(ann)
        (tmp_path / "..data_tmp").symlink_to("..2")
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")
        await until_async(lambda: keys.of(bob))
        assert keys.of(ann) is None


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", ["", '[[keys]]\nname = "a', "[[keys]]\nname = 3\n", None])
async def test_a_file_with_a_mistake_keeps_the_keys_and_is_logged_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: str | None,
) -> None:
    file = tmp_path / "keys.toml"
    ann, her_entry = new_key("ann", ["explain"], None)
    bob, his_entry = new_key("bob", ["explain"], None)
    file.write_text(her_entry)

    def complaints() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]

    looks = 0
    real = keys_module.read_keys

    def counted(path: Path) -> Keys:
        nonlocal looks
        looks += 1
        return real(path)

    async with followed(file, monkeypatch) as keys:
        if wrong is None:
            file.unlink()
        else:
            written(file, wrong)
        await until_async(complaints)
        monkeypatch.setattr(keys_module, "read_keys", counted)
        await until_async(lambda: looks >= 3)
        (complaint,) = complaints()
        assert str(file) in complaint
        assert "the keys stay" in complaint
        assert keys.of(ann)
        written(file, his_entry)
        await until_async(lambda: keys.of(bob))
        assert keys.of(ann) is None


@pytest.mark.anyio
async def test_a_process_that_starts_beside_a_wrong_file_lets_nobody_in_until_it_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text("[[keys]]")
    ann, her_entry = new_key("ann", ["explain"], None)
    async with followed(file, monkeypatch) as keys:
        await until_async(lambda: caplog.records)
        assert keys.of(ann) is None
        written(file, her_entry)
        await until_async(lambda: keys.of(ann))
