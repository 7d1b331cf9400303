"""API keys, and the users of a page that not everybody may open."""

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Self

import bcrypt
import jwt
from starlette.requests import Request

from serving.generator import ErrorKind, RequestError
from serving.http.addresses import address_of
from serving.messages import Code, Message
from serving.metrics import KEY

# Seconds that a user stays signed in.
SIGNED_IN_S = 30 * 24 * 3600
# A line as `htpasswd -nB` writes it. The cost is bounded: comparing a password may take a second.
_LINE = re.compile(
    r"""\s* | \#.* | (?P<name>[^:\s\#][^:]{0,63}):
    (?P<hash>\$2[aby]\$(0[4-9]|1[0-4])\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{31})\s*""",
    re.VERBOSE,
)
# A constant, so that a restart of the server signs nobody out.
_SALT = b"$2b$10$sdxlJaxPassphraseSaltu"


class ApiKeys:
    """The accepted API keys. If there are none, no key is needed.

    Args:
        digests: returns the digests of the keys by their names; see `digests_of`.
    """

    def __init__(self, digests: Callable[[], Mapping[str, bytes]] = dict) -> None:
        self._digests = digests

    def owner(self, request: Request) -> str | None:
        """Return the owner of the key that a request has; None if it has none, or a wrong one."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "basic":
            key = _password(key)
        digest = _digest(key.strip())
        # Compare with every key in constant time: the time of the answer must tell nothing.
        names = [
            name
            for name, known_digest in self._digests().items()
            if hmac.compare_digest(digest, known_digest)
        ]
        is_right = scheme.lower() in ("bearer", "basic") and names
        return KEY + names[0] if is_right else None

    def visitor(self, request: Request) -> str:
        """Return the visitor that a request comes from: the owner of its key, or its address.

        Raises:
            RequestError: if a key is needed, and the request has none or a wrong one.
        """
        if not self._digests():
            return address_of(request)
        if (owner := self.owner(request)) is None:
            raise RequestError(Message(Code.KEY_NEEDED), ErrorKind.UNAUTHORISED)
        return owner


class Users:
    """The users of the page, with bcrypt's hashes of their passwords.

    Args:
        hashes: returns the hash of each user's password by the user's name. One passphrase for
            everybody has the name "".

    Attributes:
        have_names: whether a name belongs to a password.
    """

    def __init__(self, hashes: Callable[[], Mapping[str, bytes]]) -> None:
        self._hashes = hashes
        self.have_names = "" not in hashes()

    @classmethod
    def with_passphrase(cls, passphrase: str) -> Self:
        """Return users who all have one passphrase, and no names.

        Raises:
            ValueError: if it has more than 72 bytes.
        """
        hashes = {"": bcrypt.hashpw(passphrase.encode(), _SALT)}
        return cls(lambda: hashes)

    def check(self, name: str, password: str) -> None:
        """Check the password of a user, which takes time: as long for a name that no user has.

        Raises:
            RequestError: if one of them is wrong.
        """
        hashes = self._hashes()
        hashed = hashes.get(name, [*hashes.values()][hash(name) % len(hashes)])
        # `htpasswd` ignores what follows 72 bytes.
        is_right = bcrypt.checkpw(password.encode("utf-8", "replace")[:72], hashed)
        if not is_right or name not in hashes:
            raise RequestError(
                Message(Code.WRONG_PASSWORD if self.have_names else Code.WRONG_PASSPHRASE),
                ErrorKind.UNAUTHORISED,
            )

    def token(self, name: str) -> str:
        """Return a JSON Web Token by which a user stays signed in.

        The key that signs it is the password's hash. So it is valid until the password changes or
        `SIGNED_IN_S` are over, also when the server starts again.
        """
        return jwt.encode(
            {"exp": int(time.time()) + SIGNED_IN_S}, self._hashes()[name], headers={"kid": name}
        )

    def has_token(self, token: str) -> bool:
        """Return whether a token is one of a user's, and still valid."""
        try:
            hashed = self._hashes()[jwt.get_unverified_header(token)["kid"]]
            jwt.decode(token, hashed, ["HS256"], options={"require": ["exp"]})
        except (jwt.InvalidTokenError, KeyError, RecursionError):
            return False
        return True


class Access(NamedTuple):
    """The rules of access to the APIs and to the page.

    Attributes:
        keys: API keys, one of which every call of an API needs; if there are none, it needs none.
        users: those who may open the page; None for everybody.
    """

    keys: ApiKeys = ApiKeys()
    users: Users | None = None


def parse_users(text: str) -> dict[str, bytes]:
    """Return the hash of each user's password in a file; lines that begin with # are comments.

    Raises:
        ValueError: if a line is wrong; the message names it.
    """
    lines = [_LINE.fullmatch(line) for line in text.splitlines()]
    if None in lines:
        raise ValueError(
            f"line {lines.index(None) + 1} is not NAME:HASH as `htpasswd -nB NAME` writes it, "
            "with a cost (-C) of at most 14"
        )
    return {line["name"]: line["hash"].encode() for line in lines if line and line["name"]}


def digests_of(keys: Iterable[str]) -> dict[str, bytes]:
    """Return the digests of keys by the keys' names, which are the beginnings of the digests."""
    return {digest[:8].hex(): digest for digest in map(_digest, keys)}


def _password(credentials: str) -> str:
    """Return the password of credentials in the scheme "Basic" (RFC 7617); "" if there is none.

    Clients of AUTOMATIC1111's API send a key so, with any name of a user.
    """
    try:
        text = base64.b64decode(credentials.strip(), validate=True).decode()
    except ValueError:
        return ""
    return text.partition(":")[2]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
