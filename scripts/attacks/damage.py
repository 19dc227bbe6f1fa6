"""Every file of a run, finished or stopped, damaged in ten ways, under every command that reads a run.

A damaged copy stands at the path of the undamaged one, so that answers can be compared. A refusal must be one clear line. An
answer must be the undamaged one, or come with a note; on a page, and in a list, numbers may be missing, but not new.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attacks.outcomes import outcomes
from attacks.page_client import ask_page
from attacks.processes import stopped_run
from attacks.verdict import OK, Answer, Outcome, judge, notes, numbers
from attacks.workshop import LIMIT, OPTIONS, TRAINING, Workshop, digests, signatures, temporary_files

WAYS = ("truncate", "empty", "flip", "noise", "delete", "null", "folder", "dangling", "fifo", "unreadable")
SLOW = ("export", "from", "probe-checkpoints")
DRAWN = ("report.html", "confusion.png", "figures/")  # what `report` writes again
UNCHECKED = re.compile(r"\.lock$|^figures/.*-")  # files without content, and most drawings of a study


@dataclass(frozen=True)
class Command:
    """A command that reads a run.

    words     makes its arguments from the run's folder
    compare   how an answer is compared with the undamaged one: "all" that was printed, its "numbers", or the "files" of the run
    share     how many of its cases are kept: slow ones are sampled
    """

    words: Callable[[Workshop, Path], list[Any]]
    compare: str = "all"
    share: float = 1.0
    states: tuple[str, ...] = ("finished", "stopped")


def images(shop: Workshop) -> list[Path]:
    return [shop.images() / f"{name}/{name}{number}.png" for name in ("blue", "red") for number in range(3)]


PROBE = ["--probes", "locality,gates", "--n", "8", "--json", "--out", "probed"]
COMMANDS = {
    "predict": Command(lambda shop, run: ["predict", run, *images(shop), "--out", "rows.csv"]),
    "predict-model": Command(lambda shop, run: ["predict", run / "model", *images(shop)], states=("finished",)),
    "evaluate": Command(lambda shop, run: ["evaluate", run, "--json"]),
    "probe": Command(lambda shop, run: ["probe", run, *PROBE], share=0.5),
    "probe-checkpoints": Command(lambda shop, run: ["probe", run, "--checkpoints", *PROBE], share=0.3),
    "explain": Command(lambda shop, run: ["explain", run, images(shop)[0], "--json"]),
    "report": Command(lambda shop, run: ["report", run], "numbers"),
    "report-many": Command(lambda shop, run: ["report", run, "--out", "many"], "numbers", 0.5),
    "export": Command(lambda shop, run: ["export", run, "model.onnx"], share=0.1),
    "runs": Command(lambda shop, run: ["runs", run.parent, "--json"], "numbers"),
    "resume": Command(lambda shop, run: ["fit", "--resume", "--out", run, *TRAINING], "files"),
    "resume-full": Command(lambda shop, run: ["fit", shop.images(), "--resume", "--out", run, *OPTIONS], "files", 0.5),
    "from": Command(
        lambda shop, run: ["fit", shop.images(), "--start", run, "--out", "next", *TRAINING, "--epochs", "1", "--quiet"],
        "next", 0.15, ("finished",),
    ),
    "app": Command(lambda shop, run: [run]),
    "report-study": Command(lambda shop, run: ["report", run], "numbers", 0.25, ("study",)),
    "runs-study": Command(lambda shop, run: ["runs", run, "--json"], "numbers", 0.25, ("study",)),
    "resume-study": Command(lambda shop, run: ["study", run, "--device", "cpu"], "files", 0.25, ("study",)),
}  # fmt: skip


class Damage:
    """The cases, in a seeded order."""

    def __init__(self, shop: Workshop) -> None:
        self.shop = shop
        self.references: dict[tuple[str, str], tuple[Answer, dict[str, str]]] = {}
        self.pristine = self.prepare(shop)
        self.files = {
            state: [name for name in digests(path) if not UNCHECKED.search(name)] for state, path in self.pristine.items()
        }
        rng = shop.rng("damage")
        self.cases = [
            (state, file, way, command)
            for state, files in self.files.items()
            for file in files
            for way in WAYS
            for command, settings in COMMANDS.items()
            if state in settings.states and rng.random() < settings.share
        ]
        rng.shuffle(self.cases)
        self.cases.sort(key=lambda case: case[3] in SLOW)  # a short attack has only quick ones

    def prepare(self, shop: Workshop) -> dict[str, Path]:
        """What is damaged, by its state."""
        return {"finished": shop.finished_run(), "stopped": stopped_run(shop)}

    def __len__(self) -> int:
        return len(self.cases)

    def title(self, number: int) -> str:
        state, file, way, command = self.cases[number]
        return f"{command} ({state}), {file}: {way}"

    def run(self, number: int) -> Outcome:
        state, file, way, name = self.cases[number]
        reference, before = self.reference(state, name)
        run = self.shop.fresh(self.pristine[state])
        damage(run / file, way, self.shop, number)
        damaged = signatures(run)
        answer = self.answer(name, run)
        found = judge(answer)
        if found is not OK:
            return found
        if COMMANDS[name].compare == "files":
            return self.judge_files(answer, reference, run, before, state)
        now = signatures(run)
        lost = [each for each, signature in damaged.items() if now.get(each) != signature and not UNCHECKED.search(each)]
        lost = [each for each in lost if not (name.startswith("report") and each.startswith(DRAWN))]
        if lost:
            return Outcome("lost artefact", f"{name} changed {', '.join(lost)}")
        return self.compare(answer, reference, name)

    def answer(self, name: str, run: Path, seconds: float = LIMIT) -> Answer:
        words = COMMANDS[name].words(self.shop, run)
        if name == "app":
            return self.shop.measure(lambda: ask_page(words), seconds)
        answer = self.shop.call(words, seconds)
        return replace(answer, out=gather(answer, name, run))

    def reference(self, state: str, name: str) -> tuple[Answer, dict[str, str]]:
        """The answer of a command on an undamaged run, and the files that are there afterwards."""
        if (state, name) not in self.references:
            run = self.shop.fresh(self.pristine[state])
            answer = self.answer(name, run, 600)
            if judge(answer) is not OK or answer.status == 1:
                raise SystemExit(f"{name} fails on an undamaged run ({state}): {answer.err[-1000:]} {answer.error!r}")
            self.references[state, name] = answer, outcomes(run)
        return self.references[state, name]

    def compare(self, answer: Answer, reference: Answer, name: str) -> Outcome:
        if answer.status != 0 or reference.status != 0 or answer.out == reference.out or notes(answer, reference):
            return OK
        if COMMANDS[name].compare == "numbers":
            new = numbers(answer.out) - numbers(reference.out)
            return Outcome("silent wrong number", f"new numbers: {', '.join(sorted(new)[:8])}") if new else OK
        return Outcome("silent wrong number", difference(reference.out, answer.out))

    def judge_files(self, answer: Answer, reference: Answer, run: Path, before: dict[str, str], state: str) -> Outcome:
        """After `fit --resume`: the model of the undisturbed run, all files, and nothing temporary."""
        if answer.status != 0:
            return OK
        after = outcomes(run)
        old = "checkpoints/step-"  # nobody can make earlier ones again, nor needs to
        missing = [name for name in before if name not in after and not name.startswith(old)]
        if state == "study":  # it names what its results do not need, with the command that makes it again
            missing = [name for name in missing if not any(Path(name).name in line for line in notes(answer, reference))]
        if missing:
            return Outcome("lost artefact", f"resume says finished, but {', '.join(missing)} is missing")
        left = temporary_files(run)
        if left:
            return Outcome("lost artefact", f"temporary files stay: {', '.join(left)}")
        changed = [name for name, digest in before.items() if after.get(name, digest) != digest]
        if changed and not notes(answer, reference):
            return Outcome("silent wrong number", f"resume says finished, and {', '.join(changed)} is another")
        return OK


class StudyDamage(Damage):
    """The same for the files of a study and of its runs."""

    def prepare(self, shop: Workshop) -> dict[str, Path]:
        return {"study": shop.finished_study()}


def damage(path: Path, way: str, shop: Workshop, number: int) -> None:
    rng, content = shop.rng("damage", number), path.read_bytes()
    if way == "flip" and content:
        index = rng.randrange(len(content))
        path.write_bytes(content[:index] + bytes([content[index] ^ 1 << rng.randrange(8)]) + content[index + 1 :])
    elif way == "truncate":
        path.write_bytes(content[: rng.randrange(max(1, len(content)))])
    elif way in ("empty", "null"):
        path.write_bytes(b"" if way == "empty" else b"null\n")
    elif way == "noise":
        path.write_bytes(rng.randbytes(len(content)))
    elif way == "unreadable":
        path.chmod(0)
    elif way in ("delete", "folder", "dangling", "fifo"):
        path.unlink()
        if way == "folder":
            path.mkdir()
        elif way == "dangling":
            path.symlink_to(shop.root / "nothing")
        elif way == "fifo":
            os.mkfifo(path)


def gather(answer: Answer, name: str, run: Path) -> str:
    """What the user reads: what was printed, or what was written into a file."""
    if answer.status != 0:
        return answer.out
    if name == "predict":
        return Path("rows.csv").read_text()
    if name.startswith("report"):
        page = (Path("many") if name == "report-many" else run) / "report.html"
        return visible(page.read_text())
    if name == "export":
        return model_bytes(Path("model.onnx"))
    if name == "from":
        shutil.rmtree("next/checkpoints")
        return Path("next/model/model.safetensors").read_bytes().hex()
    if name.startswith("runs"):
        return "\n".join(line for line in answer.out.splitlines() if '"seconds"' not in line)
    return answer.out


def visible(page: str) -> str:
    """The words of a page, without code, pictures and sizes of files."""
    page = re.sub(r"<(script|style|svg)\b.*?</\1>", " ", page, flags=re.S)
    return re.sub(r"<[^>]*>", " ", page)


def model_bytes(path: Path) -> str:
    """The weights of an ONNX file; names of its nodes may change from one export to the next."""
    import onnx

    tensors = onnx.load(str(path)).graph.initializer
    return "\n".join(f"{tensor.name} {tensor.raw_data.hex()}" for tensor in tensors)


def difference(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    first = next((f"{one.strip()[:80]!r} became {two.strip()[:80]!r}" for one, two in pairs if one != two), "")
    return first or f"{len(before):,} characters became {len(after):,}"
