"""Nothing secret reaches a log: by mark, by name, by look, or because the host knows it. And logs stay small."""

from __future__ import annotations

import base64
import collections
import copy
import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tavern_core.schema.redact import MASK, compile_marked, compile_redactor, named_secrets, redact_text
from tavern_core.schema.secret_names import is_secret_name
from tavern_core.schema.secret_scanning import redact_sentence
from tests.rows import each_row

# Made up of pieces, so that no scanner takes this file for a leak.
SECRETS = {
    "openai": "sk-" + "proj-abcdefghijklmnop1234",
    "anthropic": "sk-" + "ant-api03-abcdefghijklmnop1234",
    "stripe": "sk_" + "live_abcdefghijklmnop",
    "github": "ghp" + "_abcdefghijklmnopqrstuvwxyz0123456789",
    "github fine": "github" + "_pat_11ABCDEFG0abcdefghijkl_xyz",
    "gitlab": "glpat" + "-abcdefghijklmnop1234",
    "slack": "xoxb" + "-123456789012-abcdefghijkl",
    "aws": "AKIA" + "IOSFODNN7EXAMPLE",
    "google": "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "huggingface": "hf" + "_abcdefghijklmnopqrstuvwxyz",
    "npm": "npm" + "_abcdefghijklmnopqrstuvwxyz0123456789",
    "telegram": "123456789" + ":AAabcdefghijklmnopqrstuvwxyz0123456",
    "alibaba": "LTAI" + "5tabcdefghijklmn",
    "groq": "gsk" + "_abcdefghijklmnopqrstuvwxyz",
    "jwt": "eyJ" + "hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
}


@each_row("secret", SECRETS.values(), ids=list(SECRETS))
@each_row("around", ["{}", "the key {} is mine", '"{}"', "url?key={}&x=1", "中文{}。", "a\n{}\nb"])
def test_keys_of_providers_are_found_by_their_look(secret: str, around: str) -> None:
    clean = redact_text(around.format(secret))
    assert secret not in clean
    assert MASK in clean


