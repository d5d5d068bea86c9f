"""The table that defines secrets: marks in a schema, and names of secrets.

Logs, audit, errors, settings, the environment of scripts, run records and terminal output use `is_secret_name`; texts are
searched by `secret_scanning`, whose rules start with `STEMS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final


def words_of(text: str) -> frozenset[str]:
    """The words of a table."""
    return frozenset(text.split())


_WORDS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^\W\d_A-Za-z]+")
_LONGEST_NAME: Final = 200

_KEY_OF: Final = words_of(
    # the purpose of a key, or its issuer: `signing_key`, `OPENAI_KEY`, `ENCRYPTIONKEY`
    """
    access account admin aes api application app auth client consumer crypto decrypt decryption deploy developer ecdsa ed25519 enc
    encrypt encryption fernet gpg hmac jwk jwt licence license management master oauth pass pgp priv private rsa sas scm secret
    server service session shared sign signature signing ssh ssl subscription tls vault webhook wireguard wpa x509
    aliyun alibaba amap anthropic apify ark assemblyai aws azure baichuan baidu bedrock bing brave cerebras claude cloudflare
    cohere dashscope datadog deepgram deepl deepseek digitalocean discord doubao elasticsearch elevenlabs exa figma firebase
    firecrawl fireworks gcp gemini github gitlab google grafana grok groq heroku hf huggingface hunyuan jina kimi langfuse
    langsmith mailchimp mailgun mapbox minimax mistral moonshot newrelic notion nvidia ollama openai openrouter openweather
    openweathermap paypal perplexity pinecone postmark qdrant qwen replicate resend sendgrid sentry serpapi serper shopify
    siliconflow slack stability stripe supabase tavily telegram tencent tongyi twilio vercel volcengine voyage weaviate
    wolfram xai youtube zhipu
    """
)
_NO_PASS: Final = words_of(
    "all band boarding by each final first fourth forward hall last low max min multi next num one per pre previous render season second "
    "single test tests third total two did does can will should must may has not"
)
"""Before `pass`: a pass that is not a password."""
_PASS_OF: Final = words_of(
    "admin cert db database ftp http https imap jdbc key keystore ldap login mail mongo my mysql pg pop pop3 postgres proxy redis root smtp "
    "sql ssh ssl store sudo truststore user vpn web wifi"
)
_TOKENS_OF: Final = words_of("access api auth bearer bot csrf id oauth refresh security session")
_NO_TOKEN: Final = words_of(
    "bos cancel cancellation cls continuation cursor each eos first last mask next pad page per sep special stop sync unk"
)
"""Before `token`: a token that counts, ends or continues something."""
_CHINESE: Final = (
    "密码",
    "密碼",
    "口令",
    "密钥",
    "秘钥",
    "密鑰",
    "金钥",
    "金鑰",
    "令牌",
    "私钥",
    "私鑰",
    "凭证",
    "凭据",
    "憑證",
)
_ENDINGS: Final = (
    "password", "passwords", "passwd", "passwort", "kennwort", "passphrase", "passphrases", "passcode", "pwd", "secret",
    "token", "jwt", "credential", "credentials", "creds", "cookie", "cookies", "authorization", "sessionid", "sessid", "sessdata",
    "connectionstring", "connstr", "mnemonic", "otp", *_CHINESE, "пароль", "パスワード", "비밀번호",
    *(f"{word}key" for word in _KEY_OF - {"app", "enc"}),
    *(f"{word}keys" for word in ("access", "api", "private", "secret")),
    *(f"{word}pass" for word in _PASS_OF),
    *(f"{word}tokens" for word in _TOKENS_OF - {"id"}),
)  # fmt: skip
"""A word with this ending is secret: `PGPASSWORD`, `accesstoken`, `PHPSESSID`, `登录密码`."""
_NO_ENDINGS: Final = frozenset({"hotp"})
_WHOLE: Final = frozenset({"bearer", "cvv", "cvc", "psk", "secrets", "totp", "xoauth"})
_LAST: Final = frozenset({"auth", "oauth", "aspxauth", "basicauth", "httpauth", "proxyauth", "sas", "dsn", "pass"})
"""Secret if nothing follows: `auth` is, `auth_type` is not."""
_PAIRS: Final = frozenset({
    "session id", "session data", "sess id", "connection string", "connection strings", "conn string", "conn str", "connect sid",
    "seed phrase", "recovery phrase", "recovery code", "recovery codes", "backup codes", "pass phrase", "pass word", "pass code",
    "access signature", "hub signature", "hmac signature", "amz signature", "goog signature", "webhook signature", "sas url",
    *(f"{word} key{s}" for word in _KEY_OF for s in ("", "s")),
    *(f"{word} tokens" for word in _TOKENS_OF),
})  # fmt: skip
_HARMLESS_NEXT: Final = words_of(
    """
    age alg algorithm attempts budget consent count counter counting counts created description domain enabled encoding endpoint
    expired expires expiry exists field fields file format hint host id ids index invalid issuer kind label length lifetime limit
    limits location manager max method methods min missing mode name names needed offset optional path pattern placeholder policy port
    position prefix present provider realm regex required rotation rule rules scheme scope scopes server servers set settings size
    status store strength style suffix supported title ttl type types updated uri url usage used valid validity vault version
    """
)
"""A word after the name of a secret that makes it a property *of* the secret (`token_count`, `password_policy`)."""

STEMS: Final = (
    "pass", "kennwort", "pwd", "secret", "token", "key", "cred", "cookie", "auth", "jwt", "sess", "conn", "mnemonic", "seed",
    "recovery", "backup", "otp", "dsn", "sas", "bearer", "cvv", "cvc", "psk", "signature", *_CHINESE, "пароль", "パスワード", "비밀번호",
)  # fmt: skip
"""Each secret name contains one of these, in any case."""


def is_secret_schema(schema: Mapping[str, Any]) -> bool:
    """True if a schema marks its value as secret: `writeOnly`, `format: password`, `x-tavern: {secret: true}`."""
    marks = schema.get("x-tavern")
    return (
        schema.get("writeOnly") is True
        or schema.get("format") == "password"
        or (isinstance(marks, Mapping) and marks.get("secret") is True)
    )


def is_secret_name(name: str) -> bool:
    """True if the name of a key indicates a secret value.

    >>> [is_secret_name(n) for n in ("api_key", "bilibiliCookie", "PGPASSWORD", "max_tokens", "token_count", "keyboard")]
    [True, True, True, False, False, False]
    """
    return _is_secret(name[:_LONGEST_NAME])


def is_secret_variable(name: str) -> bool:
    """`is_secret_name`, for environment variables, whose names end in more words of secrets: ``DB_PASS``."""
    return is_secret_name(name) or name.upper().endswith(("KEY", "PASS", "AUTH", "CREDS"))


@lru_cache(maxsize=4_096)
def _is_secret(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    for at, word in enumerate(words):
        before = words[at - 1] if at else ""
        following, after = (*words[at + 1 : at + 3], "", "")[:2]
        if f"{word} {following}" in _PAIRS:
            if after not in _HARMLESS_NEXT:
                return True
        elif _is_secret_word(word, before) and following not in _HARMLESS_NEXT and (not following or word not in _LAST):
            return True
    return False


def _is_secret_word(word: str, before: str) -> bool:
    if word == "token":
        return before not in _NO_TOKEN
    if word == "pass":
        return before not in _NO_PASS
    return word in _WHOLE or word in _LAST or (word.endswith(_ENDINGS) and word not in _NO_ENDINGS)
