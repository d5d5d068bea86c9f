"""The tool count_words: {"text": "..."} on stdin, {"words": ..., "characters": ...} on stdout.

Whatever goes wrong is said as {"error": {"message": "...", "hint": "..."}}. Print nothing else: stdout is the answer.
"""

import json
import sys


def main() -> None:
    request = json.load(sys.stdin)  # the arguments by name, and "config" with the tool's settings
    text = request["text"]
    answer = {"words": len(text.split()), "characters": len(text)}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