@each_row(
    ("text", "clean"),
    [
        ("Authorization: Bearer abcdef123456", "Authorization: ***"),
        ("curl -H 'Authorization: Basic dXNlcjpwYXNz' x", "curl -H 'Authorization: ***' x"),
        ("sent bearer abcdef123456 along", "sent bearer *** along"),
        ("Cookie: SESSDATA=abc; bili=1\r\nHost: x", "Cookie: ***\r\nHost: x"),
        ("postgres://user:pa55w0rd@host/db", "postgres://user:***@host/db"),
        ("see https://example.com:8080/a@b", "see https://example.com:8080/a@b"),
        ("password=hunter2", "password=***"),
        ("DB_PASSWORD: hunter2, x", "DB_PASSWORD: ***, x"),
        ("api_key='abc def' tail", "api_key='***' tail"),
        ('{"client_secret": "a\\"b", "n": 1}', '{"client_secret": "***", "n": 1}'),
        ("密码：abc123，完", "密码：***"),
        ("bilibiliCookie=SESSDATA%3D1", "bilibiliCookie=***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blbn", "***"),
        (
            "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
            "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        ),
        # what only talks about secrets stays readable
        ("/password: must be string, got integer 3", "/password: must be string, got integer 3"),
        ("the token is missing", "the token is missing"),
        (
            "extensions.a.get.cookie: is required and has no value",
            "extensions.a.get.cookie: is required and has no value",
        ),
        ("Authorization: must not be empty", "Authorization: must not be empty"),
        ("token_count: 512, max_tokens=100", "token_count: 512, max_tokens=100"),
        ("basic functionality of the keyboard", "basic functionality of the keyboard"),
        ("public_key: id", "public_key: id"),
        ("nothing to see", "nothing to see"),
        ("", ""),
    ],
)
def test_the_words_around_a_secret_stay(text: str, clean: str) -> None:
    assert redact_text(text) == clean
    assert redact_text(clean) == clean


@each_row("secret", ["s3cr3t-value", "hunter two", "密钥/值+=", 'quo"te\\d', "x" * 40])
def test_a_known_secret_is_found_in_every_usual_form(secret: str) -> None:
    raw = secret.encode()
    forms = [
        secret,
        quote(secret),
        quote(secret, safe=""),
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    ]
    for before, after in [(b"", b""), (b"u", b":"), (b"us:", b"x"), (b"use:", b"yz")]:
        forms += [
            base64.b64encode(before + raw + after).decode(),
            base64.urlsafe_b64encode(before + raw + after).decode(),
        ]
    for form in forms:
        for text in (form, f"a {form} b", f"x{form}y"):
            clean = redact_text(text, [secret])
            assert MASK in clean
            assert secret not in clean


@each_row(
    "form",
    [
        "clé/wert?x",
        "cl\\xe9/wert?x",
        "cl\\u00e9/wert?x",
        "cl%C3%A9%2Fwert%3Fx",
        "cl%c3%a9%2fwert%3fx",
        "cl%c3%a9/wert%3fx",
    ],
)
def test_no_letter_of_a_known_secret_is_left_of_any_form(form: str) -> None:
    assert redact_text(f"<{form}>", ["clé/wert?x"]) == f"<{MASK}>"


@each_row("secret", ["hunter two!", "密钥/值+=", '密"钥\\值'])
@each_row("ascii_only", [True, False])
@each_row("times", [0, 1, 2])
def test_a_known_secret_goes_whole_from_json_in_json(secret: str, ascii_only: bool, times: int) -> None:
    inner = secret
    for _ in range(times):
        inner = json.dumps(inner, ensure_ascii=ascii_only)[1:-1]
    assert redact_text(f"<{inner}>", [secret]) == f"<{MASK}>"


@pytest.mark.parametrize(
    ("made", "cut"),
    [(lambda inner: [inner, 1], "… (array of 2)"), (lambda inner: {"a": inner, "b": 1}, "… (object of 2)")],
)
def test_what_lies_too_deep_is_counted(made: Any, cut: str) -> None:
    value: Any = made(0)
    for _ in range(40):
        value = made(value)
    depth, copy = 0, compile_redactor()(value)
    while not isinstance(copy, str):
        depth, copy = depth + 1, copy[0] if isinstance(copy, list) else copy["a"]
    assert (depth, copy) == (24, cut)


def test_a_short_known_secret_is_masked_only_where_it_is_everything() -> None:
    assert redact_text("ab", ["ab"]) == MASK
    assert redact_text("cabin", ["ab"]) == "cabin"


MARKED = {
    "type": "object",
    "properties": {
        "pin": {"type": "string", "writeOnly": True},
        "login": {"$ref": "#/$defs/login"},
        "list": {"type": "array", "items": {"anyOf": [{"type": "string", "format": "password"}, {"type": "null"}]}},
        "map": {"additionalProperties": {"x-tavern": {"secret": True}}},
        "whole": {"x-tavern": {"secret": True}, "properties": {"a": {}}},
        "tree": {"$ref": "#/$defs/tree"},
        "codes": {"patternProperties": {"^code": {"format": "password"}}},
        "some": {"contains": {"writeOnly": True}},
    },
    "allOf": [{"properties": {"more": {"format": "password"}}}],
    "$defs": {
        "login": {"properties": {"user": {"type": "string"}, "code": {"oneOf": [{"writeOnly": True}]}}},
        "tree": {"properties": {"leaf": {"writeOnly": True}, "next": {"$ref": "#/$defs/tree"}}},
    },
}


@each_row(
    ("value", "clean"),
    [
        ({"pin": "1234"}, {"pin": MASK}),
        ({"pin": 1234}, {"pin": MASK}),
        ({"pin": None}, {"pin": None}),
        ({"pin": ""}, {"pin": ""}),
        ({"login": {"user": "me", "code": "1"}}, {"login": {"user": "me", "code": MASK}}),
        ({"list": ["a", None, 5]}, {"list": [MASK, None, MASK]}),
        ({"map": {"x": "y"}}, {"map": {"x": MASK}}),
        ({"whole": {"a": {"b": 1}}}, {"whole": MASK}),
        ({"tree": {"next": {"next": {"leaf": "s"}}}}, {"tree": {"next": {"next": {"leaf": MASK}}}}),
        ({"more": "s"}, {"more": MASK}),
        ({"pin": ["a", "b"]}, {"pin": MASK}),
        ({"map": [{"x": "y"}]}, {"map": MASK}),  # what is refused for its type is recorded, too
        ({"list": {"first": "a"}}, {"list": MASK}),
        ({"login": [["me", "1"]]}, {"login": MASK}),
        ({"tree": [{"next": {"leaf": "s"}}]}, {"tree": MASK}),
        ([1, {"map": 2}], [1, {"map": 2}]),  # an answer, which is recorded by the same marks
        ({"names": ["a"], "more_names": {"b": ["c"]}}, {"names": ["a"], "more_names": {"b": ["c"]}}),
        ("pin", "pin"),
        ({"codes": {"code1": "s"}}, {"codes": {"code1": MASK}}),
        ({"some": ["s"]}, {"some": [MASK]}),
    ],
)
def test_marks_of_the_schema_are_followed(value: Any, clean: Any) -> None:
    before = copy.deepcopy(value)
    assert compile_redactor(MARKED)(value) == clean
    assert value == before


@each_row(
    ("value", "texts"),
    [
        ({"pin": "1234", "open": "x"}, ["1234"]),
        ({"pin": 1234}, ["1234"]),
        ({"pin": True}, []),
        ({"pin": {"a": ["b", {"c": "d"}]}}, ["b", "d"]),  # all of a value below a mark
        ({"login": {"user": "me", "code": "1"}}, ["1"]),
        ({"list": ["a", None]}, ["a"]),
        ({"map": {"x": "y"}}, ["y"]),
        ({"whole": {"a": {"b": "c"}}}, ["c"]),
        ({"tree": {"next": {"leaf": "s", "other": "t"}}}, ["s"]),
        ("pin", []),
    ],
)
def test_the_texts_that_a_schema_marks_are_known(value: Any, texts: list[str]) -> None:
    marked = compile_marked(MARKED)
    assert marked is not None
    assert marked(value) == texts


def test_a_schema_without_marks_gives_no_texts_away() -> None:
    assert compile_marked({"properties": {"password_hint": {"type": "string"}}}) is None
    assert compile_marked(True) is None


# One secret, in each form in which texts give one away.
HIDDEN = r"""
--password hunter2X
tool --password=hunter2X --n 1
tool --password "hunter2X abc" x
["tool", "--password", "hunter2X"]
CREATE USER a IDENTIFIED BY 'hunter2X'
SET PASSWORD FOR a IDENTIFIED BY PASSWORD 'hunter2X'
ALTER ROLE a WITH PASSWORD 'hunter2X'
machine h.org login u password hunter2X
密码设为hunter2X
口令改成 hunter2X
['--token', 'hunter2X']
mysql -u root -phunter2X db
mysqldump --opt -uroot -p'hunter2X' db
mariadb -phunter2X
mariadb-dump -h x -phunter2X
/usr/bin/mysql -phunter2X
"mysql", "-phunter2X"
curl -u bob:hunter2X https://x
curl -s --user bob:hunter2X https://x
curl -sS "https://a?b=1&c=2" -u 'bob:hunter2X'
curl --proxy-user a:hunter2X x
curl -U a:hunter2X -u c:hunter2X x
['curl', '-u', 'bob:hunter2X']
https://x/y?sig=hunter2X&se=1
https://x/y?se=1&sig=hunter2X
https://x/y?X-Amz-Signature=hunter2X
https://x?token=hunter2X
https://x?a=1&access_token=hunter2X&b=2
https://x?key=hunter2Xhunter2X
https://x?code=hunter2Xhunter2X
the password is hunter2X
the password is: hunter2X
password is "hunter2X"
Password: hunter2X
my password was hunter2X, sorry
The API key is hunter2X
api key: hunter2X
session id: hunter2X
the secret token is 'hunter2X'.
密码是hunter2X
密码是 hunter2X
密码为：hunter2X
口令：hunter2X
登录密码 = hunter2X
密码是「hunter2X」
Authorization: Basic hunter2X
Authorization: Digest username="bob", realm="x", response="hunter2X"
{"h": "Authorization: Digest username=\"bob\", response=\"hunter2X\""}
authorization: token hunter2X
Authorization: hunter2X
X-Api-Key: hunter2X
X-Auth-Token: hunter2X
Proxy-Authorization: Basic hunter2X==
Set-Cookie: sid=hunter2X; HttpOnly
{"password": "hunter2X"}
{"a": "{\"password\": \"hunter2X\"}"}
{\"password\": \"hunter2X\", \"n\": 1}
{\\"password\\": \\"hunter2X\\"}
{'db_pass': 'hunter2X'}
{"passwords": ["hunter2X", "hunter2X"]}
{"credentials": {"user": "bob", "value": "hunter2X"}}
PGPASSWORD=hunter2X psql
export DB_PASS=hunter2X
dbpassword=hunter2X
jwt=hunter2X
auth: hunter2X
accesstoken=hunter2X
PHPSESSID=hunter2X
openai_key=hunter2X
ENCRYPTIONKEY=hunter2X
postgres://u:hunter2X@h/d
redis://:hunter2X@h
https://hunter2Xhunter2X1@github.com
postgres://u:a@hunter2X@h/d
mongodb+srv://u:hunter2X@h
Server=x;Database=y;User Id=z;Password=hunter2X;
jdbc:mysql://h/d?user=a&password=hunter2X
sshpass -p hunter2X ssh x
sshpass -phunter2X ssh x
redis-cli -h x -a hunter2X
docker login -u a -p hunter2X
ldapsearch -x -w hunter2X
sqlcmd -S x -U sa -P hunter2X
openssl enc -pass pass:hunter2X
7z a -phunter2X x.7z
password=it'shunter2X
password=a,hunter2X
token=abc)hunter2X
password -> hunter2X
password => "hunter2X"
<password>hunter2X</password>
--header "X-API-Key: hunter2X"
http -a bob:hunter2X example.com
-storepass hunter2X
clientSecret: hunter2X
"clientSecret" : "hunter2X"
password:hunter2X
token:hunter2X
the password for bob is hunter2X
your password: hunter2X
passphrase="hunter2X"
İİ DB_PASS=hunter2X
PGPASSWORD=hunter2X İ
Set-Cookie: hunter2X is set
Cookie: hunter2X required
""".strip().splitlines()
KEPT = """
the token is missing
password is required
the password is: required
the password is too short
password must be at least 8 characters
password: must be string
Authorization: must not be empty
token_count: 512
max_tokens=100
author: Jane
authority is x
keyboard: qwerty
the monkey is funny
key: value
primary_key=id
tokenizer: bpe
passenger: Bob
secretary: Eve
signal=9
authenticated: true
auth_type: basic
password: ${PASSWORD}
password: {$env: DB_PASSWORD}
"password": {"$env": "DB_PASSWORD"}
usage: tool [--password PASSWORD]
--token TEXT
--password must be given
use --password or --token
docker run -u 1000:1000 -p 80:80 x
sort -u a:b
curl -X POST http://x
mysql -p db
ssh -p 22 host
mysql -P 3306
scp a:b c:d
see https://example.com:8080/a@b
http://localhost:8080/x@y
mail bob@example.com
basic functionality
bearer of news
secrets:github
密码是否正确
密码是必填的
密码不能为空
令牌数量：5
密码长度: 8
token is no such setting
the cookie is set by the server
token: "***"
password=***
https://x?key=name
https://x?code=200
the key is under the mat
the author is bob
passed: 12, failed: 3
compass = north
the token was refused by guard
what a token is and why
sessions: 5
signature: def f(x)
the credentials are wrong
tokens: 5
my keys are here
seed: 42
backup: yes
conn: 5
the connection is closed
recovery: none
password hint: blue
the password field is hidden
password (required)
https://user@host/path
git@github.com:a/b.git
ssh://git@github.com/a/b
""".strip().splitlines()


@each_row("text", HIDDEN)
def test_a_secret_is_found_in_every_form_in_which_it_is_given(text: str) -> None:
    clean = redact_text(text)
    assert "hunter2" not in clean
    assert MASK in clean
    assert redact_text(clean) == clean


@each_row("text", KEPT)
def test_what_only_speaks_of_secrets_stays_readable(text: str) -> None:
    assert redact_text(text) == text


@each_row("text", ['password is "required"', "the token is 'missing'", 'password: "short"', "密码是「空」"])
def test_a_quoted_word_is_a_secret_even_where_it_could_go_on_a_sentence(text: str) -> None:
    assert MASK in redact_text(text)


def fragments() -> list[str]:
    words = {part for text in [*HIDDEN, *KEPT] for part in re.findall(r"\w+|\W", text)}
    return [*sorted(words), *SECRETS.values(), "\ud800", "K", "ſ", "İ", "中文", "A" * 30, "-----BEGIN PRIVATE KEY-----"]


@pytest.mark.slow
@example(parts=["İ", "--password hunter2X"], swap=True)
@example(parts=["--a²password hunter2X"], swap=False)
@example(parts=["a‿--password hunter2X"], swap=False)
@example(parts=["https://a/?x-a²z-sig=hunter2X"], swap=False)
@example(parts=["password ²a: hunter2X"], swap=False)
@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from(fragments()), st.sampled_from([*HIDDEN, *KEPT])), min_size=1, max_size=12),
    st.booleans(),
)
def test_the_quick_question_never_hides_what_a_rule_would_find(parts: list[str], swap: bool) -> None:
    """Half a character cannot be asked about, so every rule looks at such a text: the same is found with and without it."""
    text = "".join(parts).swapcase() if swap else "".join(parts)
    assert redact_text(text) == redact_text("\udfff\n" + text)[2:]


