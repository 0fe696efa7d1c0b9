"""Keys: made once, kept as digests, and a file of them that says what is wrong with it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import pytest

from service.core.errors import ConfigError
from service.limits.keys import new_key, read_keys

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
    "keys that are no list": ("[keys]\nname = 'x'", ["[[keys]] entries, at least one"]),
    "another table": (f"{ENTRY}[[users]]\nname = 'x'", ["[[keys]] entries", "nothing else"]),
    "an entry that is no table": ("keys = [1]", ["entry 1", "the entry"]),
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
    "an unknown key": (f"{ENTRY}limit = 3", ["entry 1", "limit", "name, digest, scopes, rate"]),
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
