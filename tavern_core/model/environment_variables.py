"""Environment variables of the host: which of them programs and workers of plugins get, and which are never passed.

passed       passed to all; they contain no secrets
refused      never passed: they make interpreters, loaders and common programs run unreviewed code
all others   each needs its own permission: ``env:<NAME>``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

PASSED: Final = frozenset(
    {"HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER"}
)
"""Also ``LC_*``."""
FIXED: Final[Mapping[str, str]] = {
    "PYTHONUTF8": "1",  # JSON is UTF-8, independent of the locale
    "PYTHONIOENCODING": "utf-8",
    "PYTHONDONTWRITEBYTECODE": "1",  # a program's folder must not be written
    "NO_COLOR": "1",
}
"""Variables that are set for every program of a plugin or an upstream."""
PERMISSION: Final = "env:"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
_REFUSED: Final = (
    # loaders and the C library
    "LD_*", "LDR_*", "DYLD_*", "GCONV_PATH", "GETCONF_DIR", "GLIBC_TUNABLES", "HOSTALIASES", "LOCPATH", "MALLOC_*", "NIS_PATH", "NLSPATH",
    "RESOLV_HOST_CONF",
    # Python and its tools
    "PYTHON*", "PIP_*", "PYTEST_*", "UV_*", "VIRTUAL_ENV", "CONDA_*",
    # JavaScript
    "NODE_COMPILE_CACHE", "NODE_EXTRA_CA_CERTS", "NODE_OPTIONS", "NODE_PATH", "NODE_REPL_EXTERNAL_MODULE", "NODE_V8_COVERAGE", "NPM_CONFIG_*", "BUN_*",
    "DENO_*",
    "TS_NODE_*", "TSX_*", "ELECTRON_*", "YARN_*", "COREPACK_*", "IPYTHONDIR", "JUPYTER_*", "PYENV_*", "NUMBA_*", "TORCH_EXTENSIONS_DIR", "TRITON_*", "HF_MODULES_CACHE",
    # shells
    "BASH_ENV", "BASHOPTS", "ENV", "FPATH", "IFS", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS4", "SHELLOPTS", "ZDOTDIR", "XDG_CONFIG_*", "XDG_DATA_*",
    # other languages
    "PERL5*", "PERLLIB", "PERL_*", "RUBY*", "GEM_*", "BUNDLE_*", "CLASSPATH", "JAVA_*", "_JAVA_*", "JDK_JAVA_*", "MAVEN_*", "GRADLE_*", "ANT_*", "SBT_*",
    "PHPRC", "PHP_INI_*", "LUA_*", "LUAJIT_*", "TCLLIBPATH", "TCL_LIBRARY", "R_*", "JULIA_*", "ERL_*", "ELIXIR_*", "GOENV", "GOFLAGS", "GOPATH", "GOROOT",
    "GOTOOLCHAIN", "CARGO_*", "RUSTC*", "RUSTFLAGS", "RUSTUP_*", "DOTNET_*", "CORECLR_*", "COR_*", "COMPLUS_*", "GUILE_*", "EMACSLOADPATH",
    # programs that use them to start others or to load code
    "GIT_*", "SSH_ASKPASS", "SUDO_ASKPASS", "LESSOPEN", "LESSCLOSE", "MAKEFILES", "MAKEFLAGS",
    "RSYNC_RSH", "CVS_RSH", "PSQLRC", "LIBMYSQL_*", "CUDA_INJECTION*", "GI_TYPELIB_PATH", "LADSPA_PATH", "VK_*", "OCL_*", "LIBVA_*", "ODBC*", "MAGICK_*",
    "GNUMAKEFLAGS", "VIMINIT", "EXINIT", "OPENSSL_*", "GIO_*", "GTK_*", "QT_*", "GST_*", "SASL_*", "PKCS11_*",
    # the host's own
    "TAVERN_*",
)  # fmt: skip
"""Names, and prefixes of names (``*``), in capitals; any case is refused."""
_NAMES: Final = frozenset(name for name in _REFUSED if not name.endswith("*"))
_PREFIXES: Final = tuple(name[:-1] for name in _REFUSED if name.endswith("*"))


def is_name(written: object) -> bool:
    """True for a valid name of a variable."""
    return isinstance(written, str) and _NAME.match(written) is not None


def is_passed(name: str) -> bool:
    """True for a variable that is passed to all."""
    return name in PASSED or name.startswith("LC_")


def is_refused(name: str) -> bool:
    """True for a variable that is never passed, whatever was granted."""
    capitals = name.upper()
    return capitals in _NAMES or capitals.startswith(_PREFIXES)


def permission_for(name: str) -> str:
    """The permission that a variable needs; empty for one that is passed to all."""
    return "" if is_passed(name) else f"{PERMISSION}{name}"
