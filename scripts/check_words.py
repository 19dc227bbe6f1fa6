"""One word for one thing: refuse identifiers that the glossary in CONTRIBUTING.md replaces by better ones.

    python scripts/check_words.py [FOLDER …]

Looks at names in code (functions, classes, arguments, attributes, variables), word by word: `place_map` holds `place`.
Texts for users are free: a person has pictures, a tensor holds images.
"""

from __future__ import annotations

import io
import keyword
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

INSTEAD = {
    "pixels": "images", "pictures": "images", "likes": "images", "place": "position, path or index", "places": "positions",
    "subject": "classifier", "opened": "classifier or run", "moments": "checkpoints", "shelf": "AppState",
    "shown": "supported or AppState", "seat": "AttachedRegularizer", "seats": "attached regularizers",
    "wish": "PartialRunSpec", "settle": "resolve",
    "recordable": "supports_cuda_graph", "ahead": "precompile", "roomy": "has_large_smem", "asking": "capture_launches",
    "anywhere": "content_out", "nearby": "position_out", "stacked": "packed_qkv", "apart": "split_qkv", "crew": "WorkerPool",
    "rehearse": "estimate_time", "rehearsal": "estimate_time", "theirs": "published",
    "told": "text, message or printed", "said": "text, message or printed",
}  # fmt: skip
WHOLE = {
    "Average": "ModelEma", "RecordedStep": "CudaGraphStep", "Given": "PartialRunSpec", "Place": "PositionBias",
    "chance": "rng, stats or chance_level", "few": "short_seq",
}  # fmt: skip
ALLOWED = {  # (file, name): the reason
    ("src/softbias/runs/spec.py", "pictures"): "a key of summary.json",
}


def words(name: str) -> list[str]:
    """
    >>> words("place_map"), words("RecordedStep")
    (['place', 'map'], ['recorded', 'step'])
    """
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def mistakes(file: Path) -> Iterator[tuple[int, str, str]]:
    source = file.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.NAME or keyword.iskeyword(token.string):
            continue
        better = WHOLE.get(token.string) or next((INSTEAD[word] for word in words(token.string) if word in INSTEAD), None)
        if better:
            yield token.start[0], token.string, better


def main(folders: list[str]) -> int:
    found = 0
    for folder in folders or ["src", "tests", "scripts"]:
        for file in sorted(Path(folder).rglob("*.py")):
            if file.name == Path(__file__).name:
                continue
            for line, name, better in mistakes(file):
                if (file.as_posix(), name) in ALLOWED:
                    continue
                found += 1
                print(f"{file}:{line}: the name {name!r}: say {better}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
