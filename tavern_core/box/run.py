"""A program in a box, as a command: ``python -I -S run.py POLICY FOLDER -- PROGRAM ARGUMENT…``.

POLICY is the JSON of a `BoxPolicy`, or ``@N`` to read it from descriptor N. Standard streams and environment are inherited;
SIGTERM, SIGINT and SIGHUP end the program politely; the end of this process kills it. Exits like the program, or with
125 and a sentence on stderr if the box could not be created, 126 if the program cannot run. ``--probe`` alone
prints the layers of this machine, as JSON.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import NoReturn

if __name__ == "__main__":  # run by its path, without site-packages
    sys.path.append(__file__.rpartition("/tavern_core/")[0])

from tavern_core.box.policy import BoxPolicy, BoxUnavailable

_HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NO_BOX = 125
CANNOT_RUN = 126


def main(arguments: list[str]) -> NoReturn:
    """Run the command line; see above."""
    if arguments == ["--probe"]:
        from tavern_core.box.layer_probe import print_probe

        print_probe()
        sys.exit(0)
    if len(arguments) < 4 or arguments[2] != "--" or not arguments[3].startswith("/"):
        sys.exit("usage: run.py POLICY FOLDER -- /PROGRAM ARGUMENT…")
    try:
        policy = BoxPolicy.from_json(_read(arguments[0]))
    except (ValueError, OSError) as error:
        _say(f"run.py: this is not a policy: {error}")
        sys.exit(NO_BOX)
    _watch(policy, arguments[1], arguments[3:])


def _watch(policy: BoxPolicy, folder: str, argv: list[str]) -> NoReturn:
    from tavern_core.box import launcher
    from tavern_core.box.confine import close_others

    close_others(())
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDED_ON)  # signals that arrive now wait until there is a child
    try:
        started = launcher.start(policy, launcher.Program(argv, os.environ, folder))
    except BoxUnavailable as error:
        _say(error.message)
        os._exit(NO_BOX)
    if started.gateway is not None:  # it has no server
        started.gateway.socket.close()
    for descriptor in range(2):  # so that streams close when the program closes them
        os.close(descriptor)

    def hand_on(_number: int, _frame: object) -> None:
        with contextlib.suppress(OSError):
            os.kill(started.pid, signal.SIGTERM)

    for number in _HANDED_ON:
        signal.signal(number, hand_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDED_ON)
    ending = started.ending(os.waitpid(started.pid, 0)[1])
    if ending.missing is not None:
        _say(BoxUnavailable(*ending.missing).message)
        os._exit(NO_BOX)
    if ending.skipped:
        _say("run.py: this program ran without layers of the box: " + ", ".join(ending.skipped))
    if ending.errno:
        _say(f"{argv[0]} cannot be run: {os.strerror(ending.errno)}")
        os._exit(CANNOT_RUN)
    code = os.waitstatus_to_exitcode(ending.status) if ending.status >= 0 else CANNOT_RUN
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


def _read(word: str) -> bytes:
    if not word.startswith("@"):
        return os.fsencode(word)
    with open(int(word[1:]), "rb") as file:  # noqa: PTH123 - a descriptor
        return file.read()


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, text.encode(errors="replace") + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
