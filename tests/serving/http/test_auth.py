"""API keys, and the users of the page."""

import os
from pathlib import Path
from time import time

import bcrypt
import httpx
import jwt
import pytest

from serving.generator import RequestError
from serving.http import auth
from serving.http.auth import Access, ApiKeys, Users, digests_of, parse_users
from serving.http.watched_file import WatchedFile
from tests.calls import BODY, metric, post
from tests.web import serve

# A line that `htpasswd -nB` wrote.
LINE = "anna:$2y$05$4TwFtJkTr0eT1Uu2rvbFtuYPICidO2oRmY5tU6qgxgNppsTDKoena\n"


def hashed(password: str) -> bytes:
    # `htpasswd` writes $2y$.
    return bcrypt.hashpw(password.encode()[:72], bcrypt.gensalt(4)).replace(b"$2b$", b"$2y$")


def users(**passwords: str) -> Users:
    hashes = {name: hashed(password) for name, password in passwords.items()}
    return Users(lambda: hashes)


def is_right(users: Users, name: str, password: str) -> bool:
    try:
        users.check(name, password)
    except RequestError:
        return False
    return True


# --- keys ---


def test_a_file_of_keys_is_read_again(tmp_path: Path):
    file = tmp_path / "keys"

    def write(text: str) -> None:
        file.write_text(text)
        os.utime(file, (0, time() - 60))

    write("one\ntwo\n")
    keys = ApiKeys(WatchedFile("API_KEYS_FILE", file, lambda text: digests_of(text.split())))
    with serve(access=Access(keys)) as site:

        def statuses() -> list[int]:
            headers = [{"Authorization": f"Bearer {key}"} for key in ("one", "two", "three")]
            return [
                httpx.get(f"{site.url}/v1/model", headers=header).status_code for header in headers
            ]

        assert statuses() == [200, 200, 401]
        write("two\nthree\n\n")
        assert statuses() == [401, 200, 200]
        write("")
        assert statuses() == [401, 200, 200]


def test_the_use_of_each_key_is_counted():
    with serve(keys=["one", "two"]) as site:
        for key, count in (("one", 1), ("two", 2), ("wrong", 1)):
            for _ in range(count):
                body = BODY | {"images": 2}
                post(site, body, headers={"Authorization": f"Bearer {key}"})
        for key, count in (("one", 1), ("two", 2)):
            [name] = digests_of([key])
            assert metric(site, f'sdxl_key_requests_total{{key="{name}"}}') == count
            assert metric(site, f'sdxl_key_images_total{{key="{name}"}}') == 2 * count
        assert metric(site, "sdxl_key_requests_total") == 3


# --- users ---


def test_lines_of_htpasswd():
    entries = parse_users(f"# ours\n\n{LINE}{LINE.replace('anna', 'Jörg B.')}  \n")
    assert [*entries] == ["anna", "Jörg B."]
    assert is_right(Users(lambda: entries), "Jörg B.", "secret")


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"\n{LINE}bob:secret\n", "line 3"),
        ("anna:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "line 1"),
        (LINE.replace("$05$", "$31$"), "line 1"),
        (LINE.replace("anna", ""), "line 1"),
        (LINE.replace("anna", "a" * 65), "line 1"),
    ],
)
def test_wrong_lines(text: str, wrong: str):
    with pytest.raises(ValueError, match=wrong) as raised:
        parse_users(text)
    assert "secret" not in str(raised.value)


def test_passwords():
    some = users(anna="a password", bob="ü" * 40)
    assert some.have_names
    assert is_right(some, "anna", "a password")
    assert is_right(some, "bob", "ü" * 36)  # bcrypt reads 72 bytes
    for name, password in (
        ("anna", "ü" * 40),
        ("anna", ""),
        ("anna", "a password\0"),
        ("Anna", "a password"),
        ("", "a password"),
        ("nobody", "a password"),
        ("anna", "a" * 100_000),
        ("anna", "\ud800"),
    ):
        assert not is_right(some, name, password)


def test_an_unknown_name_takes_as_long_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch):
    compared: list[bytes] = []
    monkeypatch.setattr(auth.bcrypt, "checkpw", lambda _, known: compared.append(known))
    some = users(anna="a", bob="b")
    for name in ("anna", "bob", "nobody", ""):
        assert not is_right(some, name, "c")
    assert len(compared) == 4


def test_a_token_ends_with_its_password_and_not_with_the_server():
    hashes = {"anna": hashed("a"), "bob": hashed("b")}
    token = Users(lambda: hashes).token("anna")
    assert Users(lambda: dict(hashes)).has_token(token)
    assert Users(lambda: hashes | {"bob": hashed("c")}).has_token(token)
    assert not Users(lambda: hashes | {"anna": hashed("a")}).has_token(token)
    assert not Users(lambda: {"bob": hashes["bob"]}).has_token(token)

    token = Users.with_passphrase("a passphrase").token("")
    assert Users.with_passphrase("a passphrase").has_token(token)
    assert not Users.with_passphrase("a Passphrase").has_token(token)


def test_forged_and_old_tokens(monkeypatch: pytest.MonkeyPatch):
    hashes = {"anna": hashed("a")}
    some = Users(lambda: hashes)
    head, claims, signature = some.token("anna").split(".")
    for forged in (
        "",
        "...",
        f"{head}.{claims}.",
        f"{head}.{claims}.{signature[::-1]}",
        jwt.encode({"exp": 2**40}, "", "none", headers={"kid": "anna"}),
        jwt.encode({"exp": 2**40}, hashed("a"), headers={"kid": "anna"}),
        jwt.encode({"exp": 2**40}, hashes["anna"], "HS384", headers={"kid": "anna"}),
        jwt.encode({}, hashes["anna"], headers={"kid": "anna"}),
        jwt.encode({"exp": 2**40}, hashes["anna"]),
        f"{'W1tb' * 10_000}.{claims}.{signature}",  # a deep list
    ):
        assert not some.has_token(forged)
    monkeypatch.setattr(auth, "SIGNED_IN_S", -1)
    assert not some.has_token(some.token("anna"))
