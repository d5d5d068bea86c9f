"""Secrets inside ordinary text: keys of well-known providers, tokens, private keys, passwords in URLs, `name=value`, command lines.

    known secrets  →  may it hold any? (one search with Rust's regex, 2 ns a byte)  →  the rules, only after a match

Every pattern is bounded or anchored to a literal, so a text of any kind costs linear time. A match becomes `***`;
the words around it stay readable. Which names are secret is decided in one place, `secrets`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final

from pydantic_core import CoreConfig, SchemaValidator, core_schema

from tavern_core.model.safe_printing import is_text
from tavern_core.schema.secret_encodings import MASK, secret_redactor
from tavern_core.schema.secret_names import STEMS, is_secret_name, words_of

_PIECE: Final = 16_384
"""Characters per search in a long text."""
_OVERLAP: Final = 800
"""Characters between the start of a rule's match and the end of what the search must see of it."""
_REACH: Final = 9_000
"""Characters that a rule may match after its start, except in runs without a blank."""
_LONGEST_RUN: Final = 65_536
"""Length of a run without a blank that is never cut."""

_PREFIXED: Final = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, DeepSeek, OpenRouter
    r"(?:sk|rk|pk)_(?:live|test)_[A-Za-z0-9]{10,}",  # Stripe
    r"gh[pousr]_[A-Za-z0-9]{20,}", r"github_pat_[A-Za-z0-9_]{20,}", r"gl(?:pat|dt|rt|ptt|cbt|soat)-[A-Za-z0-9_.-]{16,}",
    r"xox[abceoprs]-[A-Za-z0-9-]{10,}", r"xapp-[A-Za-z0-9-]{10,}",  # Slack
    r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}", r"AIza[A-Za-z0-9_-]{30,}", r"ya29\.[A-Za-z0-9_-]{20,}", r"GOCSPX-[A-Za-z0-9_-]{20,}",
    r"hf_[A-Za-z0-9]{20,}", r"npm_[A-Za-z0-9]{30,}", r"pypi-[A-Za-z0-9_-]{30,}", r"rubygems_[a-f0-9]{40,}",
    r"SG\.[A-Za-z0-9_-]{16,64}\.[A-Za-z0-9_-]{16,}",
    r"[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}",  # Telegram bots
    r"do[opr]_v1_[a-f0-9]{40,}", r"dckr_pat_[A-Za-z0-9_-]{20,}", r"hv[sbr]\.[A-Za-z0-9_-]{20,}",
    r"LTAI[A-Za-z0-9]{12,}", r"AKID[A-Za-z0-9]{13,}",  # Alibaba, Tencent
    r"gsk_[A-Za-z0-9]{20,}", r"xai-[A-Za-z0-9]{20,}", r"r8_[A-Za-z0-9]{20,}", r"pplx-[A-Za-z0-9]{20,}", r"nvapi-[A-Za-z0-9_-]{20,}",
    r"tvly-[A-Za-z0-9-]{16,}", r"lin_api_[A-Za-z0-9]{20,}", r"ntn_[A-Za-z0-9]{30,}", r"figd_[A-Za-z0-9_-]{20,}", r"whsec_[A-Za-z0-9+/=]{16,}",
    r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{20,}", r"glsa_[A-Za-z0-9_]{20,}", r"sq0[a-z]{3}-[A-Za-z0-9_-]{20,}", r"AGE-SECRET-KEY-1[A-Z0-9]{20,}",
    r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*",  # JWT, JWE
)  # fmt: skip
_KEYS: Final = rf"(?<![A-Za-z0-9])(?:{'|'.join(_PREFIXED)})"
_PRIVATE_KEY: Final = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.)*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
_SCHEME: Final = (
    r"(?i)\b(bearer|basic)(\s{1,4})(?=[A-Za-z0-9._~+/=-]{0,400}[0-9=]|[A-Za-z0-9._~+/-]{16})[A-Za-z0-9._~+/=-]{6,}"
)
_USERINFO: Final = r"(?i)(?<![a-z0-9+.-])([a-z][a-z0-9+.-]{1,20}://)(?:([^\s/@:\"'<>]{0,256}:)[^\s/\"'<>]{1,512}|[^\s/@:\"'<>]{16,512})(?=@)"
_QUERY: Final = r"(?i)([?&;](?:(?:x-\w{2,8}-)?sig(?:nature)?|(?:key|code|auth|pwd|pass|psw)(?==[\w.~%+/=-]{8}))=)[^\s&\"'<>#\\]{1,4096}"
_HEADER: Final = (
    r"(?i)(?<![a-z])((?:set-)?cookie|(?:proxy-)?authorization|x-api-key|x-auth-token)(\s{0,4}:\s{0,4})"
    r"(?:[^\r\n\"'\\=]|=(?:\\{0,3}\"[^\"\r\n\\]{0,1000}\\{0,3}\")?){1,8000}"
)
_QUOTATION: Final = r"""(?<!\w)(?:'(?:[^'\n]|'(?=\w)){1,4000}'|"(?:[^"\n]|"(?=\w)){1,4000}")(?!\w)"""
_QUOTED: Final = r"\\{1,3}\"[^\"\\]{1,4096}(?:\\{1,3}\")?|\"(?:[^\"\\]|\\.){1,4096}\"?|'(?:[^'\\]|\\.){1,4096}'?|「[^」]{1,4096}」?|“[^”]{1,4096}”?"
_BARE: Final = (
    r"(?:[^\s,;&\"'}\])\\]|[\"'}\])](?=\w)|[,;](?![\s\"'}\])]|\Z|[\w.-]{1,40}[=:])|\\(?!\\{0,2}[\"'nrt])){1,4096}"
)
_VALUE: Final = rf"({_QUOTED}|\[[^\]]{{1,4096}}\]?|\{{[^}}]{{1,4096}}\}}?|{_BARE})"
_STEM: Final = "|".join(map(re.escape, STEMS))
_NAME_CHAR: Final = re.compile(r"[\w.-]")
_NAME: Final = (
    rf"(?i)(?:{_STEM})[\w.-]{{0,40}}(?:[ _-](?:id|string|phrase|codes?|word))?"
    r"(?=((?:\\{0,3}[\"'])?\s{0,8}(?:=>|->|:=|[:=：＝])\s{0,8}"
    r"|[\"'”」]?(?:\s(?:for|of|to|on|at)\s[^\s:=]{1,60})?\s{1,8}(?:is|was|are)(?:\s{1,8}:?|:)\s{0,4}|\s{0,4}(?:是|为|為|设成|改成)\s{0,4}[:：]?\s{0,4}))"
)
"""A name that may be secret; its group separates it from its value."""
_NAMED_VALUE: Final = _VALUE
_TAG: Final = r"<([A-Za-z][\w:.-]{0,60})((?:\s[^<>]{0,200})?>)([^<>]{1,4096})(?=</)"
_OPTION: Final = rf"(?<![\w-])(--?[A-Za-z][\w.-]{{0,60}})(=|\s{{1,8}}|[\"']\s{{0,4}},\s{{0,4}}){_VALUE}"
_COMMANDS: Final[tuple[tuple[str, str], ...]] = (
    (r"(?:mysql|mariadb)[a-z_-]*|mycli|xtrabackup|7za?", r"(?<=[\s\"'])(-p)(?=[^\s\"'-]|[\"'][^\s,\]])"),
    (r"curl", r"(?<=[\s\"'])((?:-u|-U|--user|--proxy-user)(?:=|[\"']?,?\s{0,4}[\"']?)[^\s:\"']{0,100}:)"),
    (r"https?|xh", r"(?<=[\s\"'])((?:-a|--auth)(?:=|[\"']?,?\s{0,4}[\"']?)[^\s:\"'/]{0,100}:)"),
    (r"sshpass|mongo(?:sh|dump|restore|export|import)?|(?:docker|podman|nerdctl|helm|oras) +(?:registry +)?login", r"(?<=[\s\"'])(-p(?:=|[\"']?,?\s{0,4}))(?=[^\s-])"),
    (r"redis-cli|redis-benchmark", r"(?<=[\s\"'])(-a[\"']?,?\s{1,4})"),
    (r"sqlcmd|bcp|osql|isql|tsql|zip|unzip", r"(?<=[\s\"'])(-P[\"']?,?\s{0,4})(?=[^\s-])"),
    (r"ldap[a-z]+", r"(?<=[\s\"'])(-w[\"']?,?\s{0,4})(?=[^\s-])"),
    (r"openssl", r"(?<=[\s\"'])(pass:)"),
    (r"smbclient|rpcclient", r"(?<=[\s\"'])(-U[\"']?,?\s{0,4}[\"']?[^\s%\"']{0,100}%)"),
)  # fmt: skip
"""Programs, and the options that take a password."""
_PROGRAM: Final = "|".join(program for program, _ in _COMMANDS)
_LINE: Final = rf"(?<![\w.-])(?:{_PROGRAM})(?:\.exe)?(?=[\s\"'])[^\n]{{1,500}}"
_ARGUMENT: Final = r"(\"[^\"\n]{1,400}\"?|'[^'\n]{1,400}'?|[^\s\"',;|]{1,400})"
_GIVEN: Final = tuple((rf"(?<![\w.-])(?:{program})", option + _ARGUMENT) for program, option in _COMMANDS)
_STATEMENT: Final = (
    r"(?i)(\bidentified\s{1,8}by\s{1,8}(?:password\s{1,8})?|\bpassword\s{1,8}(?=')|\blogin\s{1,8}\S{1,100}\s{1,8}password\s{1,8})"
    + _ARGUMENT
)
"""SQL that sets a password, and a line of .netrc."""
_PROSE: Final = words_of(
    """
    a about absent accepted again all already also always an and any anonymous are array as at auto available bad basic be bearer because
    been before being boolean both but by bytes called can cannot case-sensitive changed checked correct could default defined
    denied deprecated did different digest disabled do does empty enabled encrypted enough equal everything expected expired
    false fine float for forbidden from given going good had has hashed have header here hidden how if ignored in
    incorrect int integer invalid is it its kept known less like list long longer loaded lost malformed mandatory masked
    matched may me missing more must my necessary needed never no none not nothing now null number oauth oauth2 object
    of off ok on one only optional or other our out passed present protected provided read
    redacted refused rejected removed required reset revoked right safe same secure sent set short shorter should shown
    so some stored str string strong such supplied taken than that the their then there these they this to too true
    undefined unknown unset unused unused upper used user usually valid verified very was weak well were what when where which
    while who why will with without wrong yes you your
    否 空 空的 必填 必需 必须 错误 错误的 无效 无效的 不能为空 什么 多少 可选 正确 正确的
    """
)
"""Words after a name in a sentence about a secret, which are not secrets."""
_NOTHING: Final = frozenset({"null", "none", "nil", "undefined", "true", "false", MASK, "[]", "{}", "...", "…"})
_METAVARS: Final = words_of("FILE KEY NAME PASSWORD PATH PASS SECRET STRING TEXT TOKEN VALUE")
"""Placeholders for values in usage lines."""
_PLACEHOLDER: Final = r"\$\{?[A-Z_][A-Z0-9_]*\}?|\$\{\{.*|\{[\"']?\$(?:env|file|keyring)\b.*|<[\w .:-]{0,60}>|\{\{?[\w.]{0,60}\}{0,2}|%\(?\w{0,40}\)?[sd]?|[*•…x.]{3,}|[\w-]{1,60}:"
_CJK: Final = r"[\u3400-\u9fff]"