@pytest.mark.slow
@pytest.mark.parametrize("glue", [" ", "\n"])
def test_long_texts_are_searched_wherever_a_secret_stands(glue: str) -> None:
    """They are read in pieces: none of the places where a piece ends hides anything."""
    texts = [text for text in HIDDEN if len(text) < 80]
    filler = "lorem ipsum dolor" + glue
    long = "\n" + "\n".join(f"{filler * (450 + n)}\n{texts[n % len(texts)]}" for n in range(4 * len(texts)))
    assert len(long) > 1_000_000
    clean = redact_text(long)
    assert "hunter2" not in clean
    assert clean.count("lorem") == long.count("lorem")


@each_row(
    "spelling",
    [str, quote, ascii, lambda text: text.encode().hex(), lambda text: repr(text.encode())],
    ids=["plain", "in an address", "ascii", "hexadecimal", "bytes"],
)
def test_a_known_secret_is_found_in_each_spelling_without_the_blanks_around_it(spelling: Callable[[str], str]) -> None:
    written = spelling("correct-hörse-1")
    inner = written.lstrip("b").strip("'")
    shown = redact_text(f"it is <{written}> there", ["\n correct-hörse-1 \n"])
    assert shown == f"it is <{written}> there".replace(inner, "***")


LONG: dict[str, tuple[str, str]] = {
    "a long address": (f"https://{'u' * 256}:hunter2{'p' * 505}@host", f"https://{'u' * 256}:***@host"),
    "a long value": (f"password={'p' * 4_080}hunter2", "password=***"),
    "a long header": (f"Cookie: {'a=b; ' * 1_500}c=hunter2", "Cookie: ***"),
    "a long key": (f"sk-{'a1' * 15_000}hunter2", "***"),
    "two words": ("api key=hunter2X", "api key=***"),
    "the rest of a word": (
        f"task-management-and-planning {'a ' * 500}password=hunter2X",
        f"task-management-and-planning {'a ' * 500}password=***",
    ),
}


