"""Secret settings, and the strings that are masked everywhere."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import re
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from tavern_core.kernel.views.sealed_functions import hidden
from tavern_core.model.secret_references import is_reference
from tavern_core.schema.redact import MASK, compile_redactor, redact_text
from tavern_core.schema.secret_encodings import forms, secret_redactor
from tavern_core.schema.secret_names import is_secret_name, words_of
from tavern_core.schema.secret_scanning import is_prose

if TYPE_CHECKING:
    from tavern_core.model.setting_declaration import SettingItem

SHORTEST: Final = 6
"""Shorter strings are not searched: masking every ``1`` would hide everything and protect nothing."""
_GENERATIONS: Final = 4
"""Number of masked values of a renewed secret: a running call may still be answered with an older token."""
_OF_HEADER: Final = re.compile(
    r'(?:bearer|basic|token|key|api-?key)\s+(?:token=)?"?(?P<named>[^\s"]+)"?'
    r'|[a-z][\w-]*\s+(?:token=)?"?(?P<long>(?=\S*\d)[^\s"]{16,})"?',
    re.IGNORECASE,
)
"""The value of a header: a scheme and what is secret. Who receives it repeats either."""
_KEY: Final = re.compile(r"(?=.*\d)[\w-]{16,}")
"""A name of a user that is a key."""
_EVERYDAY: Final = words_of(
    """
    access admin anonymous apikey authorization changeme chrome credentials docker dummy elastic example firefox guest letmein
    localhost mariadb minioadmin mongodb nothing ollama passwd password placeholder postgres postgresql private public rabbitmq
    api_token sample secret secrets testing token unused username x-oauth-basic
    """
)
"""Words that development setups use in place of a secret, and that occur in ordinary text."""
_redact: Final = compile_redactor()


def looks_secret(key: str) -> bool:
    """True for names such as ``cookie``, ``apiKey``, ``BILIBILI_TOKEN``, ``extensions.x.password``, ``登录密码``."""
    return is_secret_name(key.rpartition(".")[2])  # not the plugin's name: `token-counter` has ordinary settings


def is_secret(item: SettingItem) -> bool:
    """True for a setting that is declared secret, and for one whose key looks like it."""
    return item.secret or looks_secret(item.key)


def mask(value: Any) -> Any:
    """`value` as it may be shown: references and empty values unchanged, anything else as ``***``."""
    return value if value is None or value == "" or is_reference(value) else MASK


def mask_setting(key: str, value: Any) -> Any:
    """`value` under `key` of a configuration as it may be shown: masked by its key, by keys inside, and by what it looks like."""
    return mask(value) if key.split(".")[0] == "secrets" or looks_secret(key) else _redact(value)


class KnownSecrets:
    """The secret strings that this host has resolved; thread-safe. Used by all code that shows or records text."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fixed: frozenset[str] = frozenset()
        self._of_owners: dict[str, tuple[frozenset[str], ...]] = {}
        self.values: frozenset[str] = frozenset()
        """All of them. Every call reads this, so it is an attribute and not a property."""
        self.renewed: frozenset[str] = frozenset()
        """The values that `renew` added."""
        self.needles: tuple[bytes, ...] = ()
        """The secrets in all their spellings in JSON, for a quick check whether a line contains one."""

    def add(self, *values: Any) -> None:
        """Add texts and numbers; short ones are left out. A secret of several lines counts line by line, too."""
        found = _texts(values)
        if not found <= self._fixed:
            with self._lock:
                self._fixed |= found
                self._put_together()

    def renew(self, owner: str, *values: Any) -> None:
        """Add values that are replaced repeatedly, such as tokens: only the last ones of an owner are kept."""
        found = _texts(values)
        with self._lock:
            before = self._of_owners.get(owner, ())
            if found and found not in before:
                self._of_owners[owner] = (*before, found)[-_GENERATIONS:]
                self._put_together()

    def _put_together(self) -> None:
        self.renewed = frozenset[str]().union(*itertools.chain(*self._of_owners.values()))
        self.values = self._fixed | self.renewed
        written = (json.dumps(form, ensure_ascii=False)[1:-1] for text in self.values for form in forms(text))
        self.needles = tuple({text.encode("utf-8", "backslashreplace"): None for text in written})

    def mask_text(self, text: str) -> str:
        """`text` with every known secret, in any spelling, replaced by ``***``."""
        return secret_redactor(self.values)(text)


def _texts(values: Iterable[Any]) -> frozenset[str]:
    texts = [str(v) for v in values if isinstance(v, str | int) and not isinstance(v, bool)]
    found = {text.strip() for value in texts for text in (value, *value.splitlines())}
    headers = [header[header.lastgroup or 0] for text in found if (header := _OF_HEADER.fullmatch(text))]
    found |= {part for credentials in headers for part in _parts(credentials) if not is_everyday(part)}
    return frozenset(text for text in found if len(text) >= SHORTEST)


def _parts(credentials: str) -> list[str]:
    """The credentials of a header; of a user with a password (``Basic``) also these."""
    try:
        both = base64.b64decode(credentials, validate=True).decode()
    except ValueError:
        return [credentials]
    user, colon, password = both.partition(":")
    # A key alone is in the place of the user or of the password; beside it is nothing, one sign, or a word (`api_token`).
    is_key = len(password) < 2 or _KEY.fullmatch(user) is not None
    return [credentials, both, password, *([user] if is_key else [])] if colon else [credentials]


def is_everyday(text: str) -> bool:
    """True for a word of ordinary text (`password`, `postgres`): masking it would spoil answers for no protection."""
    return text.lower() in _EVERYDAY or is_prose(text)


class MaskingFilter(logging.Filter):
    """Keeps secrets out of what a plugin logs. One per logger; hosts of one process share it."""

    def __init__(self) -> None:
        super().__init__()
        known: weakref.WeakSet[KnownSecrets] = weakref.WeakSet()
        # A plugin has its logger and thereby this filter: it must find no secrets through them.
        self._learn = hidden(_learn, known, "learn")
        self._clean = hidden(_clean, known, "clean")

    @classmethod
    def put_on(cls, logger: logging.Logger, known: KnownSecrets) -> logging.Logger:
        """Make `logger` mask `known` and everything that looks like a secret; returns the logger."""
        own = next((f for f in logger.filters if isinstance(f, cls)), None)
        if own is None:
            logger.addFilter(own := cls())
        own._learn(known)
        return logger

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            return True  # the handler says what is wrong with the message
        if (clean := self._clean(text)) != text:
            record.msg, record.args = clean, None
        if record.exc_info:
            text = logging.Formatter().formatException(record.exc_info)
            if (clean := self._clean(text)) != text:
                record.exc_info, record.exc_text = None, clean
        return True


def _learn(hosts: weakref.WeakSet[KnownSecrets], known: KnownSecrets) -> None:
    if type(known) is KnownSecrets:  # any other type would receive the other secrets during sorting
        hosts.add(known)


def _clean(hosts: weakref.WeakSet[KnownSecrets], text: str) -> str:
    return redact_text(text, frozenset().union(*(known.values for known in list(hosts))))
