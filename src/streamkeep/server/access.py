"""Users: passwords, and the commands and keys that each may use, in the syntax of Redis's ACL.

One `Access` is for both doors. A request of HTTP is one or several commands of Redis, which
`http.routes` names, and `User.check_rights` decides about them, as it does for a client that sends
these commands.

    user reader on >secret ~orders:* +@read
    user writer on #<sha256> ~* +@all -flushall
    user default off

A rule is `on`, `off`, `nopass`, `>password`, `#sha256`, `~pattern` (keys), `%R~pattern` and
`%W~pattern` (keys to read or write), `allkeys`, `+command`, `-command`, `+@category`, `-@category`,
`allcommands`, `nocommands`. What else Redis writes into its file, about channels and payloads, is
passed over. The categories are those of `_CATEGORIES`; a rule that names another one, or no command
of the server, is refused: it would allow what its author has forbidden. Later rules about commands
win over earlier ones.
"""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Final

from streamkeep.commands.command_table import BY_NAME, READ, READS, WRITE, Spec
from streamkeep.engine.commands.glob import Glob
from streamkeep.format.core.errors import ArgumentError, CommandError

EVERY_KEY: Final = "*"  # the pattern
REFUSED_S: Final = 0.5  # how long a wrong password waits for its answer

_ADMIN: Final = {
    "shutdown", "bgsave", "config", "acl|list", "acl|users", "client|kill", "client|list",
    "client|unblock", "client|pause", "client|unpause", "client|no-evict",
    "psync", "sync", "replconf", "replicaof", "slaveof", "role", "lastsave",
}  # fmt: skip
_DANGEROUS: Final = {"flushall", "flushdb", "info", "keys", "restore"}  # beside those of @admin
# There are no channels, which `&` is about, too, and every payload is checked.
_NO_EFFECT: Final = ("resetchannels", "allchannels", "sanitize-payload", "skip-sanitize-payload")
_CATEGORIES: Final = ("all", "read", "write", "stream", "connection", "admin", "dangerous")


class NoPermissionError(CommandError):
    """The user may not run the command, or not on these keys."""

    redis_code = "NOPERM"


def categories_of(spec: Spec) -> set[str]:
    found = {"all"}
    if spec.name.endswith("|help"):
        found.add("connection")
    elif spec.name in _ADMIN or spec.name.partition("|")[0] in _ADMIN:
        found |= {"admin", "dangerous"}
        if spec.name.startswith("client|"):
            found.add("connection")
    elif spec.name == "watch" or not (spec.first or spec.run):
        found.add("connection")
    else:
        found.add("read" if spec.kind == READS else "write")
    if spec.name.startswith("x"):
        found.add("stream")
    if spec.name in _DANGEROUS:
        found.add("dangerous")
    return found