Masker = Callable[[str], str]
_rule = cache(re.compile)
"""Compiled at the first use: most programs never print a secret."""


def redact_text(text: str, known_secrets: Iterable[str] = ()) -> str:
    """`text` with everything that looks like a secret, and every known secret, replaced by ``***``.

    Args:
        text: anything, of any length. A text without a sign of a secret costs 2 ns a byte.
        known_secrets: exact strings, found in every usual spelling (`secret_encodings`). Those shorter than four
            characters are masked only if they are the whole text.
    """
    if known_secrets and (known := frozenset(secret for secret in known_secrets if secret)):
        if text in known:
            return MASK
        text = secret_redactor(known)(text)
    if not may_hold_secret(text):
        return text
    if "PRIVATE KEY" in text:
        text = _rule(_PRIVATE_KEY).sub(MASK, text)
    return _masked(text) if len(text) <= 2 * _PIECE else "".join(_in_pieces(text))


def redact_sentence(text: str, known_secrets: Iterable[str] = (), arguments: Iterable[str] = ()) -> str:
    """A sentence of the host without secrets: its own words stay; its quotations are redacted.

    ``extensions.a.token: there is no such setting`` is about a setting; no word of it is a secret.

    Args:
        known_secrets: as for `redact_text`.
        arguments: values that a caller passed as secrets; an ordinary word is masked only in quotes.
    """
    words = frozenset(arguments)
    if known_secrets or words:
        plain = frozenset(word for word in words if word.isalpha() and word.islower())
        text = secret_redactor(frozenset(known_secrets) | (words - plain))(text)
        text = _quotations(text, lambda quoted: secret_redactor(plain)(quoted)) if plain else text
    if not may_hold_secret(text):
        return text
    return _quotations(_masked(text, by_name=False), redact_text)


