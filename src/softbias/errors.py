"""Errors that a user can mend: they say what was given, what is allowed, and what to do next.

The command line prints a `SoftbiasError` or an `OSError` as one line and exits with status 2. Any other exception is a bug of
ours and shows its traceback. A subclass exists where a caller decides by it; nobody decides by the text of a message.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class SoftbiasError(ValueError):
    """A mistake that the user can mend."""


class UnknownNameError(SoftbiasError):
    """A name that is not among the choices."""


class NoClassesError(SoftbiasError):
    """The pictures of a folder are in no classes, or all in one; learning without labels takes them as they are."""


class FewTokensWarning(UserWarning):
    """A model splits images into so few patches that attention has little to choose from."""


class NotMeasurableError(SoftbiasError):
    """The model or the data has nothing of the kind that was asked for, such as the gates of a DeiT."""


def unknown_name(kind: str, given: object, choices: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not among the choices.

    >>> unknown_name("attention", "gatd", ["full", "gated"])
    UnknownNameError("there is no attention 'gatd'; did you mean 'gated'? The choices are full, gated")

    Names that have commas are parted by semicolons.
    """
    names = sorted(choices)
    parted = "; " if any("," in name for name in names) else ", "
    nearest = difflib.get_close_matches(str(given), names, n=1)
    hint = f"did you mean {nearest[0]!r}? The" if nearest else "the"
    return UnknownNameError(f"there is no {kind} {given!r}; {hint} choices are {parted.join(names)}")


def describe_error(error: BaseException) -> str:
    """An error in one line: the message of one that a user can mend, and any other with its type.

    >>> describe_error(SoftbiasError("there is no image")), describe_error(ZeroDivisionError("division by zero"))
    ('there is no image', 'ZeroDivisionError: division by zero')
    """
    return str(error) if isinstance(error, SoftbiasError | OSError) else f"{type(error).__name__}: {error}"


def in_one_line(error: Exception) -> str:
    """Why a file could not be read, without its name and without line breaks.

    >>> in_one_line(FileNotFoundError(2, "No such file or directory", "nothing.yaml"))
    'No such file or directory'
    """
    return getattr(error, "strerror", None) or " ".join(str(error).split())


MOST_NAMED = 3  # tensors in a message


class UnfitWeightsError(SoftbiasError):
    """Weights whose names or shapes are not those of the model.

    differences   some of them, in words
    """

    def __init__(self, wrong: Sequence[str], hint: str = "") -> None:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        self.differences = "; ".join(wrong[:MOST_NAMED]) + more
        super().__init__(f"the weights do not fit: {self.differences}{hint}")
