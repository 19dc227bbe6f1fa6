"""What is printed. Names of files and classes come from anywhere, so every line on its way to the terminal is made harmless.

    echo("softbias: stopped", file=sys.stderr)        # instead of print
    make_console().print(table)                            # instead of rich's Console

Control characters, of which terminals make commands, and characters that turn the direction of writing are shown escaped:
`\\x1b`, `\\u202e`. A line stays a line: a line break inside a name is shown as `\\n`. Outside of a terminal tables are as
wide as they need to be.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from softbias import environment

if TYPE_CHECKING:
    from rich.console import Console

WIDE = 1000  # columns of a file or pipe
DANGEROUS = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # line breaks
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    "\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible ones
    "\ud800-\udfff"  # bytes of a file's name that are no text
    "]"
)


def printable(text: object, keep: str = "") -> str:
    """Text without characters that a terminal obeys; those in `keep` stay.

    >>> printable("cat\\x1b[31m\\n\\u202e.jpg")
    'cat\\\\x1b[31m\\\\n\\\\u202e.jpg'
    """
    return DANGEROUS.sub(lambda found: found[0] if found[0] in keep else escape(found[0]), str(text))


def escape(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # how Python keeps a byte that is no text
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def echo(*lines: object, file: IO[str] | None = None, flush: bool = False) -> None:
    """Print lines, each of which stays one; a tab separates cells, see `cells`."""
    stream = file or sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    for line in lines or ("",):
        text = printable(line, keep="\t")
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=flush)


def counted(count: int, word: str) -> str:
    """A number of things in words.

    >>> counted(1, "step"), counted(2000, "step")
    ('1 step', '2,000 steps')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def show_count(done: int, total: int) -> None:
    """How much of a long work is done, in a line of the terminal that each call replaces; elsewhere nothing."""
    if sys.stderr.isatty():
        print(f"\r{done:,} of {total:,}" + ("\r\x1b[K" if done == total else ""), end="", file=sys.stderr, flush=True)


def cells(*values: object) -> str:
    """Values of one line, separated by tabs, of which none can contain one.

    >>> cells("a\\tb.jpg", "cat")
    'a\\\\tb.jpg\\tcat'
    """
    return "\t".join(map(printable, values))


def make_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """A rich console for text from anywhere: it reads no markup in it, and escapes what `printable` escapes."""
    stream = sys.stderr if stderr else sys.stdout
    if width is None and not stream.isatty():
        given = environment.variable("COLUMNS") or ""
        width = max(80, int(given)) if given.isdecimal() and len(given) < 6 else WIDE
    made: Console = console_type()(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)
    return made


@cache
def console_type() -> Any:
    """rich is imported only where something is drawn."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, renderable: Any, options: Any = None) -> Any:
            for segment in super().render(renderable, options):
                harmless = segment.control or segment.text.isprintable()
                yield segment if harmless else Segment(printable(segment.text, keep="\n"), segment.style)

    return SafeConsole