class User:
    def __init__(self, name: bytes, rules: list[str]) -> None:
        self.name = name
        self.enabled = False
        self.needs_no_password = False
        self._digests: dict[str, None] = {}
        self._rights: dict[str, int] = {}  # of each pattern; the same one twice adds up
        self._commands: dict[str, bool] = {}  # in their order; no rule that a later one undoes
        for rule in rules:
            self._take(rule)
        self._keys = [(rights, text) for text, rights in self._rights.items()]
        self._patterns = [(rights, Glob(text.encode())) for rights, text in self._keys]

    def _take(self, rule: str) -> None:
        if rule in ("on", "off"):
            self.enabled = rule == "on"
        elif rule == "nopass":
            self.needs_no_password = True
        elif rule == "resetpass":
            self._digests.clear()
            self.needs_no_password = False
        elif rule[:1] == ">":
            self._digests[hashlib.sha256(rule[1:].encode()).hexdigest()] = None
        elif rule[:1] == "#" and len(rule) == 65:
            self._digests[rule[1:]] = None
        elif rule == "allkeys":
            self._add_keys(EVERY_KEY, READ | WRITE)
        elif rule == "resetkeys":
            self._rights.clear()
        elif rule[:1] == "~":
            self._add_keys(rule[1:], READ | WRITE)
        elif rule[:3] in ("%R~", "%W~"):
            self._add_keys(rule[3:], READ if rule[1] == "R" else WRITE)
        elif rule[:4] == "%RW~":
            self._add_keys(rule[4:], READ | WRITE)
        elif rule in ("allcommands", "nocommands"):
            self._add_commands("@all", rule == "allcommands")
        elif rule[1:2] == "@" and rule[2:].lower() not in _CATEGORIES:
            known = ", ".join(f"@{one}" for one in _CATEGORIES)
            raise ArgumentError(
                f"user {self.name.decode()}: {rule!r}, but the categories here are {known}"
            )
        elif rule[:1] in "+-" and len(rule) > 1:
            self._add_commands(rule[1:].lower(), rule[0] == "+")
        elif rule not in _NO_EFFECT and rule[:1] != "&":
            raise ArgumentError(f"user {self.name.decode()}: {rule!r} is not a rule of an ACL")

    def _add_keys(self, text: str, rights: int) -> None:
        self._rights[text] = self._rights.get(text, 0) | rights

    def _add_commands(self, what: str, adds: bool) -> None:
        if what == "@all":
            self._commands.clear()
        self._commands.pop(what, None)
        self._commands[what] = adds

    def check_names(self, table: dict[bytes, Spec]) -> None:
        """Raise for a rule about a command that the table of a server does not have."""
        for what in self._commands:
            if what[0] != "@" and what.encode() not in table:
                raise ArgumentError(
                    f"user {self.name.decode()}: there is no command {what!r} here; next: remove "
                    "this rule, or correct it"
                )

    def accepts(self, password: bytes) -> bool:
        """Return whether the user may log in with this password."""
        digest = hashlib.sha256(password).hexdigest()
        known = [hmac.compare_digest(digest, one) for one in self._digests]
        return self.enabled and (self.needs_no_password or any(known))

    def may_run(self, spec: Spec) -> bool:
        allowed = False
        names = {spec.name, spec.name.partition("|")[0]}
        categories = categories_of(spec)
        for what, adds in self._commands.items():
            if what in names or (what[:1] == "@" and what[1:] in categories):
                allowed = adds
        return allowed

    def check(self, spec: Spec, words: list[bytes]) -> None:
        """Raise unless the user may run this command on the keys among its words."""
        if not self.is_unrestricted():
            self.check_rights(spec, spec.rights_of(words))

    def check_rights(self, spec: Spec, rights: list[tuple[bytes, int]]) -> None:
        """Raise unless the user may run this command, and has these rights to keys."""
        allowed = self.may_run(spec) or spec.name in ("auth", "hello", "quit", "reset")
        if spec.name in ("flushall", "flushdb") and (READ | WRITE, EVERY_KEY) not in self._keys:
            allowed = False
        if not allowed:
            name = self.name.decode()
            raise NoPermissionError(
                f"NOPERM User {name} has no permissions to run the '{spec.name}' command"
            )
        if not all(self._may_use(key, needed) for key, needed in rights):
            raise NoPermissionError("NOPERM No permissions to access a key")

    def _may_use(self, key: bytes, needed: int) -> bool:
        """Return whether one pattern, as in Redis, gives all rights that are needed."""
        return any(
            given & needed == needed and pattern.matches(key) for given, pattern in self._patterns
        )

    def sees(self, key: bytes) -> bool:
        """Return whether the user may read a key, so that KEYS and SCAN show it."""
        return self.is_unrestricted() or self._may_use(key, READ)

    @property
    def sees_all(self) -> bool:
        """Whether the user may read every key, also those to come."""
        return self._rights.get(EVERY_KEY, 0) & READ > 0

    @property
    def may_write(self) -> bool:
        """Whether there is a command by which the user may change something."""
        return any(self.may_run(spec) for spec in BY_NAME.values() if spec.kind != READS)

    def is_unrestricted(self) -> bool:
        return self._commands == {"@all": True} and (READ | WRITE, EVERY_KEY) in self._keys

    def rules(self) -> bytes:
        """Return the user as ACL LIST shows it."""
        parts = ["on" if self.enabled else "off"]
        parts += ["nopass"] if self.needs_no_password else []
        parts += [f"#{digest}" for digest in self._digests]
        marks = {READ: "%R~", WRITE: "%W~", READ | WRITE: "~"}
        parts += [marks[rights] + text for rights, text in self._keys]
        parts += [] if "@all" in self._commands else ["-@all"]
        parts += [("+" if adds else "-") + what for what, adds in self._commands.items()]
        return b"user " + self.name + b" " + " ".join(parts).encode()


class Access:
    """The users of a server.

    Args:
        password: of the default user; None if it needs none.
        lines: users in ACL syntax, each `user NAME RULE ...`.
    """

    def __init__(self, password: str | None = None, lines: list[str] | None = None) -> None:
        rules = ["on", "nopass" if password is None else f">{password}", "~*", "+@all"]
        self.users: dict[bytes, User] = {b"default": User(b"default", rules)}
        for line in lines or ():
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0] != "user" or len(words) < 2:
                raise ArgumentError(f"a line of users is `user NAME RULE ...`, not {line!r}")
            self.users[words[1].encode()] = User(words[1].encode(), words[2:])

    def rules(self) -> list[bytes]:
        """Return the users as ACL LIST shows them."""
        return [user.rules() for _, user in sorted(self.users.items())]

    @property
    def default(self) -> User:
        """The user of clients that have not named one."""
        return self.users[b"default"]

    @property
    def anonymous(self) -> User | None:
        """The user of a client that has sent no password; None if it is nobody."""
        default = self.default
        return default if default.enabled and default.needs_no_password else None

    def log_in(self, name: bytes, password: bytes) -> User | None:
        """Return the user with this name and password; None if one of them is wrong."""
        user = self.users.get(name)
        return user if user is not None and user.accepts(password) else None

    @property
    def is_open(self) -> bool:
        """Whether a client may do something without a password."""
        return any(user.enabled and user.needs_no_password for user in self.users.values())

    @classmethod
    def from_file(cls, path: Path, password: str | None) -> Access:
        """Read users from a file in the format of Redis's `aclfile`."""
        return cls(password, path.read_text(encoding="utf-8").splitlines())