@each_row("case", LONG)
@each_row("offset", [-8_000, -795, -790, -600, -77, -20, -9, -4, -2, -1, 0, 1])
def test_a_secret_across_the_end_of_a_piece_goes_whole_and_alone(case: str, offset: int) -> None:
    written, shown = LONG[case]
    before, after = ("lorem ipsum " * 4_000)[: 2 * 16_384 + offset - 1], "dolor sit " * 4_000
    assert redact_text(f"{before} {written}\n{after}") == f"{before} {shown}\n{after}"


@pytest.mark.parametrize("length", [40_000, 200_000])
def test_a_key_longer_than_a_piece_goes_whole(length: int) -> None:
    key = f"-----BEGIN PRIVATE KEY-----\n{'MIIB' * (length // 4)}\n-----END PRIVATE KEY-----"
    assert redact_text(f"{'a ' * 30_000}{key}{' b' * 30_000}") == f"{'a ' * 30_000}***{' b' * 30_000}"


SECRET_NAMES = """
    PGPASSWORD dbpassword DB_PASS jwt auth accesstoken PHPSESSID openai_key ENCRYPTIONKEY JSESSIONID SESSDATA connect.sid
    sessionid session_id apikey api-key apiKey APIKEY APIKey api_keys X-Api-Key X-Auth-Token secretkey privatekey
    privateKeyPem client_secret clientSecret CLIENTSECRET webhookSecret signing_key SIGNINGKEY anthropicKey STRIPEKEY
    OPENAI_API_KEY AWS_SECRET_ACCESS_KEY aws_session_token GITHUB_TOKEN refreshtoken access_tokens id_token csrf_token
    oauth oauth2 oauth_token basic_auth basicAuth proxyAuthorization Authorization bearer password PASSWORD password2
    passwords db.pass smtp_pass sshpass MYSQL_PWD pwd passwd passphrase kennwort passkey credential credentials creds
    cookie cookies bilibiliCookie Set-Cookie connectionstring connectionString conn_str dsn sas otp token secrets 密码 登录密码
    访问令牌 口令 密碼
"""
HARMLESS_NAMES = """
    author authors authority authentic authenticated is_authenticated auth_type auth_url authMethod key keys keyboard
    keynote keyword keyframe monkey turkey hockey hotkey primary_key foreign_key public_key partition_key sort_key
    cache_key idempotency_key key_name key_id access_key_id passenger passive passage passport passed passing bypass
    compass compassion test_pass passRate pass_count password_policy passwordPolicy secretary secretariat secret_name
    bearer_methods_supported authorization_servers
    signal signature tokens tokenizer tokenizer_config tokenize max_tokens prompt_tokens completionTokens token_count
    token_limit next_page_token pageToken eos_token cookieUrl cooking session sessions assess assassin connection conn
    design credit credits 密码长度 密码策略
"""