def _quotations(text: str, change: Masker) -> str:
    changed: str = _rule(_QUOTATION).sub(lambda found: f"{found[0][0]}{change(found[0][1:-1])}{found[0][-1]}", text)
    return changed


def may_hold_secret(text: str) -> bool:
    """False if no rule would match in `text`."""
    return _any_rule().isinstance_python(text) or not (text.isascii() or is_text(text))


@cache
def _any_rule() -> SchemaValidator:
    return _question("|".join(f"(?:{question})" for question, _ in _RULES))


@cache
def _asked_rules() -> tuple[tuple[SchemaValidator, Masker], ...]:
    return tuple((_question(question), mask) for question, mask in _RULES)


def _question(pattern: str) -> SchemaValidator:
    """Compile a pattern for Rust's linear engine."""
    return SchemaValidator(core_schema.str_schema(pattern=pattern, strict=True), CoreConfig(regex_engine="rust-regex"))


def _in_pieces(text: str) -> Iterator[str]:
    """A long text; the rules run only around pieces with a possible match."""
    done = 0
    for start, end in _suspicious(text):
        yield text[done:start]
        yield _masked(text[start:end])
        done = end
    yield text[done:]


def _suspicious(text: str) -> list[tuple[int, int]]:
    """The ranges for the rules. A match that begins shortly before a piece is in the range of the piece before."""
    spans: list[tuple[int, int]] = []
    for at in range(0, len(text), _PIECE):
        if not may_hold_secret(text[at : at + _PIECE + _OVERLAP]):
            continue
        end = at + _PIECE + _REACH
        blanks = (text.find(blank, end, end + _LONGEST_RUN) for blank in " \n\t")
        end = min((found for found in blanks if found >= 0), default=end + _LONGEST_RUN)
        start = spans.pop()[0] if spans and at <= spans[-1][1] else at
        spans.append((start, end))
    return spans


