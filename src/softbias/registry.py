"""A registry is a dict of names. Names from outside the package join by a call or by an entry point.

ATTENTION = Registry[type[Attention]]("attention", group="softbias.attention", subclass_of=Attention)
ATTENTION |= {"full": Full, "gated": Gated}
ATTENTION.register("mine", Mine)
ATTENTION.find("fading")            # an entry point of an installed package is loaded when its name is asked for
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any, TypeVar, cast

from softbias.errors import SoftbiasError, unknown_name

T = TypeVar("T")


class Registry(dict[str, T]):
    """kind          the word for an entry in messages
    group         the group of entry points in which other packages name their entries
    subclass_of   the base class, where entries are classes; instance_of: the class, where they are not
    """

    def __init__(self, kind: str, *, group: str, subclass_of: type | None = None, instance_of: type | None = None) -> None:
        super().__init__()
        self.kind, self.group = kind, group
        self.subclass_of, self.instance_of = subclass_of, instance_of

    def register(self, name: str, entry: T) -> T:
        """Make an entry from outside the package usable by its name, in Python and in every command."""
        if self.subclass_of and not (isinstance(entry, type) and issubclass(entry, self.subclass_of)):
            raise SoftbiasError(f"the {self.kind} {name!r} must be a subclass of {title(self.subclass_of)}, but is {entry!r}")
        if self.instance_of and not isinstance(entry, self.instance_of):
            raise SoftbiasError(f"the {self.kind} {name!r} must be a {title(self.instance_of)}, but is {entry!r}")
        if self.get(name, entry) != entry:
            raise SoftbiasError(f"the name {name!r} is taken by another {self.kind}, {title(self[name])}")
        self[name] = entry
        return entry

    def find(self, name: str) -> T:
        if name not in self:
            for point in entry_points(group=self.group, name=name):
                self.register(name, point.load())
        if name not in self:
            raise unknown_name(self.kind, name, self.names())
        return self[name]

    def parse_choice(self, text: str, extra: Iterable[str] = ()) -> tuple[str, dict[str, str]]:
        """The name and the options of an entry in the words of a user, "distance:layer=2,weight=0.01"; values stay text.

        extra   names that are allowed beside the entry's own keyword-only options
        """
        name, _, rest = text.strip().partition(":")
        parameters = inspect.signature(cast(Callable[..., Any], self.find(name))).parameters
        known = [*extra, *(each for each, parameter in parameters.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY)]
        given: dict[str, str] = {}
        for pair in filter(None, rest.split(",")):
            option, equals, value = pair.strip().partition("=")
            if not equals or not value:
                raise SoftbiasError(
                    f"options of a {self.kind} are NAME=VALUE after a colon, as in {name}:{known[0]}=2, but got {pair!r} in "
                    f"{text!r}"
                )
            if option not in known:
                raise unknown_name(f"option of the {self.kind} {name}", option, known)
            if option in given:
                raise SoftbiasError(f"{option} is given twice in {text!r}")
            given[option] = value
        return name, given

    def names(self) -> list[str]:
        """All names, ours first; entry points that are not loaded yet are included."""
        return [*self, *sorted({point.name for point in entry_points(group=self.group)} - set(self))]


def title(entry: Any) -> str:
    """The full name of a class or a function; other objects as they show themselves."""
    name = getattr(entry, "__qualname__", None)
    return f"{entry.__module__}.{name}" if name else repr(entry)