@each_row(
    ("name", "secret"), [(n, True) for n in SECRET_NAMES.split()] + [(n, False) for n in ["", *HARMLESS_NAMES.split()]]
)
def test_names_give_a_secret_away(name: str, secret: bool) -> None:
    """In a mapping, in an assignment, in JSON inside a text and on a command line: one table decides."""
    clean = compile_redactor()(
        {
            name: "hunter2X",
            "text": f"{name or 'x'}=hunter2X",
            "json": json.dumps({name: "hunter2X"}, ensure_ascii=False),
        }
    )
    assert is_secret_name(name) is secret
    assert clean[name] == (MASK if secret else "hunter2X")
    for text in (
        clean["text"],
        clean["json"],
        redact_text(f"run --{name} hunter2X") if name.isascii() and name else clean["text"],
    ):
        assert ("hunter2X" not in text) is secret, text


def test_a_list_of_words_of_a_command_line_hides_what_follows_its_option() -> None:
    redact = compile_redactor()
    assert redact({"argv": ["tool", "--password", "x1", "--n", "2"]}) == {
        "argv": ["tool", "--password", MASK, "--n", "2"]
    }
    assert redact(["--password", "x1", "y"]) == ["--password", MASK, "y"]
    assert redact(["--max-tokens", "5", "-", "token", "x"]) == ["--max-tokens", "5", "-", "token", "x"]