def _masked(text: str, by_name: bool = True) -> str:
    """Mask the secrets in a text.

    Args:
        by_name: also redact values after a name of a secret, not only what looks like a secret.
    """
    readable = text.isascii() or is_text(text)
    for question, mask in _asked_rules()[: None if by_name else _BY_LOOK]:
        if not readable or question.isinstance_python(text):
            text = mask(text)
    return text


def _mask_line(found: re.Match[str]) -> str:
    """A command line without the passwords of its program."""
    line = found[0]
    for program, option in _GIVEN:
        if _rule(program).search(line):
            line = _rule(option).sub(lambda one: f"{one[1]}{_mask_of(one[2])}", line)
    return line


def _mask_option(found: re.Match[str]) -> str:
    """`--password x`, `"--token", "x"`."""
    value, is_assigned = found[3], not found[2].isspace()
    if (
        not is_secret_name(found[1])
        or is_prose(value, is_assigned)
        or value in _METAVARS
        or (not is_assigned and value.startswith("-"))
    ):
        return found[0]
    return f"{found[1]}{found[2]}{_mask_of(value)}"


def _mask_header(found: re.Match[str]) -> str:
    """`Cookie: …` up to the end of the line, but not `cookie: is required`, a sentence about a setting of that name."""
    head = f"{found[1]}{found[2]}"
    words = found[0][len(head) :].split(" ", 2)
    word = words[1] if len(words) > 1 and words[0].lower() in ("basic", "bearer", "digest", "token") else words[0]
    return found[0] if word.lower().rstrip(".!") in _PROSE and word != MASK else f"{head}{MASK}"


def _mask_tag(found: re.Match[str]) -> str:
    """`<password>…</password>`."""
    return (
        f"<{found[1]}{found[2]}{MASK}"
        if is_secret_name(found[1]) and not is_prose(found[3], is_assigned=True)
        else found[0]
    )


def _mask_named(text: str) -> str:
    """`name=value` if the whole name is that of a secret and the value is not a word of a sentence about it."""
    folded = text.lower()
    if len(folded) != len(text):
        folded = "".join(low if len(low := char.lower()) == 1 else char for char in text)
    parts: list[str] = []
    done = 0
    for stem in _rule(_STEMS).finditer(folded):
        if (
            stem.start() < done
            or (found := _rule(_NAME).match(text, stem.start())) is None
            or not _is_secret_here(text, found)
        ):
            continue
        value_match = _rule(_NAMED_VALUE).match(text, found.end(1))
        if value_match is None:
            continue
        in_chinese = any(sign in found[0] or sign in found[1] for sign in "是为為")
        if not (
            is_prose(value_match[0], "=" in found[1])
            or (in_chinese and _rule(_CJK).match(value_match[0]))
            or (found[0] == "secrets" and found[1] == ":")
        ):  # `secrets:x` is a permission
            parts += (text[done : value_match.start()], _mask_of(value_match[0]))
            done = value_match.end()
    return "".join((*parts, text[done:]))


