"""Settings from environment variables, their defaults, the file of signing keys, and signatures."""

import multiprocessing
import stat
from pathlib import Path

import pytest

from studydb.domain.errors import UsageError
from studydb.settings import (
    Key,
    Keyring,
    frame,
    key_file_path,
    load_keyring,
    scrubbed_environment,
    storage_url,
)

KEY = "ab" * 32
OTHER = "cd" * 32


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def write_keys(environ: dict[str, str], *lines: str, mode: int = 0o600) -> Path:
    path = key_file_path(environ)
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(mode)
    return path


def test_scrubbed_environment_has_no_credentials():
    environ = {
        "STUDYDB_STORAGE": "postgresql://user:secret@host/db",
        "STUDYDB_SIGNING_KEY": KEY,
        "PGPASSWORD": "secret",
        "PGSERVICEFILE": "/somewhere",
        "PATH": "/bin",
        "STUDYDB_KEY_FILE": "/keys",
    }

    scrubbed = scrubbed_environment(environ)

    assert scrubbed == {"PATH": "/bin", "STUDYDB_KEY_FILE": "/keys"}


def test_storage_url_comes_from_the_argument_or_the_environment_or_the_default():
    assert storage_url("sqlite:///a.db", {"STUDYDB_STORAGE": "sqlite:///b.db"}) == "sqlite:///a.db"
    assert storage_url(None, {"STUDYDB_STORAGE": "sqlite:///b.db"}) == "sqlite:///b.db"
    assert storage_url(None, {}) == "sqlite:///studydb.db"


def test_key_file_path_depends_on_xdg_config_home_and_studydb_key_file(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))

    assert key_file_path({}) == tmp_path / ".config" / "studydb" / "keys"
    assert key_file_path({"XDG_CONFIG_HOME": "/etc/x"}) == Path("/etc/x/studydb/keys")
    assert key_file_path({"XDG_CONFIG_HOME": "relative"}) == key_file_path({})
    assert key_file_path({"STUDYDB_KEY_FILE": "~/k"}) == tmp_path / "k"


def test_first_use_makes_a_key_file_that_only_this_user_can_read(environ):
    first = load_keyring(environ)
    second = load_keyring(environ)

    assert first == second
    assert len(first.keys) == 1
    assert stat.S_IMODE(first.path.stat().st_mode) == 0o600
    assert list(first.path.parent.iterdir()) == [first.path]


def first_use(environ, barrier, results):
    barrier.wait()
    results.put(load_keyring(environ).keys[0].id)


def test_simultaneous_first_uses_share_one_key(environ):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(24), context.Queue()
    users = [context.Process(target=first_use, args=(environ, barrier, results)) for _ in range(24)]

    for user in users:
        user.start()
    ids = {results.get(timeout=30) for _ in users}
    for user in users:
        user.join()

    assert ids == {load_keyring(environ).keys[0].id}


def test_load_keyring_with_create_false_makes_no_file(environ):
    assert load_keyring(environ, create=False).keys == ()
    assert not key_file_path(environ).exists()


def test_environment_key_comes_first_and_needs_no_file(environ):
    environ["STUDYDB_SIGNING_KEY"] = KEY

    alone = load_keyring(environ)
    write_keys(environ, OTHER)
    both = load_keyring(environ)

    assert [key.secret.hex() for key in alone.keys] == [KEY]
    assert [key.secret.hex() for key in both.keys] == [KEY, OTHER]


@pytest.mark.parametrize("text", ["secret", "abcd", "ffff:" + KEY])
def test_error_about_an_invalid_environment_key_does_not_show_the_key(environ, text):
    environ["STUDYDB_SIGNING_KEY"] = text

    with pytest.raises(UsageError, match="openssl rand -hex 32") as refusal:
        load_keyring(environ)

    assert text not in str(refusal.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_key_file_that_others_can_read_or_write_is_refused_with_the_cure(environ, mode):
    path = write_keys(environ, KEY, mode=mode)

    with pytest.raises(UsageError, match=f"chmod 600 {path}"):
        load_keyring(environ)


def test_error_about_a_damaged_key_file_names_the_line(environ):
    write_keys(environ, "# the team's", KEY, "nonsense")

    with pytest.raises(UsageError, match="Line 3"):
        load_keyring(environ)


def test_key_file_that_cannot_be_made_is_refused_with_the_cure(environ, tmp_path):
    (tmp_path / "config").write_text("a file where a directory should be")

    with pytest.raises(UsageError, match="STUDYDB_KEY_FILE"):
        load_keyring(environ)


def test_key_id_is_a_fingerprint_and_the_secret_is_not_shown(environ):
    key = Key(bytes.fromhex(KEY))

    write_keys(environ, f"{key.id}:{KEY}")

    assert load_keyring(environ).keys == (key,)
    assert key.id not in KEY
    assert "abab" not in repr(load_keyring(environ))


def test_first_or_preferred_key_signs_and_all_keys_verify():
    one, other = Key(bytes.fromhex(KEY)), Key(bytes.fromhex(OTHER))
    ring, colleague = Keyring((one, other), Path("k")), Keyring((other,), Path("k"))

    key_id, mac = ring.sign(b"payload")
    shared_id, shared_mac = ring.sign(b"payload", prefer=[other.id])

    assert key_id == one.id
    assert ring.verify(b"payload", {key_id: mac})
    assert not colleague.verify(b"payload", {key_id: mac})
    assert colleague.verify(b"payload", {key_id: mac, shared_id: shared_mac})


@pytest.mark.parametrize(
    "mac", ["", "00" * 32, "é" * 64, "\ud800", Key(bytes.fromhex(KEY)).mac(b"other")]
)
def test_wrong_signature_never_verifies(mac):
    key = Key(bytes.fromhex(KEY))

    assert not Keyring((key,), Path("k")).verify(b"payload", {key.id: mac})


def test_signing_without_a_key_is_refused_with_the_cure():
    with pytest.raises(UsageError, match="STUDYDB_SIGNING_KEY"):
        Keyring((), Path("k")).sign(b"payload")


def test_frame_of_a_payload_differs_when_bytes_move_between_its_fields():
    assert frame("ab", "c") != frame("a", "bc")
    assert frame("ab") != frame("ab", "")