def test_an_option_hides_what_it_is_given_and_no_further_option() -> None:
    assert redact_text("tool --password=-hunter2X --n 1") == f"tool --password={MASK} --n 1"
    assert redact_text("tool --password --verbose") == "tool --password --verbose"


def test_a_sentence_keeps_an_ordinary_word_outside_quotes() -> None:
    sentence = "'please' is not a token, please look"
    assert redact_sentence(sentence, (), ["please"]) == f"'{MASK}' is not a token, please look"


def test_plain_values_stay_what_they_are() -> None:
    redact = compile_redactor(known_secrets=["hunter2X"])
    assert redact([True, False, None, 7, 1 << 80, float("inf")]) == [
        True, False, None, 7, "<integer of 81 bits>", "Infinity",
    ]  # fmt: skip
    assert redact(True) is True


def test_an_ordinary_word_under_a_secret_name_is_redacted_nowhere_else() -> None:
    assert named_secrets({"auth": "basic", "token": "none", "password": "S3cret-1", "n": {"api_key": "k-77"}}) == [
        "k-77",
        "S3cret-1",
    ]


def test_everything_below_a_secret_name_is_a_secret() -> None:
    assert named_secrets({"password": {"a": "S3cret-1", "b": ["S3cret-2", ("S3cret-3", 77)]}, "c": "S3cret-4"}) == [
        "77",
        "S3cret-3",
        "S3cret-2",
        "S3cret-1",
    ]