def _is_secret_here(text: str, found: re.Match[str]) -> bool:
    """True if the whole name is secret, or together with the word before it (`api key`)."""
    start = found.start()
    while start > 0 and found.start() - start < 40 and _NAME_CHAR.match(text[start - 1]):
        start -= 1
    name = text[start : found.end()].rstrip("是为為设置改定成")
    if is_secret_name(name):
        return True
    before = text[max(0, start - 20) : start]
    return before.endswith(" ") and is_secret_name(f"{before[:-1].rpartition(' ')[2]} {name}")


def is_prose(value: str, is_assigned: bool = False) -> bool:
    """True for a text after a secret's name that is not a secret: a word of a sentence, a placeholder, a reference.

    Args:
        is_assigned: after an equals sign, where no sentence continues.
    """
    word = value.strip("\"'`\\.!?。！？").lower()
    is_quoted = value[:1] in "\"'`\\「“"
    return (
        word in _NOTHING
        or (not is_quoted and not is_assigned and word in _PROSE)
        or _rule(_PLACEHOLDER).fullmatch(value.strip("\"'`")) is not None
    )


def _grouped(words: Iterable[str]) -> str:
    """A pattern for any of `words`, by their first letter: ten times as fast as one after the other."""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(re.escape(word[1:]))
    return "|".join(f"{first}(?:{'|'.join(rest)})" for first, rest in rests.items())


def _mask_of(value: str) -> str:
    """``***`` in the quotes of the value."""
    quote = re.match(r"\\{0,3}[\"']", value)
    if quote is not None:
        return f"{quote[0]}{MASK}{quote[0]}"
    return f"「{MASK}」" if value[0] == "「" else f"“{MASK}”" if value[0] == "“" else MASK


_STEMS: Final = _grouped(STEMS)
_ANY_STEM: Final = rf"(?:{_STEM})"
_OTHER_WORD: Final = r"[\p{M}\p{Pc}\u{200C}\u{200D}]"
r"""In ``\w`` for Rust and not for Python. The reverse cases (``²``) are searched as ``\S``."""
_RULES: Final[tuple[tuple[str, Masker], ...]] = (
    (r"PRIVATE KEY", lambda text: _rule(_PRIVATE_KEY).sub(MASK, text)),
    ("|".join(_PREFIXED), lambda text: _rule(_KEYS).sub(MASK, text)),
    (r"(?i:bearer|basic)\s", lambda text: _rule(_SCHEME).sub(rf"\1\2{MASK}", text)),
    (r"://[^\s/]*@", lambda text: _rule(_USERINFO).sub(rf"\1\2{MASK}", text)),
    (r"(?i:[?&;](?:x-[^-\s]+-)?(?:sig|key|code|auth|pwd|pass|psw))", lambda text: _rule(_QUERY).sub(rf"\1{MASK}", text)),
    (rf"(?i:(?:^|[^\w-]|{_OTHER_WORD})--?(?:[a-z]\S*)?{_ANY_STEM})", lambda text: _rule(_OPTION).sub(_mask_option, text)),
    (r"(?i:identified\s+by\s|password\s+'|login\s+\S+\s+password\s)", lambda text: _rule(_STATEMENT).sub(rf"\1{MASK}", text)),
    (rf"(?i:<[^\s<>]*{_ANY_STEM}[^<>]*>)", lambda text: _rule(_TAG).sub(_mask_tag, text)),
    (rf"(?:{_PROGRAM})(?:\.exe)?[\s\"'].*(?:-|pass:)", lambda text: _rule(_LINE).sub(_mask_line, text)),
    (r"(?i:cookie|authorization|x-api-key|x-auth-token)\s*:", lambda text: _rule(_HEADER).sub(_mask_header, text)),
    (
        rf"(?i:{_ANY_STEM}[^\s:=：＝]*(?:\s*(?:[:=：＝是为為成]|[=-]>)|\s+(?:is|was|are|for|of|to|on|at)[\s:]"
        r"|[ _-]\S*(?:\s*(?:[:=：＝是为為成]|[=-]>)|\s+(?:is|was|are|for|of|to|on|at)[\s:])))",
        _mask_named,
    ),
)  # fmt: skip
"""The search pattern for Rust, which matches a superset; and the rule, which runs after a match."""
_BY_LOOK: Final = 5
"""The number of rules, from the first, that recognise a secret by its form and not by a name before it."""
