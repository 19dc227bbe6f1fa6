"""The look of everything we draw: one palette for light and dark, and the colors, markers and dashes of series.

Style sheets, matplotlib and the scripts of pages take their colors from here. A series keeps its color, marker and dash in
all charts of a page. People with any color vision can tell the colors apart, and each has enough contrast for text on the
paper of its theme; the marker repeats the distinction. From the ninth series on the colors return with another marker and
another dash, so that no two of 32 series look alike, neither as points nor as lines.
"""

from __future__ import annotations

from collections.abc import Mapping

PALETTE = {
    "light": {
        "paper": "#ffffff", "panel": "#f5f7f9", "ink": "#1b1f24", "soft": "#57606a", "line": "#d8dee4",
        "good": "#1a6b34", "warn": "#fff1e0", "chosen": "#e4eefa",
        "c0": "#0b5cad", "c1": "#b34700", "c2": "#00705a", "c3": "#95298a", "c4": "#7d6100", "c5": "#3d4fc4", "c6": "#a3223f",
        "c7": "#4a5560",
    },
    "dark": {
        "paper": "#14171b", "panel": "#1d2228", "ink": "#e6e8eb", "soft": "#a7b1bc", "line": "#363d46",
        "good": "#6fd08c", "warn": "#3a2614", "chosen": "#1e3247",
        "c0": "#6cb2ff", "c1": "#ffa366", "c2": "#45d3b4", "c3": "#f29be4", "c4": "#e2c54f", "c5": "#a9b4ff", "c6": "#ff94a6",
        "c7": "#b9c3cd",
    },
}  # fmt: skip
LIGHT = PALETTE["light"]
COLORS = 8  # of series
MARKERS = {  # name: matplotlib's marker, its size there, and an SVG path in a box of 12 by 12
    "circle": ("o", 7.0, "M6 1a5 5 0 1 0 .01 0z"),
    "square": ("s", 6.5, "M1.5 1.5h9v9h-9z"),
    "triangle-up": ("^", 8.0, "M6 1 11.5 10.5H.5z"),
    "diamond": ("D", 6.5, "M6 0 12 6 6 12 0 6z"),
    "triangle-down": ("v", 8.0, "M.5 1.5h11L6 11z"),
    "cross": ("P", 9.0, "M4 1h4v3h3v4H8v3H4V8H1V4h3z"),
    "x": ("X", 9.0, "M3 1 6 4 9 1l2 2-3 3 3 3-2 2-3-3-3 3-2-2 3-3-3-3z"),
    "star": ("*", 11.0, "M6 .5 7.5 4.3l4 .3-3.1 2.6 1 3.9L6 9l-3.4 2.1 1-3.9L.5 4.6l4-.3z"),
}
DASHES = {"solid": "-", "dash": "--", "dashdot": "-.", "dot": ":"}  # name: matplotlib's style; the style sheet has the same

# Maps of attention: from dark to light for positive values (nine colors of matplotlib's magma, CC0), blue for negative ones.
HEAT = ("000004", "1c1044", "4f127b", "812581", "b5367a", "e55064", "fb8761", "fec287", "fcfdbf")
COLD = ("000004", "08204a", "0d3b7d", "1259ad", "2278d4", "4d9aec", "84bcf7", "b9dafc", "e8f4ff")
QUERY = "#52e0ff"  # the frame around a query patch: visible on every picture and every map
DPI = 144  # of PNG files


def color_of(number: int | None) -> str:
    """The name of a series' color in the palette; a series without a number is gray."""
    return "soft" if number is None else f"c{number % COLORS}"


def marker_of(number: int | None) -> str:
    """The name of a series' marker. Each further round of colors starts three markers later; these differ for eight rounds."""
    return "circle" if number is None else list(MARKERS)[(number + 3 * (number // COLORS)) % len(MARKERS)]


def dash_of(number: int | None) -> str:
    """The name of a series' dash. The first eight are solid: color and marker suffice for them."""
    return "solid" if number is None else list(DASHES)[number // COLORS % len(DASHES)]


def css_variables() -> str:
    """The palette as CSS variables of `.softbias`: as the device prefers, or as the reader chose on the page."""
    light = f"color-scheme: light; --in-light: block; --in-dark: none; {declarations(PALETTE['light'])}"
    dark = f"color-scheme: dark; --in-light: none; --in-dark: block; {declarations(PALETTE['dark'])}"
    maps = f"--query: {QUERY}; --heat: {' '.join(HEAT)}; --cold: {' '.join(COLD)};"
    return (
        f".softbias {{ {light} {maps} }}\n"
        "@media screen and (prefers-color-scheme: dark) "
        f"{{ :root:not([data-theme=light]) .softbias {{ {dark} }} }}\n"
        f"@media screen {{ :root[data-theme=dark] .softbias {{ {dark} }} }}\n"
    )


def declarations(colors: Mapping[str, str]) -> str:
    """
    >>> declarations({"ink": "#000"})
    '--ink: #000;'
    """
    return " ".join(f"--{name}: {value};" for name, value in colors.items())