def test_known_secrets_may_be_learnt_later() -> None:
    known: list[str] = []
    redact = compile_redactor(known_secrets=lambda: known)
    assert redact(["abcdefgh"]) == ["abcdefgh"]
    known.append("abcdefgh")
    assert redact({"x": ["the abcdefgh!", "abcdefgh"], "abcdefgh": 1}) == {"x": ["the ***!", MASK], MASK: 1}
    known.append("123456")
    assert redact(123456) == MASK
    assert redact({"x": 123456, "y": [123456, 12345]}) == {"x": MASK, "y": [MASK, 12345]}


@pytest.mark.slow
def test_the_copy_is_small_plain_json_whatever_came_in() -> None:
    endless: dict[str, Any] = {"list": []}
    endless["list"].append(endless)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    shared: list[Any] = []
    for _ in range(60):
        shared = [shared, shared]

    class Hostile(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("no")

        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    class Secretive:
        def __repr__(self) -> str:
            return "hunter2"

    values = [
        endless, deep, shared, Hostile(a=1), Secretive(), {Secretive(): 1}, {1: 2, None: 3}, {1, 2}, (1, 2), b"bytes", float("nan"),
        [float("inf"), float("-inf")], 10**5000, "\ud800", {"\ud800": 1}, collections.OrderedDict(a=1), list(range(100_000)),
        {str(n): n for n in range(100_000)}, "x" * 10_000_000, {"x" * 100_000: 1}, Exception("hunter2"), print, type, ..., 1j,
    ]  # fmt: skip
    for value in values:
        text = json.dumps(compile_redactor(MARKED)(value), allow_nan=False)
        assert len(text) < 200_000
        assert "hunter2" not in text
        text.encode("utf-8")
    assert compile_redactor()("x" * 10_000) == "x" * 2_000 + "… (10,000 characters)"


def test_a_secret_at_the_edge_of_what_is_shown_does_not_shine_through() -> None:
    secret = SECRETS["github"]
    for length in range(1_990, 2_005):
        shown = compile_redactor()("x" * (length - 10) + " " + secret + " " + "y" * 5_000)
        assert secret[:12] not in shown


anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.binary(),
        st.sampled_from(list(SECRETS.values())),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=8), st.sampled_from(["token", "url"])), inner, max_size=4),
    ),
    max_leaves=10,
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(anything)
def test_no_planted_secret_survives_and_nothing_raises(value: Any) -> None:
    clean = compile_redactor(MARKED)(value)
    text = json.dumps(clean, allow_nan=False, ensure_ascii=False)
    assert not any(secret in text for secret in SECRETS.values())
    assert compile_redactor(MARKED)(clean) == clean


@pytest.mark.slow
@each_row(
    "piece",
    [
        "a",
        "sk-",
        "token=",
        "://",
        "a://b:",
        "-----BEGIN PRIVATE KEY-----",
        "eyJ",
        "bearer ",
        "a.",
        '"',
        'key: "\\',
        "=",
        "密码：", "--a", "-a ", "curl -u a ", "mysql -p", "&sig=", "key", "<key>", "<key ", "password is ", "password is:", "key for ", 'token="', "token=[",
        "token={", 'pass\\"', "token=a,", "key_", 'Authorization: ="', "token=a\\", "token={$env ", "key = key: ",
    ],
)  # fmt: skip
def test_hostile_text_is_read_in_linear_time(piece: str) -> None:
    """A quadratic pattern would take minutes on this text."""
    text = piece * (1_000_000 // len(piece))
    redact_text(text[:400_000])
    assert len(compile_redactor()(text)) < 3_000
